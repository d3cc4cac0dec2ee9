"""Runs in a Prometheus, by the names that it gives to monitel's metrics."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from monitel.blackbox.folder import FolderError
from monitel_otlp.compare.prometheus_api import PrometheusApi
from monitel_otlp.compare.run import Number, Run, can_be_counted, internal_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel_otlp.compare.prometheus_api import Sample
    from monitel_otlp.config.secret import Secret
    from monitel_otlp.values.run_values import Key

_TARGET, _TIME = "target_info", "training_time_seconds_total"
_GOODPUT, _STEP = "training_goodput_ratio", "training_step"
_STEPS = ("training_steps_total", "training_steps_skipped_total")
_STEP_COUNT = "training_step_duration_count_total"
_STEP_SUMS = ("training_step_duration_sum_seconds", "training_step_duration_sum_seconds_total")
_RANK_ZERO = 'training_rank=~"0|"'
_LOOKBACK = "4m"  # below Prometheus's 5 minutes, after which a series without samples ends
_LISTED = 20

#: Labels that Prometheus makes of the resource if its configuration promotes them.
_OF_RESOURCE = {
    *("job", "instance", "service_name", "service_namespace", "service_version", "service_instance_id"),
    *("deployment_environment_name", "host_name", "k8s_pod_name", "training_run_id", "training_attempt"),
    *("training_rank", "training_local_rank", "training_world_size", "training_node_rank"),
}


def find_in_prometheus(url: str, names: Sequence[str], days: float, headers: Mapping[str, Secret[str]]) -> list[Run]:
    """Return the runs with some ids.

    Args:
        url: The base URL of the server.
        names: The run ids.
        days: How far to look back.
        headers: Sent with each query, by names in lower case.

    Raises:
        FolderError: The server cannot be asked, or it has no such run.
        ValueError: The URL is not one of HTTP.
    """
    prometheus = PrometheusApi(url, headers)
    period = f"{max(round(days * 86_400), 1)}s"
    return [_find(prometheus, name, period) for name in names]


def _find(prometheus: PrometheusApi, name: str, period: str) -> Run:
    of_run = f"training_run_id={_quoted(name)}"
    found = prometheus.query(f"last_over_time({{{of_run}, {_RANK_ZERO}}}[{period}])")
    targets = [each for each in found if each.labels.get("__name__") == _TARGET]
    if not found:
        raise FolderError(_unknown(prometheus, name, period))
    if len(targets) == len(found):  # the run id is a label of target_info only
        instances = "|".join(sorted({re.escape(each.labels.get("instance", "")) for each in targets}))
        found = prometheus.query(f"last_over_time({{instance=~{_quoted(instances)}}}[{period}])")
    named = f'__name__=~"{_TARGET}|{_TIME}", {of_run}, {_RANK_ZERO}'
    now = f"timestamp({{{named}}})"  # the steps of a subquery are multiples of its step: the last one is in the past
    times = {
        each.labels.get("instance", ""): each.value
        for times in (f"max_over_time({now}[{period}:{_LOOKBACK}])", now)
        for each in _counted(prometheus.query(f"max by (instance) ({times})"))
    }
    return _run(name, prometheus.public_url, found, times)


def _unknown(prometheus: PrometheusApi, name: str, period: str) -> str:
    known = prometheus.query(f'count by (training_run_id) (last_over_time({{training_run_id!=""}}[{period}]))')
    runs = sorted(each.labels.get("training_run_id", "") for each in known)
    if not runs:
        return f"there is no run {name!r} in {prometheus.public_url}, and no other series with a training_run_id"
    listed = [repr(run) for run in runs[:_LISTED]]
    more = [f"and {len(runs) - _LISTED:,} more"] if len(runs) > _LISTED else []
    return "\n  ".join([f"there is no run {name!r} in {prometheus.public_url}; the runs are", *listed, *more])


def _run(name: str, source: str, found: Sequence[Sample], times: Mapping[str, float]) -> Run:
    """Return a run from the last values of its series.

    Args:
        name: The run id.
        source: The address of the server.
        found: The series of rank zero.
        times: The time of the last sample of each process, Unix seconds, by the label ``instance``.
    """
    ordered = sorted(found, key=lambda each: times.get(each.labels.get("instance", ""), 0.0))
    of_metric: defaultdict[str, list[Sample]] = defaultdict(list)
    for each in ordered:
        of_metric[each.labels.get("__name__", "")].append(each)
    target = of_metric[_TARGET][-1].labels if of_metric[_TARGET] else {}
    resource = {*_OF_RESOURCE, *target, "__name__"}
    activities: defaultdict[str, int] = defaultdict(int)
    for each in _counted(of_metric[_TIME]):
        activities[each.labels.get("training_activity", "")] += round(each.value * 1e9)
    elapsed_ns = sum(activities.values())
    last_ns = round(max(times.values()) * 1e9) if times else None
    steps = [each.value for metric in _STEPS for each in _counted(of_metric[metric])]
    goodput, step = of_metric[_GOODPUT], _counted(of_metric[_STEP])
    count = sum(each.value for each in _counted(of_metric[_STEP_COUNT]))
    seconds = sum(each.value for metric in _STEP_SUMS for each in of_metric[metric])
    labels = {**{key: value for key, value in ordered[-1].labels.items() if key in _OF_RESOURCE}, **target}
    return Run(
        label=name,
        source=source,
        started_ns=last_ns - elapsed_ns if last_ns is not None and elapsed_ns else None,
        last_ns=last_ns,
        attempts=len({each.labels.get("instance") for each in of_metric[_TIME]}) or None,
        activities=dict(activities),
        goodput=goodput[-1].value if goodput else None,
        steps=int(sum(steps)) if steps else None,
        last_step=int(step[-1].value) if step else None,
        timed=(int(count), seconds),
        numbers=_numbers(ordered, resource),
        attributes={key: value for key, value in labels.items() if key != "__name__"},
    )


def _numbers(ordered: Sequence[Sample], resource: set[str]) -> dict[Key, Number]:
    """Return the last value of each gauge, and the totals of all attempts.

    Args:
        ordered: The series, those of the last process at the end.
        resource: Labels that belong to the resource.
    """
    found: dict[Key, Number] = {}
    hidden = {_TARGET, _STEP, *internal_metrics({each.labels.get("__name__", "") for each in ordered})}
    for each in ordered:
        name = each.labels.get("__name__", "")
        if not name or ":" in name or name in hidden:
            continue  # one of a recording rule, or not a value of the training
        attributes = {
            label: value
            for label, value in each.labels.items()
            if label not in resource and not label.startswith("otel_scope_")
        }
        key = name, tuple(sorted(attributes.items()))
        is_total = name.endswith("_total")
        before = found[key].value if is_total and key in found else 0
        found[key] = Number(each.value + before, "", is_total)
    return found


def _counted(found: Sequence[Sample]) -> list[Sample]:
    return [each for each in found if can_be_counted(each.value)]


def _quoted(text: str) -> str:
    """Return a text as PromQL has it."""
    return json.dumps(text, ensure_ascii=False)
