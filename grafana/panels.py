"""Panels with one look: each has a unit, a description of three parts, and links to where to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.dashboard import (
    DashboardSpecialValueMapOptions,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.queries import Query
from grafana.variables import SOURCE

Builder = Any
"""A panel that is being built: the SDK's builders share no base class that names these methods."""

Steps = Sequence[tuple[float | None, str]]
"""(from this value, this colour); the first value is None, which is everything below the second."""

PLAIN: Steps = ((None, "text"),)
TOKENS_A_SECOND = "count:tok/s"
"""A unit of Grafana's form for what is counted: 1.5 K tok/s."""
NO_METRICS = "No metrics of the pods chosen"
"""What a panel says in place of data, unless it knows better."""


@dataclass(frozen=True)
class Note:
    """What a panel's description says: what it shows, what a healthy value is, and where to look next."""

    shows: str
    healthy: str
    next: str

    def __str__(self) -> str:
        return f"{self.shows}\n\n**Healthy:** {self.healthy}\n\n**Next:** {self.next}"


def lines(
    panel_id: int,
    title: str,
    unit: str,
    note: Note,
    queries: Sequence[Query],
    *,
    stacked: bool = False,
    steps: Steps | None = None,
    colors: dict[str, str] | None = None,
    dashed: Sequence[str] = (),
    links: Sequence[Builder] = (),
    top: float | None = None,
    soft_top: float | None = None,
    decimals: int | None = None,
    no_value: str = NO_METRICS,
) -> Builder:
    """A time series panel. steps: thresholds, drawn as dashed lines. dashed: names (regular expressions) of series that
    are bounds rather than measurements. top: the axis ends there; soft_top: it reaches there at least."""
    made = _common(timeseries.Panel(), panel_id, title, unit, note, queries, links, no_value)
    made = made.line_width(1).fill_opacity(30 if stacked else 6).show_points(look.VisibilityMode.NEVER)
    made = made.line_interpolation(look.LineInterpolation.LINEAR).min(0)
    made = made.span_nulls(False)
    if stacked:
        made = made.stacking(common.StackingConfig().mode(look.StackingMode.NORMAL).group("A"))
    if top is not None:
        made = made.max(top)
    if soft_top is not None:
        made = made.axis_soft_max(soft_top)
    if decimals is not None:
        made = made.decimals(decimals)
    if steps is not None:
        made = made.thresholds(_thresholds(steps))
        made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode(look.GraphThresholdsStyleMode.DASHED))
    made = made.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
    for name, color in (colors or {}).items():
        made = made.override_by_regexp(f"/^{name}$/", [_fixed(color)])
    for name in dashed:
        made = made.override_by_regexp(
            f"/^{name}$/",
            [
                DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [10, 6]}),
                DynamicConfigValue(id_val="custom.fillOpacity", value=0),
                DynamicConfigValue(id_val="custom.stacking", value={"mode": "none", "group": "A"}),
            ],
        )
    made = made.tooltip(common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI).sort(look.SortOrder.DESCENDING))
    legend = common.VizLegendOptions().show_legend(True).display_mode(look.LegendDisplayMode.TABLE)
    legend = legend.placement(look.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"])
    if any("{{pod}}" in query.legend for query in queries):
        # NOTE: of many pods only the first lines are seen without scrolling: those that stand out.
        legend = legend.sort_by("Max").sort_desc(True)
    return made.legend(legend)


def number(
    panel_id: int,
    title: str,
    unit: str,
    note: Note,
    queries: Sequence[Query],
    *,
    steps: Steps = PLAIN,
    links: Sequence[Builder] = (),
    decimals: int | None = None,
    filled: bool = False,
    spark: bool = True,
    no_value: str = "No metrics",
) -> Builder:
    """A stat panel: the value of now, coloured by its step.

    filled: the whole tile has the colour. spark: the range in small; its queries end with `or vector(...)`.
    NOTE: of a range Grafana takes the last sample that there is, be it hours old: a query is instant, or it has a
    sample to the end, and NaN is what shows as no_value.
    """
    made = _common(stat.Panel(), panel_id, title, unit, note, queries, links, no_value)
    made = made.reduce_options(common.ReduceDataOptions().values(False).calcs(["last" if spark else "lastNotNull"]))
    if spark:
        made = made.mappings([_absent(no_value)])
    made = made.color_mode(look.BigValueColorMode.BACKGROUND if filled else look.BigValueColorMode.VALUE)
    made = made.graph_mode(look.BigValueGraphMode.AREA if spark else look.BigValueGraphMode.NONE)
    made = made.text_mode(look.BigValueTextMode.AUTO).justify_mode(look.BigValueJustifyMode.AUTO)
    made = made.orientation(look.VizOrientation.AUTO).thresholds(_thresholds(steps))
    made = made.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    return made.decimals(decimals) if decimals is not None else made


def bars(
    panel_id: int,
    title: str,
    unit: str,
    note: Note,
    queries: Sequence[Query],
    *,
    steps: Steps = ((None, "blue"),),
    links: Sequence[Builder] = (),
    decimals: int | None = None,
    top: float | None = None,
    no_value: str = NO_METRICS,
) -> Builder:
    """A bar gauge, one bar a series. top: what a full bar is, the largest value unless given."""
    made = _common(bargauge.Panel(), panel_id, title, unit, note, queries, links, no_value)
    made = made.reduce_options(common.ReduceDataOptions().values(False).calcs(["lastNotNull"]))
    made = made.orientation(look.VizOrientation.HORIZONTAL).display_mode(look.BarGaugeDisplayMode.GRADIENT)
    made = made.show_unfilled(True).value_mode(look.BarGaugeValueMode.COLOR).min(0)
    made = made.thresholds(_thresholds(steps))
    made = made.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    if top is not None:
        made = made.max(top)
    return made.decimals(decimals) if decimals is not None else made


def heat_map(
    panel_id: int, title: str, unit: str, note: Note, query: Query, *, links: Sequence[Builder] = (), scheme: str
) -> Builder:
    """A heatmap of a classic histogram; the colour is observations a second in a bucket."""
    made = _common(heatmap.Panel(), panel_id, title, unit, note, [query], links, "Nothing observed")
    made = made.calculate(False).cell_gap(1).hide_legend().hide_y_histogram()
    made = made.mode(look.TooltipDisplayMode.SINGLE)
    made = made.color(
        heatmap.HeatmapColorOptions()
        .mode(heat.HeatmapColorMode.SCHEME)
        .scheme(scheme)
        .steps(64)
        .exponent(0.5)
        .fill("dark-orange")
        .scale(heat.HeatmapColorScale.EXPONENTIAL)
        .reverse(False)
    )
    made = made.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(look.AxisPlacement.LEFT))
    made = made.rows_frame(heatmap.RowsHeatmapOptions().layout(look.HeatmapCellLayout.AUTO))
    made = made.filter_values(heatmap.FilterValueRange().le(1e-9))
    return made.cell_values(heatmap.CellValues().unit("short"))


