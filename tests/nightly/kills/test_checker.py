"""The checker of the campaign finds every loss, double and damage that is put into what a healthy job has sent."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.nightly.kills.campaign import Backend, start
from tests.nightly.kills.checker import Arrival, ProcessId, compare, decode
from tests.nightly.kills.history import History, read_history
from tests.nightly.kills.job import Job
from tests.support.inbox import TEMPORALITY
from tests.support.receiver import MESSAGES

Change = Callable[[Any], object]

_KINDS = {"tile0", "tile1", "tile2", "short", "shared", "event", "number", "counter", "range"}


class Healthy(NamedTuple):
    history: History
    arrivals: list[Arrival]
    process: ProcessId

    @property
    def kinds(self) -> set[str]:
        return {source.partition(".")[0] for source, done_ns in self.history.done_ns.items() if done_ns}

    def problems(self, arrivals: list[Arrival], died_ns: int | None = None) -> list[str]:
        return compare(self.history, decode(arrivals)[self.process], died_ns).problems

    def changed(self, change: Change) -> list[Arrival]:
        """Return the arrivals with a change in the first request of metrics that has what is to be changed."""
        for number, (signal, body, _) in enumerate(self.arrivals):
            if signal == "metrics":
                change(message := MESSAGES[signal][0].FromString(body))
                if (other := message.SerializeToString()) != message.FromString(body).SerializeToString():
                    return [*self.arrivals[:number], Arrival(signal, other), *self.arrivals[number + 1 :]]
        raise AssertionError("nothing was changed")


@pytest.fixture(scope="module", params=["cumulative", "delta"])
def healthy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """A job that ends itself beside a healthy backend; on a busy machine one with a longer life."""
    for life in (1.2, 5.0, 20.0, 60.0):
        found = _live(tmp_path_factory.mktemp("healthy"), request.param, life)
        if found.kinds == _KINDS:
            break
    return found


def _live(folder: Path, temporality: str, life: float) -> Healthy:
    backend = Backend(folder / "arrivals")
    job = Job(folder, 1, 5, threads=2, kill_after=60.0, life=life, busy=True)
    job.environment = {TEMPORALITY: temporality, "MONITEL_BLACK_BOX_DIR": str(folder)}
    job.options = {"endpoint": backend.url, "spool_dir": str(folder / "spool"), "export_interval": 0.2, "spans": True}
    job.options["distributions"] = "both"

    def run() -> None:
        job.run()
        os._exit(0)

    child = start(run)
    assert 0 == os.waitpid(child, 0)[1]
    backend.close()
    (history,) = folder.glob("*.history")
    return Healthy(read_history(history), [*backend.arrivals()], ProcessId(1, child))


def test_healthy_job_has_no_problem(healthy: Healthy) -> None:
    assert [] == healthy.problems(healthy.arrivals)
    assert _KINDS == healthy.kinds


@pytest.mark.parametrize("signal", MESSAGES)
def test_lost_or_doubled_request_is_found(healthy: Healthy, signal: str) -> None:
    """Any request that is missing; two that arrive again."""
    item = {"metrics": b"tile", "logs": b"event."}.get(signal, b"")
    requests = [arrival for arrival in healthy.arrivals if arrival.signal == signal]
    for arrival in requests:
        if item in arrival.body:
            assert healthy.problems([each for each in healthy.arrivals if each is not arrival])
    assert [] == healthy.problems([*healthy.arrivals, requests[0]])
    assert healthy.problems([*healthy.arrivals, requests[0], requests[-1]])


def _points(message: Any, name: str) -> Any:
    metrics = [metric for each in message.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    found = (getattr(each, each.WhichOneof("data")).data_points for each in metrics if each.name == name)
    return next(found, [])


@pytest.mark.parametrize("suffix", ["count", "sum", "min", "max", "value", "mean", "histogram"])
def test_damaged_window_is_found(healthy: Healthy, suffix: str) -> None:
    """A window without one of its points, or with another number in one of them, or at two times."""

    def drop(message: Any) -> None:
        del _points(message, f"tile0.0.{suffix}")[-1:]

    def increase(message: Any) -> None:
        for point in _points(message, f"tile0.0.{suffix}")[-1:]:
            name = "count" if suffix == "histogram" else point.WhichOneof("value")
            setattr(point, name, getattr(point, name) + 1)

    def move(message: Any) -> None:
        for point in _points(message, f"tile0.0.{suffix}"):
            point.time_unix_nano = 1

    for change in (drop, increase):
        assert healthy.problems(healthy.changed(change))
    moved = [each for each in healthy.changed(move) if each not in healthy.arrivals]
    assert healthy.problems([*healthy.arrivals, *moved])


def test_age_decides_whether_samples_may_be_lost(healthy: Healthy) -> None:
    """The last windows may be lost unless they are too old; an event may not."""
    latest = max(done_ns[-1] for done_ns in healthy.history.done_ns.values() if done_ns)
    done_ns = {name: [max(each, latest - 10**9) for each in times] for name, times in healthy.history.done_ns.items()}
    rest = healthy._replace(history=healthy.history._replace(awake_ns=[], waited_ns=[], done_ns=done_ns))
    without = [arrival for arrival in healthy.arrivals if arrival[0] != "metrics"]
    assert [] == rest.problems(without, died_ns=latest)
    assert rest.problems(without, died_ns=latest + 2 * 10**9)
    assert rest.problems([arrival for arrival in healthy.arrivals if arrival[0] != "logs"], died_ns=latest)
