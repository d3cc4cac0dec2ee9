"""One name, one metric: sources that would have the same metric name are sent apart, and one warning has both."""

from collections.abc import Callable
from itertools import pairwise, permutations
from typing import NamedTuple

import pytest
from tests.support.checks import Warned
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, delivered_by
from tests.support.producers import record_window
from tests.support.receiver import Receiver
from tests.unit.promises.reference_tables import code, table

import monitel
from monitel import COUNT, MAX, MEAN
from monitel.testing import ManualClock

SAME = "have the same metric name"


def wait(key: str, times: int) -> None:
    for _ in range(times):
        with monitel.WaitCounter(key).guard():
            pass


class Kind(NamedTuple):
    """A kind of source with a metric ``x.wait.count``: how it is recorded, and its name."""

    record: Callable[[], object]
    name: str
    value: float  # value of the metric, each time that it is recorded
    shape: tuple[str, bool | None]  # kind of the metric, and whether it is monotonic


#: The names of the later source instead of ``x``, by the words of the reference.
MOVED = {row[0]: code(row[1])[0] for row in table("metrics-and-events.md", "the later source")}
COUNT_OF_X = "x.wait.count"
KINDS = {
    "a Stat": Kind(lambda: record_window("x.wait", [COUNT], 1, 2, 3), "x.wait", 3, ("sum", True)),
    "a logged number": Kind(lambda: monitel.log({COUNT_OF_X: 0.5}), COUNT_OF_X, 0.5, ("gauge", None)),
    "a counter": Kind(lambda: monitel.counter(COUNT_OF_X).add(49), COUNT_OF_X, 49, ("sum", True)),
    "a wait counter": Kind(lambda: wait("x", 5), "x", 5, ("sum", True)),
}


@pytest.mark.parametrize(("first", "second"), [*pairwise([*KINDS, next(iter(KINDS))]), *[*permutations(KINDS, 2)][1:2]])
def test_two_kinds_of_one_name_are_sent_apart(
    receiver: Receiver, start: Start, warned: Warned, first: str, second: str
) -> None:
    """The first one keeps the name, the later one has the documented other, and each metric has only its values."""
    one, two = KINDS[first], KINDS[second]
    moved = MOVED[second].replace("x", two.name)
    pipeline = start()
    for kind in (one, two, one, two):
        kind.record()
        assert pipeline.force_flush(DEADLINE)
    suffix = {"a Stat": ".count", "a wait counter": ".wait.count"}.get(second, "")
    for kind, metric in ((one, "x.wait.count"), (two, moved + suffix)):
        points = receiver.points(metric)
        assert {kind.shape} == {(point.kind, point.monotonic) for point in points}
        assert (1 if kind.shape[0] == "gauge" else 2) * kind.value == points[-1].value
        assert {0} == {point.value % kind.value for point in points}
    earlier, later = (f"{kind[2:]} {KINDS[kind].name!r}" for kind in (first, second))
    expected = f"{earlier} and {later} {SAME} 'x.wait.count': {later} is sent as {moved!r}."
    assert [f"{expected} Rename one of them."] == warned(SAME)


@pytest.mark.parametrize("names", [("a b", "a_b"), ("a.b", "A_b")])
@pytest.mark.parametrize("kind", ["Stat", "logged number", "counter", "wait counter"])
def test_two_names_that_become_equal_are_sent_apart(
    receiver: Receiver, start: Start, warned: Warned, names: tuple[str, str], kind: str
) -> None:
    """Names that differ in separators or in case are equal. The description of a changed name has the original."""
    record: dict[str, Callable[[str, int], object]] = {
        "Stat": lambda name, number: record_window(name, [COUNT], *[1] * number),
        "logged number": lambda name, number: monitel.log({name: number}),
        "counter": lambda name, number: monitel.counter(name).add(number),
        "wait counter": wait,
    }
    with delivered_by(start()):
        for name, number in zip(names, (3, 5), strict=True):
            record[kind](name, number)
    suffix = {"Stat": ".count", "wait counter": ".wait.count"}.get(kind, "")
    kept = names[0].replace(" ", "_")
    moved = MOVED["another source of the same kind, such as the Stats `a b` and `a_b`"].replace("x", names[1])
    assert ({3}, {5}) == tuple({*receiver.values(f"{name}{suffix}")} for name in (kept, moved))
    assert all(repr(names[1]) in point.description for point in receiver.points(f"{moved}{suffix}"))
    (warning,) = warned(SAME)
    assert warning.startswith(f"{kind} {names[0]!r} and {kind} {names[1]!r} {SAME} ")


