"""The checker of the fuzzer finds every loss, double and damage that is put into what a healthy job has sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.nightly.kills.arrivals import ProcessId, decode
from tests.nightly.kills.backend import Arrival, read_arrivals, running_backend
from tests.nightly.kills.checker import compare
from tests.nightly.kills.history import read_history
from tests.nightly.kills.nursery import running_nursery
from tests.support.receiver import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.nightly.kills.history import History

    Change = Callable[[Any], object]

_SIGNALS = ("metrics", "logs", "traces")


class Healthy:
    """The operations of a job that nobody killed, and its telemetry at the backend."""

    def __init__(self, history: History, arrivals: list[Arrival], process: ProcessId) -> None:
        self.history = history
        self.arrivals = arrivals
        self._process = process

    def problems(self, arrivals: list[Arrival] | None = None, died_ns: int | None = None) -> list[str]:
        """Return what the checker finds, by default in what has arrived."""
        found = decode(self.arrivals if arrivals is None else arrivals)
        return compare(self.history, found[self._process], died_ns).problems

    def changed(self, signal: str, change: Change) -> list[Arrival]:
        """Return the arrivals with a change to the first request of a signal that it changes."""
        arrivals = list(self.arrivals)
        for number, arrival in enumerate(arrivals):
            message = MESSAGES[signal][0]()
            if arrival.signal == signal:
                message.ParseFromString(arrival.body)
                change(message)
                if (body := message.SerializeToString()) != message.FromString(arrival.body).SerializeToString():
                    arrivals[number] = arrival._replace(body=body)
                    return arrivals
        raise AssertionError("nothing was changed")


@pytest.fixture(scope="module", params=["cumulative", "delta"])
def healthy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """A job that ends itself beside a healthy backend."""
    folder: Path = tmp_path_factory.mktemp("healthy")
    with running_backend(folder / "arrivals") as backend, running_nursery(MONITEL_RUN_EVENTS="0") as nursery:
        nursery.start(
            role="job",
            number=1,
            seed=5,
            log=str(folder / "log"),
            folder=str(folder),
            threads=2,
            tiles=3,
            life=1.2,
            ending="shutdown",
            burst=0,
            forks=False,
            busy=True,
            environment={
                "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": request.param,
                "MONITEL_BLACK_BOX_DIR": str(folder),
            },
            options={
                "endpoint": backend.url,
                "spool_dir": str(folder / "spool"),
                "export_interval": 0.2,
                "spans": True,
                "distributions": "both",
            },
            kill_after=30.0,
        )
        death = nursery.wait()
    assert 0 == death.status
    (history,) = folder.glob("*.history")
    return Healthy(read_history(history), read_arrivals(folder / "arrivals"), ProcessId(1, death.pid))


def test_healthy_job_has_no_problem(healthy: Healthy) -> None:
    """The job has recorded something of every kind, and all of it has arrived."""
    assert [] == healthy.problems()
    recorded = {source.partition(".")[0] for source, done_ns in healthy.history.done_ns.items() if done_ns}
    assert {"tile0", "tile1", "tile2", "short", "shared", "event", "number", "counter", "range"} == recorded


@pytest.mark.parametrize("signal", _SIGNALS)
def test_lost_request_is_found(healthy: Healthy, signal: str) -> None:
    """Whichever request is missing that has an item of the job."""
    item = {"metrics": b"tile", "logs": b"event."}.get(signal, b"")
    for number, arrival in enumerate(healthy.arrivals):
        if arrival.signal == signal and item in arrival.body:
            left = [*healthy.arrivals[:number], *healthy.arrivals[number + 1 :]]
            assert healthy.problems(left), number


@pytest.mark.parametrize("signal", _SIGNALS)
def test_request_may_arrive_again_byte_for_byte(healthy: Healthy, signal: str) -> None:
    """One request of each signal may; a second one is a problem."""
    requests = [arrival for arrival in healthy.arrivals if arrival.signal == signal]
    assert [] == healthy.problems([*healthy.arrivals, requests[0]])
    assert [f"2 requests of {signal} arrived twice, expected at most 1"] == healthy.problems(
        [*healthy.arrivals, requests[0], requests[-1]]
    )


@pytest.mark.parametrize("signal", _SIGNALS)
def test_request_with_other_bytes_is_a_double(healthy: Healthy, signal: str) -> None:
    """Items that arrive again in a request with other bytes have arrived twice."""

    def change(message: Any) -> None:
        next(iter(getattr(message, message.DESCRIPTOR.fields[0].name))).schema_url = "again"

    changed = healthy.changed(signal, change)
    doubled = [each for each, before in zip(changed, healthy.arrivals, strict=True) if each != before]
    assert healthy.problems([*healthy.arrivals, *doubled])


def _points(message: Any, name: str) -> Any:
    """Return the points of a metric in a request; an empty list if there is none."""
    for each in message.resource_metrics:
        for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
            if metric.name == name:
                return getattr(metric, metric.WhichOneof("data")).data_points
    return []


def _drop_last(suffix: str) -> Change:
    return lambda message: [points.pop() for points in [_points(message, f"tile0.0.{suffix}")] if points]


def _raise_last(suffix: str) -> Change:
    def change(message: Any) -> None:
        for point in _points(message, f"tile0.0.{suffix}")[-1:]:
            name = "count" if suffix == "histogram" else point.WhichOneof("value")
            setattr(point, name, getattr(point, name) + 1)

    return change


@pytest.mark.parametrize("suffix", ["count", "sum", "min", "max", "value", "mean", "histogram"])
@pytest.mark.parametrize("damage", [_drop_last, _raise_last])
def test_damaged_window_is_found(healthy: Healthy, damage: Callable[[str], Change], suffix: str) -> None:
    """A window without one of its points, or with another number in one of them."""
    assert healthy.problems(healthy.changed("metrics", damage(suffix)))


def test_window_at_another_time_is_found(healthy: Healthy) -> None:
    """A window that arrives a second time, a millisecond later."""

    def change(message: Any) -> None:
        for each in message.resource_metrics:
            for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
                points = getattr(metric, metric.WhichOneof("data")).data_points
                if metric.name.startswith("tile0.0.") and points:
                    last = points[-1]
                    points.add().CopyFrom(last)
                    points[-1].time_unix_nano += 1_000_000

    assert any("follows the sample" in problem for problem in healthy.problems(healthy.changed("metrics", change)))


def test_other_start_of_totals_is_found(healthy: Healthy) -> None:
    """Totals that begin again are another series for a backend."""

    def change(message: Any) -> None:
        for point in _points(message, "tile1.0.sum")[-1:]:  # cumulative in any case
            point.start_time_unix_nano += 1

    assert healthy.problems(healthy.changed("metrics", change))


def test_damaged_event_is_found(healthy: Healthy) -> None:
    """An attribute of an event that has changed."""

    def change(message: Any) -> None:
        for record in (
            each for logs in message.resource_logs for scope in logs.scope_logs for each in scope.log_records
        ):
            if record.event_name.startswith("event."):
                next(each for each in record.attributes if each.key == "square").value.double_value = -1.0

    assert any("is damaged" in problem for problem in healthy.problems(healthy.changed("logs", change)))


def test_age_decides_whether_samples_may_be_lost(healthy: Healthy) -> None:
    """The last windows may be lost unless they are too old; an event may not."""
    history = replace_times(healthy.history)
    rest = Healthy(history, healthy.arrivals, healthy._process)
    last_ns = max(done_ns[-1] for done_ns in history.done_ns.values() if done_ns)
    without = [arrival for arrival in healthy.arrivals if arrival.signal != "metrics"]
    assert [] == rest.problems(without, died_ns=last_ns)
    assert rest.problems(without, died_ns=last_ns + 2 * 10**9)
    assert rest.problems([arrival for arrival in healthy.arrivals if arrival.signal != "logs"], died_ns=last_ns)


def replace_times(history: History) -> History:
    """Return the history of a process that was never late and that did everything within a second."""
    latest = max(done_ns[-1] for done_ns in history.done_ns.values() if done_ns)
    done_ns = {source: [max(each, latest - 10**9) for each in times] for source, times in history.done_ns.items()}
    return history._replace(lateness_ns=0, awake_ns=0, done_ns=done_ns)
