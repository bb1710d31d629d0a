"""Every expression of every dashboard on the real Prometheus, and the dashboards drawn from it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from grafana.catalogue import FOLDER
from grafana.preview.__main__ import draw_all
from grafana.preview.source import Source
from grafana.preview.template import Template, resolve, values_of
from tests.grafana.linter import Dashboard, Target, bare, panels, targets
from tests.prometheus.exporters import GPU_MODEL
from tests.prometheus.expressions import NAMESPACE, SERVICE, collect
from tests.prometheus.promql import metric_names, shorten
from tests.prometheus.test_names import Page, page  # noqa: F401 (a fixture)
from tests.prometheus.world import FACTOR, PODS, World

DASHBOARDS: dict[str, Dashboard] = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}

NOT_OF_PAGE = r"ALERTS|ALERTS_FOR_STATE|process_\w+|pagedserve_engine_process_\w+"
"""Made by Prometheus, or told by processes: the page of the check is the engine's metrics alone."""

EMPTY_IN_HEALTH = {
    ("pagedserve-service", "panel 8 A: Alerts"): "no alert fires in health; asked of the moment in which a pod is dead",
    **{(uid, "annotation Alert"): "as above: no alert fires in health" for uid in DASHBOARDS},
    **{
        (uid, "annotation Scaled in"): "asked of the moment in which a pod has gone"
        for uid in ("pagedserve-service", "pagedserve-engine", "pagedserve-autoscaling")
    },
}
"""Expressions that have no sample with two loaded pods, each with its reason. The tests below ask them elsewhere."""


def source(world: World, start: float, end: float) -> Source:
    return Source(world.prometheus.url, start, end, 1.0, FACTOR, lambda text: shorten(text, FACTOR))


def loaded(world: World) -> Source:
    """From before the first pod to the last second with two."""
    return source(world, world.start - 20, world.two[-1])


def faults(one: Target, template: Template, asked: Source) -> Iterator[str]:
    """Why an expression's answer is not what a panel needs: not valid, empty, or not finite in the end."""
    text = template.expression(one.expr)
    try:
        ranged = asked.range(text)
        found = ranged if one.where.startswith("annotation") else asked.instant(text)
    except (RuntimeError, ValueError) as error:
        yield f"{one.where}: {error}"
        return
    if not found:
        yield f"{one.where}: no sample\n    {text}"
    for series in found:
        if series.last != series.last or abs(series.last) == float("inf"):
            yield f"{one.where}: {series.labels} is {series.last}\n    {text}"


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_expression_has_finite_samples_under_load(uid: str, world: World) -> None:
    asked = loaded(world)
    template = resolve(DASHBOARDS[uid], asked)
    found = [
        fault
        for one in targets(DASHBOARDS[uid])
        if (uid, one.where) not in EMPTY_IN_HEALTH
        for fault in faults(one, template, asked)
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["rate(nothing[$__rate_interval])", "0 * sum(pagedserve_engine_up) / 0", "sum by (a ("],
    ids=["empty", "NaN", "invalid"],
)
def test_the_check_of_expressions_can_fail(text: str, world: World) -> None:
    assert list(faults(Target("", text), Template({}), loaded(world)))


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_variables_have_their_values(uid: str, world: World) -> None:
    asked = loaded(world)
    template = resolve(DASHBOARDS[uid], asked)
    found = {
        variable["name"]: values_of(variable, asked, template)
        for variable in DASHBOARDS[uid]["templating"]["list"]
        if variable["type"] == "query"
    }
    expected = {"cluster": [], "namespace": [NAMESPACE], "inferenceservice": [SERVICE], "pod": list(PODS)}
    if uid == "pagedserve-engine":
        expected["gpu_model"] = [GPU_MODEL]
    if uid == "pagedserve-versions":
        stable, canary = (pod.rsplit("-", 1)[0] for pod in PODS)
        expected |= {"stable": [stable, canary], "canary": [canary, stable]}
    assert found == expected


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_several_services_and_one_pod_can_be_chosen(uid: str, world: World) -> None:
    """With a neighbour chosen as well everything is still there; with a pod alone what is by pod is of that pod."""
    asked = loaded(world)
    several = resolve(
        DASHBOARDS[uid], asked, {"inferenceservice": [SERVICE, "other.example"], "namespace": ["a", NAMESPACE]}
    )
    alone = resolve(DASHBOARDS[uid], asked, {"pod": [PODS[0]]})
    for one in targets(DASHBOARDS[uid]):
        if (uid, one.where) in EMPTY_IN_HEALTH:
            continue
        assert not list(faults(one, several, asked)), one.where
        pods = {series.labels.get("pod", PODS[0]) for series in asked.instant(alone.expression(one.expr))}
        assert pods <= {PODS[0]} or one.where.startswith("variable"), one.where


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_expression_stays_valid_whatever_the_state(uid: str, world: World) -> None:
    """Right after the start, with a dead pod, with one and with none: no matching that is ambiguous, never an error."""
    template = resolve(DASHBOARDS[uid], loaded(world))
    for at in (world.start, world.start + 1, world.lost, world.one[-1], world.none[-1]):
        asked = source(world, at - 5, at)
        for one in targets(DASHBOARDS[uid]):
            asked.range(template.expression(one.expr))


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_what_health_does_not_show(uid: str, world: World) -> None:
    asked = source(world, world.two[-1], world.one[-1])
    template = resolve(DASHBOARDS[uid], asked)
    for one in targets(DASHBOARDS[uid]):
        if (uid, one.where) in EMPTY_IN_HEALTH:
            # NOTE: the dead pod's alert was seen pending; it would fire a minute later.
            text = template.expression(one.expr).replace('alertstate="firing"', 'alertstate="pending"')
            assert asked.range(text), one.where