def states(
    panel_id: int,
    title: str,
    note: Note,
    queries: Sequence[Query],
    names: dict[int, tuple[str, str]],
    *,
    links: Sequence[Builder] = (),
    no_value: str = NO_METRICS,
) -> Builder:
    """A state timeline. names: what a value means, and its colour."""
    made = _common(statetimeline.Panel(), panel_id, title, "none", note, queries, links, no_value)
    made = made.merge_values(True).show_value(look.VisibilityMode.NEVER).row_height(0.8).fill_opacity(80).line_width(0)
    made = made.mappings([_named(names)])
    made = made.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    made = made.thresholds(_thresholds([(None, "text")]))
    legend = common.VizLegendOptions().show_legend(True).display_mode(look.LegendDisplayMode.LIST)
    return made.legend(legend.placement(look.LegendPlacement.BOTTOM))


@dataclass(frozen=True)
class Column:
    """A column of a table: the field it comes from, its head, unit, colours and link."""

    field: str
    name: str
    unit: str = "none"
    steps: Steps | None = None
    states: dict[int, tuple[str, str]] | None = None
    link: dict[str, object] | None = None
    decimals: int | None = None
    width: int | None = None


def rows(
    panel_id: int,
    title: str,
    note: Note,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    hidden: Sequence[str] = (),
    sort: str,
    links: Sequence[Builder] = (),
    no_value: str = NO_METRICS,
) -> Builder:
    """A table; the queries' rows are joined by their labels. hidden: fields that are not shown."""
    made = _common(table.Panel(), panel_id, title, "none", note, queries, links, no_value)
    if len(queries) > 1:
        made = made.with_transformation(_transformation("merge", {}))
    organised = {
        "excludeByName": {"Time": True} | dict.fromkeys(hidden, True),
        "indexByName": {column.field: index for index, column in enumerate(columns)},
        "renameByName": {column.field: column.name for column in columns},
    }
    made = made.with_transformation(_transformation("organize", organised))
    for column in columns:
        made = made.override_by_name(column.name, _properties(column))
    made = made.cell_options(look.TableAutoCellOptions())
    made = made.sort_by([common.TableSortByFieldState().display_name(sort).desc(False)])
    return made.show_header(True).cell_height(look.TableCellHeight.SM).filterable(False)


def _common(
    made: Builder,
    panel_id: int,
    title: str,
    unit: str,
    note: Note,
    queries: Sequence[Query],
    links: Sequence[Builder],
    no_value: str,
) -> Builder:
    made = made.id(panel_id).title(title).description(str(note)).datasource(SOURCE).unit(unit).no_value(no_value)
    for index, query in enumerate(queries):
        made = made.with_target(_target(query, chr(ord("A") + index)))
    return made.links(list(links)) if links else made


def _target(query: Query, ref_id: str) -> Builder:
    made = prometheus.Dataquery().datasource(SOURCE).expr(query.expr).ref_id(ref_id)
    made = made.legend_format(query.legend).format(PromQueryFormat(query.format))
    return made.instant() if query.instant else made.range()


def _thresholds(steps: Steps) -> Builder:
    made = [Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def _fixed(color: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})


def _named(names: dict[int, tuple[str, str]]) -> ValueMap:
    options = {
        str(value): ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(names.items())
    }
    return ValueMap(options=options)


def _absent(text: str) -> SpecialValueMap:
    result = ValueMappingResult(text=text, color="text", index=0)
    return SpecialValueMap(DashboardSpecialValueMapOptions(match=SpecialValueMatch.NULL_AND_NAN, result=result))


def _transformation(name: str, options: dict[str, Any]) -> Any:
    return DataTransformerConfig(id_val=name, options=options)


def _properties(column: Column) -> list[DynamicConfigValue]:
    made = [DynamicConfigValue(id_val="unit", value=column.unit)]
    if column.decimals is not None:
        made.append(DynamicConfigValue(id_val="decimals", value=column.decimals))
    if column.width is not None:
        made.append(DynamicConfigValue(id_val="custom.width", value=column.width))
    if column.steps is not None:
        steps = [{"value": value, "color": color} for value, color in column.steps]
        made.append(DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": steps}))
        made.append(DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    if column.states is not None:
        options = {str(value): {"text": text, "color": color} for value, (text, color) in column.states.items()}
        made.append(DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": options}]))
        made.append(DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    if column.link is not None:
        made.append(DynamicConfigValue(id_val="links", value=[column.link]))
    return made
