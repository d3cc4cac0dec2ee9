"""PromQL and LogQL expressions of the boards.

A Stat is named by its user, and Prometheus appends the aggregation and the unit: ``step.time`` in seconds is
``step_time_mean_seconds``. So variables hold the part before ``_mean``, and :func:`stat` finds the rest.
"""

from __future__ import annotations

from typing import TypeAlias

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models.dashboard import DataSourceRef

Query: TypeAlias = prometheus.Dataquery

PROMETHEUS = DataSourceRef("prometheus", "prometheus")

#: The labels by which every query is narrowed. "All" is ``.*``, so that a process without a run or a rank counts.
RUN = 'job=~"$job", training_run_id=~"$run"'
RANKS = f'{RUN}, training_rank=~"$rank"'
ALIVE = f"monitel_queue_size{{{RUN}}}"  # every process sends it at every export

#: Legends.
WHO = "{{training_run_id}}"
RANK_OF = f"{WHO} rank {{{{training_rank}}}}"


def stat(variable: str, labels: str = RUN, what: str = "mean") -> str:
    """The means of the Stat that a variable names, or ``what`` else there is of it, whatever its unit is."""
    return f'{{__name__=~"${{{variable}}}_{what}(_.+)?", {labels}}}'


def query(expression: str, legend: str = "", *, every: str = "1s") -> Query:
    """A line for each series; ``every`` is the shortest step: a second for gauges, a minute for what has a rate."""
    return prometheus.Dataquery().expr(expression).legend_format(legend).range().interval(every).datasource(PROMETHEUS)


def rate(expression: str, legend: str) -> Query:
    """Return a panel whose ``$__rate_interval`` spans at least four windows of a minute."""
    return query(expression, legend, every="1m")


def outstanding(expression: str, legend: str = f"{RANK_OF} {{{{$by}}}}", *, most: str = "topk") -> Query:
    """Ten ranks, the same ones over the whole time: those that stand out at its end."""
    return query(f"{expression} and {most}(10, last_over_time({expression}[$__range] @ end()))", legend)


def now(expression: str, legend: str = "") -> Query:
    """The last value only."""
    return prometheus.Dataquery().expr(expression).legend_format(legend).instant().datasource(PROMETHEUS).ref_id("A")
