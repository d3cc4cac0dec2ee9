"""Panels and boards, made with Grafana's builder library."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, loki, table, tempo, timeseries, xychart
from grafana_foundation_sdk.builders import heatmap as heatmap_builder
from grafana_foundation_sdk.builders import histogram as histogram_builder
from grafana_foundation_sdk.builders import logs as logs_builder
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from boards.queries import CHOSEN_RECORDS, PROMETHEUS, Query, now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


LOKI = model.DataSourceRef("loki", "loki")
TEMPO = model.DataSourceRef("tempo", "tempo")

Panel: TypeAlias = Builder[model.Panel]
Variable: TypeAlias = Builder[model.VariableModel]
_Panel = TypeVar(
    "_Panel",
    timeseries.Panel,
    table.Panel,
    histogram_builder.Panel,
    heatmap_builder.Panel,
    bargauge.Panel,
    xychart.Panel,
)
_Repeated = TypeVar("_Repeated", timeseries.Panel, xychart.Panel)
GREEN, YELLOW, RED = "green", "yellow", "red"


class Repeated(str):
    """The title of a row that is there once for each chosen value of the variable that the title names: ``$wait``."""

    __slots__ = ()

    @property
    def variable(self) -> str:
        """The variable's name."""
        return self.removeprefix("$")


def lines(
    title: str, unit: str, description: str, *queries: Query, warn: float | None = None, alarm: float | None = None
) -> timeseries.Panel:
    """Curves over time, with lines across where ``warn`` and ``alarm`` are."""
    crossing = looks.GraphThresholdsStyleMode.DASHED if warn or alarm else looks.GraphThresholdsStyleMode.OFF
    return (
        half_a_row(timeseries.Panel(), title, unit, description)
        .targets([each.ref_id(letter) for letter, each in zip(ascii_uppercase, queries, strict=False)])
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .thresholds(thresholds(warn, alarm))
        .thresholds_style(common.GraphThresholdsStyleConfig().mode(crossing))
        .fill_opacity(0)
        .span_nulls(True)
        .show_points(looks.VisibilityMode.AUTO)
        .legend(
            common.VizLegendOptions()
            .display_mode(looks.LegendDisplayMode.TABLE)
            .placement(looks.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"])
        )
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    )


def repeated(panel: _Repeated, variable: str) -> _Repeated:
    """Return a panel that is there once for each chosen value of a variable, two in a row."""
    return panel.repeat(variable).repeat_direction("h").max_per_row(2)


def shares(title: str, description: str, each: Query) -> timeseries.Panel:
    """Return shares over time, stacked to 100 % over the whole width; time in ``step`` is green."""
    return (
        lines(title, "percentunit", f"{description} The height is shared by all runs.", each)
        .span(24)
        .fill_opacity(70)
        .stacking(common.StackingConfig().mode(looks.StackingMode.PERCENT))
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .override_by_regexp("/ step$/", [model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": GREEN})])
    )


def tile(
    title: str,
    unit: str,
    description: str,
    expression: str,
    legend: str = "",
    *,
    warn: float | None = None,
    alarm: float | None = None,
) -> stat_builder.Panel:
    """One number, coloured from ``warn`` and from ``alarm`` on; with a legend, its name too."""
    return (
        stat_builder.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .span(4)
        .height(4)
        .no_value("none")
        .graph_mode(looks.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(thresholds(warn, alarm))
        .text_mode(looks.BigValueTextMode.VALUE_AND_NAME if legend else looks.BigValueTextMode.AUTO)
        .with_target(now(expression, legend))
    )


def columns(title: str, description: str, sort: str, **of: tuple[str, str]) -> table.Panel:
    """Return a table with a row for each set of labels, and a column for each expression.

    Args:
        title: The panel's title.
        description: Shown beside the title.
        sort: The column by which rows are sorted; with a minus the highest value is first.
        **of: Unit and expression of each column, by its name. All expressions have the same labels.
    """
    panel = half_a_row(table.Panel(), title, "none", description).no_value("0")
    values = {f"Value #{letter}": name for letter, name in zip(ascii_uppercase, of, strict=False)}
    for (value, name), (unit, expression) in zip(values.items(), of.values(), strict=True):
        letter = value[-1]
        panel.with_target(now(expression).format(PromQueryFormat.TABLE).ref_id(letter))
        panel.override_by_regexp(f"/^({name}|{value})$/", [model.DynamicConfigValue("unit", unit)])
    by = {"field": sort.removeprefix("-"), "desc": sort.startswith("-")}
    return panel.transformations(
        [
            model.DataTransformerConfig("merge", options={}),
            model.DataTransformerConfig(
                "organize", options={"excludeByName": {"Time": True, "instance": True}, "renameByName": values}
            ),
            model.DataTransformerConfig("sortBy", options={"sort": [by]}),
        ]
    )


def rows(title: str, unit: str, description: str, expression: str) -> table.Panel:
    """A table: a row for each series, a column for each label."""
    hidden = dict.fromkeys(("Time", "__name__", "instance", "job", "training_local_rank"), True)
    return (
        half_a_row(table.Panel(), title, unit, description)
        .no_value("none")
        .with_target(now(expression).format(PromQueryFormat.TABLE))
        .with_transformation(model.DataTransformerConfig("organize", options={"excludeByName": hidden}))
    )


def histogram(title: str, unit: str, description: str, expression: str) -> histogram_builder.Panel:
    """Return a histogram of the last values of many series."""
    return half_a_row(histogram_builder.Panel(), title, unit, description).combine(True).with_target(now(expression))


def heat_map(title: str, unit: str, description: str, each: Query) -> heatmap_builder.Panel:
    """Return a heat map of samples over time, from one series of native histograms: Grafana draws only one."""
    return (
        half_a_row(heatmap_builder.Panel(), title, unit, description)
        .y_axis(heatmap_builder.YAxisConfig().unit(unit))
        .with_target(each.format(PromQueryFormat.HEATMAP).ref_id("A"))
    )


def bars(title: str, unit: str, description: str, expression: str, legend: str) -> bargauge.Panel:
    """A bar for each series."""
    return (
        half_a_row(bargauge.Panel(), title, unit, description)
        .orientation(looks.VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(now(expression, legend))
    )


def log_lines(title: str, description: str, expression: str) -> logs_builder.Panel:
    """Log records from Loki."""
    return (
        logs_builder.Panel()
        .title(title)
        .description(description)
        .datasource(LOKI)
        .span(24)
        .height(10)
        .show_time(True)
        .enable_log_details(True)
        .sort_order(looks.LogsSortOrder.DESCENDING)
        .with_target(loki.Dataquery().expr(expression).datasource(LOKI).query_type("range").ref_id("A"))
    )


def log_counts(title: str, description: str, expression: str, legend: str) -> timeseries.Panel:
    """Counts of log records from Loki."""
    counts = loki.Dataquery().expr(expression).legend_format(legend).datasource(LOKI).query_type("range").ref_id("A")
    return (
        lines(title, "short", description)
        .datasource(LOKI)
        .span(24)
        .draw_style(looks.GraphDrawStyle.BARS)
        .fill_opacity(60)
        .stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL))
        .with_target(counts)
    )


def traces(title: str, description: str, expression: str) -> table.Panel:
    """A table of traces from Tempo."""
    search = tempo.TempoQuery().query(expression).query_type("traceql").limit(50).datasource(TEMPO).ref_id("A")
    return table.Panel().title(title).description(description).datasource(TEMPO).span(24).height(10).with_target(search)


def half_a_row(panel: _Panel, title: str, unit: str, description: str) -> _Panel:
    """A panel of Prometheus, of the usual size."""
    return panel.title(title).description(description).datasource(PROMETHEUS).unit(unit).span(12).height(8)


def thresholds(warn: float | None, alarm: float | None) -> dashboard.ThresholdsConfig:
    """Green, yellow from ``warn`` on, red from ``alarm`` on; if ``alarm`` is lower, red and yellow are below them."""
    limits = [(value, colour) for value, colour in ((warn, YELLOW), (alarm, RED)) if value is not None]
    steps: list[tuple[float | None, str]] = [(None, GREEN), *limits]
    if warn is not None and alarm is not None and alarm < warn:
        steps = [(None, RED), (alarm, YELLOW), (warn, GREEN)]
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=colour) for value, colour in steps])
    )


