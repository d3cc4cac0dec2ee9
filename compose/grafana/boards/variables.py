"""Variables of the boards: the choices at their top."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from boards.queries import PROMETHEUS, RUN


def choice(
    name: str, label: str, description: str, *, metric: str, of: str, regex: str = "", default: str = ""
) -> dashboard.QueryVariable:
    """A variable of which one value is chosen: one of the values that a label has.

    Args:
        name: Of the variable.
        label: What it is called on the board.
        description: Shown beside it.
        metric: The selector of the series.
        of: Their label.
        regex: The part of a value that counts, in its group.
        default: Chosen at first, if it is there.
    """
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(PROMETHEUS)
        .query(
            {
                "qryType": 1,
                "query": f"label_values({metric}, {of})",
                "refId": "PrometheusVariableQueryEditor-VariableQuery",
            }
        )
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .regex(regex)
        .allow_custom_value(True)
    )
    return variable.current(model.VariableOption(text=default, value=default)) if default else variable


def several(variable: dashboard.QueryVariable) -> dashboard.QueryVariable:
    """Return a variable that takes several values; at first all are chosen."""
    return variable.multi(True).include_all(True).current(model.VariableOption(text=["All"], value=["$__all"]))


def metric(name: str, label: str, pattern: str, default: str, description: str) -> dashboard.QueryVariable:
    """Return a variable that names a metric: one that ``pattern`` matches, or any by hand."""
    return choice(
        name,
        label,
        f"{description} You can type any other metric, by its name in Prometheus.",
        metric=f'{{__name__=~"(?i){pattern}", __name__!~"{EXCLUDED}", {RUN}}}',
        of="__name__",
        default=default,
    )


#: Labels of a process by which curves can be split.
OF_PROCESS = ("host_name", "k8s_pod_name", "training_node_rank", "training_attempt")


def split_by(*labels: str) -> dashboard.CustomVariable:
    """Return the variable that chooses the label by which curves are split; at first the first of these."""
    return (
        dashboard.CustomVariable("by")
        .label("Split by")
        .description("A curve for each value of this label: an attribute of your metrics, or a label of the process.")
        .values(",".join(labels))
        .current(model.VariableOption(text=labels[0], value=labels[0]))
        .allow_custom_value(True)
    )


#: Metrics of a Stat other than its mean, counters, and metrics that describe the telemetry.
EXCLUDED = (
    r".*_(value|count|sum|max|min|stddev|p[0-9]+|histogram|total|bucket|wait_active)(_(seconds|bytes|ratio|per_second|total))*"
    r"|.+_histogram_.+|(monitel_|ALERTS).*|target_info|.*:.*"
)

#: Prometheus does not store the kind of a metric, so this offers all but those that are certainly no logged numbers.
NUMBERS = several(
    choice(
        "number",
        "Logged numbers",
        "Numbers of monitel.log().",
        metric=f'{{__name__=~".+", __name__!~"{EXCLUDED}|.+_mean(_.+)?|(training|process|system|hw)_.*", {RUN}}}',
        of="__name__",
    )
)
NAMESPACES = several(
    choice(
        "namespace",
        "Namespace",
        "The service.namespace. A process without one is in All.",
        metric="monitel_queue_size",
        of="service_namespace",
    )
).all_value(".*")
SERVICES = choice(
    "service",
    "Service",
    "The service.name of the training.",
    metric='monitel_queue_size{service_namespace=~"$namespace"}',
    of="service_name",
)
RUNS = several(
    choice(
        "run",
        "Run",
        "The training.run.id, which the launcher sets. A process without one is in All.",
        metric='monitel_queue_size{service_name="$service", service_namespace=~"$namespace"}',
        of="training_run_id",
    )
).all_value(".*")

#: The variables at the beginning of every board: metrics, log records and spans have these labels.
SELECTION = (NAMESPACES, SERVICES, RUNS)