def test_name_that_prometheus_gives_is_taken(receiver: Receiver, start: Start, warned: Warned) -> None:
    """Prometheus adds ``_total`` and the unit in words; numbers alone may differ by that. A numbered name is free."""
    with delivered_by(start()):
        monitel.counter("tokens").add(3)
        monitel.counter("read", unit="By").add(4)
        monitel.counter("read.bytes").add(5)
        for number, name in enumerate(("x_2", "x", "X", "x_", "x.")):
            monitel.counter(name).add(number + 6)
        monitel.counter("total.hits").add(11)
        monitel.counter("speed", unit="By/s").add(12)
        taken = dict.fromkeys(("tokens_total", "hits_total", "speed_bytes_per_second_total"), 0.5)
        monitel.log({**taken, "loss": 1.5, "loss_total": 2.5})
    names = ("tokens", "total.hits", "speed", "read", "read.bytes_2", "loss", "loss_total")
    assert [{3}, {11}, {12}, {4}, {5}, {1.5}, {2.5}] == [{*receiver.values(name)} for name in names]
    assert [{0.5}] * 3 == [{*receiver.values(f"{name}.number")} for name in taken]
    numbered = ("x_2", "x", "X_3", "x__4", "x._5")
    assert [{6}, {7}, {8}, {9}, {10}] == [{*receiver.values(name)} for name in numbered]
    assert 4 + 3 == len(warned(SAME))


def test_metrics_of_a_stat_move_together(receiver: Receiver, start: Start, warned: Warned) -> None:
    """A single one collides; all have the new name, including those of a later Stat of the name."""
    with delivered_by(start()) as pipeline:
        monitel.counter("loss.count").add(7)
        monitel.log({"loss": 0.25, "loss.p50": 0.5})  # the Stat has no such metrics
        record_window("loss", [COUNT, MAX], 1.0, 4.0)
    record_window("loss", [MEAN], 2.5)
    assert pipeline.force_flush(DEADLINE)
    assert ({7}, [0.25], [0.5]) == ({*receiver.values("loss.count")}, *map(receiver.values, ("loss", "loss.p50")))
    assert ([2], [4.0], [2.5]) == tuple(receiver.values(f"loss.stat.{name}") for name in ("count", "max", "mean"))
    assert ([], []) == (receiver.points("loss.max"), receiver.points("loss.mean"))
    assert {"Stat 'loss'"} == {point.description for point in receiver.points("loss.stat.max")}
    assert 1 == len(warned(SAME))


def test_number_and_stat_of_one_name_share_nothing(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Neither is in the count, the time or the unit of the other."""
    with delivered_by(start()):
        for number in range(3):
            record_window("loss", [COUNT, MAX], 1, unit="s")
            monitel.log({"loss": number})
            clock.advance(1)
    assert [0, 1, 2] == receiver.values("loss")
    assert [1, 2, 3] == receiver.values("loss.count")
    assert [{""}, {"s"}] == [{each.unit for each in receiver.points(name)} for name in ("loss", "loss.max")]


def test_names_of_monitel_are_taken(receiver: Receiver, start: Start, warned: Warned) -> None:
    """The step, the ledger and the pipeline keep their names, even if the application's metric comes first."""
    pages = ("training.step", "training.time", "training.goodput", "monitel.queue.size", "monitel.spool.size")
    names = (*pages, "monitel.exporter.item.exported", "training_time_seconds_total", "training.goodput_ratio")
    with delivered_by(start()) as pipeline:
        monitel.log(dict.fromkeys(names, 9.5))
    monitel.set_step(3)
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    for name in names:
        assert [9.5] == receiver.values(f"{name}.number")
    assert all(receiver.points(name) and 9.5 not in receiver.values(name) for name in (*pages, names[5]))
    assert len(names) == len(warned(SAME))


def test_source_keeps_its_name(receiver: Receiver, start: Start) -> None:
    """From its creation or first use on, whatever is exported first, and in a second pipeline."""
    record: list[Callable[[], object]] = [lambda: monitel.counter("x").add(49), lambda: monitel.log({"x": 0.5})]
    with delivered_by(start()) as pipeline:
        for each in record:  # the counter is read at the next export
            each()
    pipeline.shutdown()
    pipeline = start()
    for each in reversed(record):
        each()
        assert pipeline.force_flush(DEADLINE)
    assert ({49, 98}, {0.5}) == ({*receiver.values("x")}, {*receiver.values("x.number")})