def board(
    name: str,
    title: str,
    description: str,
    variables: Sequence[Variable],
    panels: Mapping[str | Repeated, Sequence[Panel]],
) -> dashboard.Dashboard:
    """A dashboard with links to the others.

    Args:
        name: Of its file and its address.
        title: What Grafana lists.
        description: Which question it answers.
        variables: What can be chosen, in the order of the board.
        panels: The panels of each row, by the row's title.
    """
    others = (
        dashboard.DashboardLink("monitel")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags(["monitel"])
        .keep_time(True)
        .include_vars(True)
    )
    built = (
        dashboard.Dashboard(title)
        .uid(f"monitel-{name}")
        .description(description)
        .tags(["monitel"])
        .link(others)
        .time("now-30m", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .variables(list(variables))
        .annotations([_starts_and_ends()])
    )
    for row, members in panels.items():
        built.with_row(dashboard.Row(row).repeat(row.variable) if isinstance(row, Repeated) else dashboard.Row(row))
        for panel in members:
            built.with_panel(panel)
    return built


def _starts_and_ends() -> dashboard.AnnotationQuery:
    """Lines across all panels at the starts and the ends of runs, from Loki."""
    line = (
        "`{{__line__}}{{if .run_status}} {{.run_status}}{{end}}{{if .training_rank}} rank={{.training_rank}}{{end}}"
        '{{if and .training_attempt (ne .training_attempt "0")}} attempt={{.training_attempt}}{{end}}`'
    )
    return (
        dashboard.AnnotationQuery()
        .name("Starts and ends of runs")
        .datasource(LOKI)
        .icon_color("blue")
        .expr(f'{CHOSEN_RECORDS} |~ "^run[.](started|ended)$" | line_format {line}')
    )
