"""KEDA's cron trigger: a window between two schedules, in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 6))
_HORIZON_DAYS = 366 * 5


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of five fields, each *, a number, a range, a list or a step. `of` raises `ValueError`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    @classmethod
    def of(cls, text: str) -> Schedule:
        parts = text.split()
        if len(parts) != len(_FIELDS):
            raise ValueError(f"{text!r} has {len(parts)} fields; a schedule has 5: minute, hour, day, month, weekday")
        minutes, hours, days, months, weekdays = (
            _field(part, *bounds) for part, bounds in zip(parts, _FIELDS, strict=True)
        )
        return cls(minutes, hours, days, months, weekdays, parts[2].startswith("*"), parts[4].startswith("*"))

    def after(self, moment: datetime) -> datetime:
        """The first time after `moment` (aware), in its zone. Times that clocks skip are passed over."""
        zone = moment.tzinfo
        for offset in range(_HORIZON_DAYS):
            day = moment.date() + timedelta(days=offset)
            if not self._on(day):
                continue
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    found = datetime.combine(day, time(hour, minute), tzinfo=zone)
                    if found.timestamp() > moment.timestamp() and _exists(found):
                        return found
        raise ValueError("the schedule names a day that never comes")

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        # NOTE: cron's rule: where both days are restricted, either will do.
        return by_day and by_weekday if self.any_day or self.any_weekday else by_day or by_weekday


@dataclass(frozen=True, slots=True)
class CronWindow:
    """Active from each start to the end that follows it. `of` raises `ValueError`."""

    start: Schedule
    end: Schedule
    zone: ZoneInfo

    @classmethod
    def of(cls, start: str, end: str, timezone: str) -> CronWindow:
        if start.split() == end.split():
            raise ValueError(f"start and end are the same schedule, {start!r}")
        try:
            zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"{timezone!r} is no time zone of the IANA database (such as Asia/Shanghai)") from None
        return cls(Schedule.of(start), Schedule.of(end), zone)

    def is_active(self, moment: datetime) -> bool:
        """Whether an end comes before the next start. moment: aware, of any zone."""
        local = moment.astimezone(self.zone)
        return self.end.after(local) <= self.start.after(local)


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        try:
            start = low if span == "*" else int(first)
            stop = high if span == "*" or (step and not last) else int(last or first)
            stride = int(step or 1)
        except ValueError:
            raise ValueError(f"{part!r} is no {name} of a schedule") from None
        if not (low <= start <= stop <= high and stride > 0):
            raise ValueError(f"{part!r} is no {name} of a schedule: {low} to {high}")
        found.update(range(start, stop + 1, stride))
    return frozenset(found)


def _exists(moment: datetime) -> bool:
    return datetime.fromtimestamp(moment.timestamp(), moment.tzinfo).replace(fold=0) == moment.replace(fold=0)
