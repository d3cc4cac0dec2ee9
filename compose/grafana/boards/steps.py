"""Panels with the training step on the x-axis.

A chart has a curve for each run, attempt and value of "Split by". Prometheus stores values by time only, so a chart has
two queries: the step that the run had reached at each time, and the value at this time. Their results are tables with
equal times and labels, which Grafana merges into one row per point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import common, dashboard, xychart
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.xychart import SeriesMapping, XYShowMode

from boards.panels import half_a_row
from boards.queries import OF_RUN, RUN, query

if TYPE_CHECKING:
    from boards.queries import Query

#: The labels of a curve.
OF_CURVE = f"{OF_RUN}, training_attempt, $by"

# The columns of the two queries: a transformation renames them, and another one may lose the new names.
_STEP, _VALUE = "/^(step|Value #A)/", "/^(value|Value #B)/"

_OF_ATTEMPT = f"{OF_RUN}, training_attempt"
_NAME = '"curve", " ", "service_namespace", "training_run_id", "$by", "training_attempt"'


def by_step(title: str, unit: str, description: str, value: str, *, every: str = "1s") -> xychart.Panel:
    """Return a chart of values over training steps.

    Args:
        title: The panel's title.
        unit: The unit of the values.
        description: Shown beside the title.
        value: An expression with one series per curve, aggregated by :data:`OF_CURVE`.
        every: The shortest time between two points of a curve.
    """
    reached = f"max by ({_OF_ATTEMPT}) (training_step{{{RUN}}})"
    step = f"group by ({OF_CURVE}) ({value}) * on ({_OF_ATTEMPT}) group_left () {reached}"
    x, y = (xychart.MatcherConfig().id("byRegexp").options(name) for name in (_STEP, _VALUE))
    series = xychart.XYSeriesConfig().x(xychart.XychartXYSeriesConfigX().matcher(x))
    return (
        half_a_row(xychart.Panel(), title, unit, f"{description} One curve per run, attempt and value of Split by.")
        .targets([_table(step, every).ref_id("A"), _table(value, every).ref_id("B")])
        .transformations(
            [
                model.DataTransformerConfig("merge", options={}),
                model.DataTransformerConfig(
                    "organize",
                    options={
                        "excludeByName": {"Time": True},
                        "renameByName": {"Value #A": "step", "Value #B": "value"},
                    },
                ),
                model.DataTransformerConfig("sortBy", options={"sort": [{"field": "step"}]}),
                model.DataTransformerConfig(
                    "partitionByValues",
                    options={"fields": ["curve"], "keepFields": False, "naming": {"asLabels": True}},
                ),
            ]
        )
        .mapping(SeriesMapping.AUTO)
        .series([series.y(xychart.XychartXYSeriesConfigY().matcher(y))])
        .override_by_regexp(_STEP, [model.DynamicConfigValue("unit", "none")])
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .show(XYShowMode.LINES)
        .legend(
            common.VizLegendOptions()
            .display_mode(looks.LegendDisplayMode.LIST)
            .placement(looks.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )


def _table(expression: str, every: str) -> Query:
    return query(f"label_join({expression}, {_NAME})", every=every).format(PromQueryFormat.TABLE)
