"""One name, one meaning: sources that would have one metric name are sent apart, and one warning has the names."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import busy_encoder

import monitel
from monitel import COUNT, HISTOGRAM, MAX, MEAN, Stat
from monitel_otel import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

SAME = "have the same metric name"


def close_window(name: str, *samples: float, aggregations: Any = (COUNT, MAX)) -> None:
    """Record samples in one window of a Stat."""
    stat = Stat(name, aggregations, 60.0)
    for sample in samples:
        stat.add(sample)
    stat.flush()


def wait(key: str, times: int) -> None:
    """Wait several times."""
    for _ in range(times):
        with monitel.WaitCounter(key).guard():
            pass


class Kind(NamedTuple):
    """A kind of source, with a metric ``x.wait.count``.

    Attributes:
        source: The source as in a warning.
        record: Records it.
        moved: Name of the metric if the source comes second, and the name in the warning.
        value: Value of the metric.
        shape: Kind of the metric, and whether it is monotonic.
    """

    source: str
    record: Callable[[], object]
    moved: tuple[str, str]
    value: float
    shape: tuple[str, bool | None]


KINDS = [
    Kind(
        "Stat 'x.wait'",
        lambda: close_window("x.wait", 1, 2, 3),
        ("x.wait.stat.count", "x.wait.stat"),
        3,
        ("sum", True),
    ),
    Kind(
        "logged number 'x.wait.count'",
        lambda: monitel.log({"x.wait.count": 0.5}),
        ("x.wait.count.number",) * 2,
        0.5,
        ("gauge", None),
    ),
    Kind(
        "counter 'x.wait.count'",
        lambda: monitel.counter("x.wait.count").add(49),
        ("x.wait.count.counter",) * 2,
        49,
        ("sum", True),
    ),
    Kind("wait counter 'x'", lambda: wait("x", 5), ("x_2.wait.count", "x_2"), 5, ("sum", True)),
]


@pytest.mark.parametrize(("first", "second"), list(permutations(KINDS, 2)), ids=lambda kind: kind.source)
def test_two_kinds_of_one_name_are_sent_apart(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, first: Kind, second: Kind
) -> None:
    """The first one keeps the name, the later one gets another, and each metric has only its values and its kind."""
    pipeline = start()
    for kind in (first, second, first, second):
        kind.record()
        assert pipeline.force_flush(DEADLINE)
    for kind, metric in ((first, "x.wait.count"), (second, second.moved[0])):
        points = receiver.points(metric)
        assert {kind.shape} == {(point.kind, point.monotonic) for point in points}
        factor = 1 if kind.shape[0] == "gauge" else 2
        assert factor * kind.value == points[-1].value
        assert {0} == {point.value % kind.value for point in points}
    expected = (
        f"{first.source} and {second.source} {SAME} 'x.wait.count': "
        f"{second.source} is sent as {second.moved[1]!r}. Rename one of them."
    )
    assert [expected] == warnings_with(caplog, SAME)


@pytest.mark.parametrize("names", [("a b", "a_b"), ("a.b", "a_b"), ("A/b", "a_B")])
@pytest.mark.parametrize("kind", ["Stat", "logged number", "counter", "wait counter"])
def test_two_names_that_become_equal_are_sent_apart(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, names: tuple[str, str], kind: str
) -> None:
    """This includes names that differ in separators or in case. The description of a changed name has the original."""
    moved = f"{names[1]}_2"
    pipeline = start()
    for name, number in zip(names, (3, 5), strict=True):
        if kind == "Stat":
            close_window(name, *[1] * number)
        elif kind == "logged number":
            monitel.log({name: number})
        elif kind == "counter":
            monitel.counter(name).add(number)
        else:
            wait(name, number)
    assert pipeline.force_flush(DEADLINE)
    suffix = {"Stat": ".count", "wait counter": ".wait.count"}.get(kind, "")
    kept = names[0].replace(" ", "_")
    assert ({3}, {5}) == tuple(set(receiver.values(f"{name}{suffix}")) for name in (kept, moved))
    assert all(repr(names[1]) in point.description for point in receiver.points(f"{moved}{suffix}"))
    (warning,) = warnings_with(caplog, SAME)
    assert warning.startswith(f"{kind} {names[0]!r} and {kind} {names[1]!r} {SAME} ")
    assert f": {kind} {names[1]!r} is sent as {moved!r}." in warning


def test_total_of_a_counter_is_a_name(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Prometheus stores a counter ``tokens`` as ``tokens_total``; numbers alone may differ by that."""
    pipeline = start()
    monitel.counter("tokens").add(3)
    monitel.log({"tokens_total": 0.5, "loss": 1.5, "loss_total": 2.5})
    assert pipeline.force_flush(DEADLINE)
    names = ("tokens", "tokens_total.number", "loss", "loss_total")
    assert [{3}, {0.5}, {1.5}, {2.5}] == [set(receiver.values(name)) for name in names]
    assert 1 == len(warnings_with(caplog, SAME))


