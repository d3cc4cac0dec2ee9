"""PromQL and LogQL expressions of the boards.

Variables hold the names of metrics in Prometheus: ``train_loss`` of ``monitel.log({"train.loss": loss})``, and
``step_time_mean_seconds`` of the Stat ``step.time``.
"""

from __future__ import annotations

from typing import TypeAlias

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models.dashboard import DataSourceRef

Query: TypeAlias = prometheus.Dataquery

PROMETHEUS = DataSourceRef("prometheus", "prometheus")

#: The labels that select the series of every query. "All" is ``.*``, so that a process without a namespace, a run or a
#: rank counts. Prometheus' label ``job`` is not used: it is ``namespace/name``, which Loki and Tempo do not have.
RUN = 'service_name="$service", service_namespace=~"$namespace", training_run_id=~"$run"'
RANKS = f'{RUN}, training_rank=~"$rank"'
ALIVE = f"monitel_queue_size{{{RUN}}}"  # every process sends it with all metrics, at least once a minute

#: Log records of the chosen runs, in Loki.
CHOSEN_RECORDS = '{service_name="$service", service_namespace=~"$namespace"} | training_run_id=~"$run"'

#: The labels that each aggregation keeps, so that two services of one name are never added up.
OF_SERVICE = "service_namespace"
OF_RUN = f"{OF_SERVICE}, training_run_id"

#: Legends.
SERVICE = "{{service_namespace}}"
WHO = f"{SERVICE} {{{{training_run_id}}}}"
RANK_OF = f"{WHO} rank {{{{training_rank}}}}"


def chosen(variable: str, labels: str = RUN) -> str:
    """Return the selector of the metric that a variable names; with an empty variable it is valid and finds nothing."""
    return f'{{__name__="${variable}", __name__!="", {labels}}}'


def query(expression: str, legend: str = "", *, every: str = "1s") -> Query:
    """A line for each series; ``every`` is the shortest step: a second for gauges, a minute for what has a rate."""
    return prometheus.Dataquery().expr(expression).legend_format(legend).range().interval(every).datasource(PROMETHEUS)


def rate(expression: str, legend: str) -> Query:
    """Return a panel whose ``$__rate_interval`` spans at least four windows of a minute."""
    return query(expression, legend, every="1m")


def spread(of_rank: str) -> list[Query]:
    """Return median, highest and lowest of a rate over the ranks of a run."""
    return [
        rate(f"quantile by ({OF_RUN}) (0.5, {of_rank})", f"{WHO} median"),
        rate(f"max by ({OF_RUN}) ({of_rank})", f"{WHO} highest"),
        rate(f"min by ({OF_RUN}) ({of_rank})", f"{WHO} lowest"),
    ]


def outstanding(
    expression: str, legend: str = f"{RANK_OF} {{{{$by}}}}", *, most: str = "topk", every: str = "1s"
) -> Query:
    """Ten ranks, the same ones over the whole time: those that stand out at its end."""
    at_the_end = f"last_over_time({expression}[$__range:1m] @ end())"
    return query(f"{expression} and {most}(10, {at_the_end})", legend, every=every)


def now(expression: str, legend: str = "") -> Query:
    """The last value only."""
    return prometheus.Dataquery().expr(expression).legend_format(legend).instant().datasource(PROMETHEUS).ref_id("A")
