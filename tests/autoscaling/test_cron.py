from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from autoscaling.cron import CronWindow, Schedule

SHANGHAI = ZoneInfo("Asia/Shanghai")


@pytest.mark.parametrize(
    ("schedule", "moment", "following"),
    [
        ("55 7 * * 1-5", "2026-11-30T07:54:59", "2026-11-30T07:55:00"),  # a Monday
        ("55 7 * * 1-5", "2026-11-30T07:55:00", "2026-12-01T07:55:00"),  # after, not at
        ("55 7 * * 1-5", "2026-12-04T12:00:00", "2026-12-07T07:55:00"),  # over the weekend
        ("*/20 * * * *", "2026-11-30T07:41:00", "2026-11-30T08:00:00"),
        ("5,10 0-6/3 * * *", "2026-11-30T03:10:00", "2026-11-30T06:05:00"),
        ("0 0 1 1 *", "2026-11-30T00:00:00", "2027-01-01T00:00:00"),
        ("0 0 13 * 5", "2026-11-30T00:00:00", "2026-12-04T00:00:00"),  # the 13th or a Friday
        ("0 0 29 2 *", "2026-11-30T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 * * 0", "2026-11-30T00:00:00", "2026-12-06T00:00:00"),  # Sunday is 0
    ],
)
def test_following(schedule: str, moment: str, following: str) -> None:
    found = Schedule.of(schedule).after(datetime.fromisoformat(moment).replace(tzinfo=SHANGHAI))
    assert found == datetime.fromisoformat(following).replace(tzinfo=SHANGHAI)


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        ("55 7 * *", "5"),  # four fields
        ("60 7 * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 0 0 * *", "day of month"),
        ("0 0 * 13 *", "month"),
        ("0 0 * * 7", "day of week"),
        ("0 0 * * MON", "day of week"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("0 0 31 2 *", "never"),
    ],
)
def test_refuses(schedule: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Schedule.of(schedule).after(datetime(2026, 11, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    ("moment", "active"),
    [
        ("2026-11-30T07:54:00", False),
        ("2026-11-30T07:55:00", True),
        ("2026-11-30T12:00:00", True),
        ("2026-11-30T16:29:59", True),
        ("2026-11-30T16:30:00", False),
        ("2026-12-05T12:00:00", False),  # Saturday
    ],
)
def test_window(moment: str, active: bool) -> None:
    window = CronWindow.of("55 7 * * 1-5", "30 16 * * 1-5", "Asia/Shanghai")
    local = datetime.fromisoformat(moment).replace(tzinfo=SHANGHAI)
    assert window.is_active(local) is window.is_active(local.astimezone(UTC)) is active


def test_a_window_follows_the_clocks() -> None:
    window = CronWindow.of("55 7 * * 1-5", "30 16 * * 1-5", "Europe/Berlin")
    assert window.is_active(datetime(2026, 7, 1, 6, 0, tzinfo=UTC))  # 8:00 in summer
    assert not window.is_active(datetime(2026, 12, 1, 6, 0, tzinfo=UTC))  # 7:00 in winter


def test_a_time_that_the_clocks_skip_is_passed_over() -> None:
    # On 2026-03-29 Berlin goes from 2:00 to 3:00.
    night = datetime(2026, 3, 29, 0, 0, tzinfo=ZoneInfo("Europe/Berlin"))
    assert Schedule.of("30 2 * * *").after(night).day == 30


@pytest.mark.parametrize(
    ("start", "end", "zone", "named"),
    [
        ("0 8 * * *", "0 8 * * *", "UTC", "same"),
        ("0 8 * * *", "0 9 * * *", "Asia/Shangri-La", "time zone"),
        ("0 8 * * *", "0 9 * * *", "../etc/passwd", "time zone"),
    ],
)
def test_windows_that_are_none(start: str, end: str, zone: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CronWindow.of(start, end, zone)
