"""What can be chosen at the top of a board."""

from __future__ import annotations

from boards.queries import PROMETHEUS, RUN
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model


def choice(name: str, label: str, description: str, *, regex: str = "", **values: str) -> dashboard.QueryVariable:
    """A variable of which one value is chosen: the values of ``label`` that the series of ``metric`` have.

    Args:
        name: Of the variable.
        label: What it is called on the board.
        description: Shown beside it.
        regex: The part of a value that counts, in its group.
        values: ``metric`` and ``of``: the selector of the series, and their label; ``default``: chosen at first.
    """
    asked = f"label_values({values['metric']}, {values['of']})"
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(PROMETHEUS)
        .query({"qryType": 1, "query": asked, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .regex(regex)
        .allow_custom_value(True)
    )
    if default := values.get("default"):
        variable.current(model.VariableOption(text=default, value=default))
    return variable


def choices(name: str, label: str, description: str, *, regex: str = "", **values: str) -> dashboard.QueryVariable:
    """A variable of which several values are chosen, at first all of them; ``all_value`` is what that stands for."""
    variable = (
        choice(name, label, description, regex=regex, **values)
        .multi(True)
        .include_all(True)
        .current(model.VariableOption(text=["All"], value=["$__all"]))
    )
    return variable.all_value(values["all_value"]) if "all_value" in values else variable


def chosen_stat(name: str, label: str, words: str, default: str, description: str) -> dashboard.QueryVariable:
    """A variable that names a Stat: those whose names hold one of ``words``, or any other name by hand."""
    return choice(
        name,
        label,
        f"{description} A name that is not offered can be typed: the Stat's name with _ for each dot.",
        metric=f'{{__name__=~"(?i).*({words}).*_mean(_.+)?", {RUN}}}',
        of="__name__",
        regex="/^(.+)_mean(?:_.+)?$/",
        default=default,
    )


JOB = choice("job", "Job", "The service.name of the training.", metric="monitel_queue_size", of="job")
RUNS = choices(
    "run",
    "Run",
    "The training.run.id, which the launcher sets. A process without one is in All.",
    metric='monitel_queue_size{job=~"$job"}',
    of="training_run_id",
    all_value=".*",
)