def test_without_pods_a_panel_says_so_rather_than_zero(world: World) -> None:
    """Gauges of pods and services have no sample then or NaN, so that noValue shows; firing alerts stay a number, and
    so does what is ready of what is wanted."""
    at = world.none[-1]
    asked = source(world, at - 1, at)
    template = resolve(DASHBOARDS["pagedserve-service"], loaded(world))
    empty = {
        one.panel["id"]
        for one in targets(DASHBOARDS["pagedserve-service"])
        if one.panel is not None
        and all(math.isnan(found.last) for found in asked.instant(template.expression(one.expr)))
    }
    assert {5, 6, 40, 41, 51, 52} <= empty
    assert not {1, 2} & empty


def test_expressions_name_what_exists(page: Page) -> None:  # noqa: F811
    recorded = {one.name for one in collect() if one.kind == "record"}
    for uid, dashboard in DASHBOARDS.items():
        for one in targets(dashboard):
            names = metric_names(bare(one.expr))
            assert {name for name in names if name.startswith("inferenceservice:")} <= recorded
            if not any(re.fullmatch(NOT_OF_PAGE, name) for name in names):
                assert page.faults(bare(one.expr)) == [], f"{uid} {one.where}"


def test_the_pictures_show_every_panel_that_has_data(world: World, tmp_path: Path) -> None:
    length = world.two[-1] - world.start + 20
    made = draw_all(
        world.prometheus.url, tmp_path, since=length, end=world.two[-1], min_step=1.0, speed=FACTOR,
        rewrite=lambda text: shorten(text, FACTOR), expand=True,
    )  # fmt: skip
    assert made.keys() == DASHBOARDS.keys()
    for uid, drawn in made.items():
        wanted = {panel["id"] for panel in panels(DASHBOARDS[uid])}
        assert {one.panel_id for one in drawn if one.kind != "row"} == wanted
        empty = {one.title for one in drawn if one.kind != "row" and one.series == 0}
        assert empty == ({"Alerts"} if uid == "pagedserve-service" else set())
        picture = (tmp_path / f"{uid}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 50_000