def test_metrics_of_a_stat_move_together(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A single one collides; all have the new name, including those of a later Stat of the name."""
    pipeline = start()
    monitel.counter("loss.count").add(7)
    assert pipeline.force_flush(DEADLINE)
    close_window("loss", 1.0, 4.0)
    assert pipeline.force_flush(DEADLINE)
    close_window("loss", 2.5, aggregations=[MEAN])
    assert pipeline.force_flush(DEADLINE)
    assert {7} == set(receiver.values("loss.count"))
    assert ([2], [4.0], [2.5]) == tuple(receiver.values(f"loss.stat.{name}") for name in ("count", "max", "mean"))
    assert ([], []) == (receiver.points("loss.max"), receiver.points("loss.mean"))
    assert {"Stat 'loss'"} == {point.description for point in receiver.points("loss.stat.max")}
    assert 1 == len(warnings_with(caplog, SAME))


def test_only_requested_aggregations_take_names(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A number keeps the name of an aggregation that a Stat does not have, even if the Stat gets it later."""
    pipeline = start()
    close_window("loss", 1.0, 4.0)
    monitel.log({"loss": 0.25, "loss.p50": 0.5, "loss.mean": 0.75})
    monitel.counter("loss.histogram").add(2)
    assert pipeline.force_flush(DEADLINE)
    assert [] == warnings_with(caplog, SAME)
    close_window("loss", 3.0, aggregations=[COUNT, HISTOGRAM])
    assert pipeline.force_flush(DEADLINE)
    names = ("loss", "loss.p50", "loss.mean", "loss.count", "loss.stat.count", "loss.stat.p50")
    assert [[0.25], [0.5], [0.75], [2], [1], [3.0]] == [
        receiver.values(name) if name != "loss.stat.p50" else [round(each) for each in receiver.values(name)]
        for name in names
    ]
    assert {2} == set(receiver.values("loss.histogram"))
    assert 1 == len(warnings_with(caplog, SAME))


def test_names_of_monitel_are_taken(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The step and the metrics of the pipeline keep their names, even if the application's metric comes first."""
    monitel.log({"ignored": 1.0, "name": "left out"})
    pipeline = start()
    monitel.log({"training.step": 9.5, "name": "left out"})
    monitel.log({"training.step": 9.5})
    assert pipeline.force_flush(DEADLINE)
    assert pipeline.force_flush(DEADLINE)
    monitel.set_step(3)
    assert pipeline.force_flush(DEADLINE)
    own = {point.metric for point in receiver.all_points() if point.metric.startswith("monitel.")}
    assert len(own) >= 6
    for name in own:
        monitel.counter(name).add(5)
    assert pipeline.force_flush(DEADLINE)
    assert ({3}, {9.5}) == (set(receiver.values("training.step")), set(receiver.values("training.step.number")))
    for name in own:
        assert {5} == set(receiver.values(f"{name}.counter")), name
        assert len(warnings_with(caplog, f"metric of monitel {name!r} and counter {name!r} {SAME}")) == 1


def test_second_pipeline_has_the_same_names(receiver: Receiver, start: Start) -> None:
    """Even if the later source is the first one that it sees."""

    def counter() -> None:
        monitel.counter("x").add(49)

    def number() -> None:
        monitel.log({"x": 0.5})

    for records in ((number, counter), (counter, number)):
        pipeline = start()
        for record in records:
            record()
            assert pipeline.force_flush(DEADLINE)
        pipeline.shutdown()
    assert ({0.5}, {49, 98}) == (set(receiver.values("x")), set(receiver.values("x.counter")))


def test_names_survive_raw_segments(receiver: Receiver, start: Start, run: Run) -> None:
    """Windows that are on disk before they are encoded, and are replayed by another process, have the same names."""
    pipeline = start()
    for name in ("a b", "a_b"):
        close_window(name, 1.0)
    assert pipeline.force_flush(DEADLINE)
    with busy_encoder(pipeline):
        close_window("a_b", 2.0)
        close_window("a b", 4.0)
        assert not pipeline.shutdown(0.3)
    run("-m", "monitel_otlp", "replay", pipeline.spool_dir, "--endpoint", receiver.url)
    assert ([1.0, 4.0], [1.0, 2.0]) == (receiver.values("a_b.max"), receiver.values("a_b_2.max"))
    assert ({"Stat 'a b'"}, {"Stat 'a_b'"}) == tuple(
        {point.description for point in receiver.points(name)} for name in ("a_b.max", "a_b_2.max")
    )


def test_export_does_not_decide_which_source_is_first(receiver: Receiver, start: Start) -> None:
    """A counter has its name from its creation on, although it is read at the next export."""
    pipeline = start()
    for name in ("a", "b"):
        monitel.counter(name).add(3)
        if name == "a":
            assert pipeline.force_flush(DEADLINE)
        monitel.log({name: 0.5})
    wait("c", 2)
    close_window("c.wait", 1)
    assert pipeline.force_flush(DEADLINE)
    for name in ("a", "b"):
        assert ({3}, {0.5}) == (set(receiver.values(name)), set(receiver.values(f"{name}.number")))
    assert (2, 1) == (receiver.values("c.wait.count")[-1], receiver.values("c.wait.stat.count")[-1])


def test_many_names_that_become_equal_are_numbered(caplog: pytest.LogCaptureFixture) -> None:
    """Each is free, even if a source has such a name already."""
    assert "x_2" == NAMES.of_counter("x_2")
    names = [NAMES.of_counter(name) for name in ("x", "X", "x_", "x.")]
    assert ["x", "X_3", "x__4", "x._5"] == names
    assert 3 == len(warnings_with(caplog, SAME))
