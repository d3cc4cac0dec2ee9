"""Counters at the end of a process: exit, SIGTERM, forks, and the shutdown of an application's provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import TEMPORALITY
from tests.support.series import increase, of_parent_and_child

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate


def test_last_total_arrives_at_exit(receiver: Receiver, train: Run) -> None:
    """A script that ends before the first interval, in which nothing else was recorded."""
    train(
        "pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n"
        'monitel.counter("samples").add(60)\nmonitel.set_step(7)\n',
        receiver.url,
    )
    assert 60 == increase(receiver, "samples")
    assert 7 == receiver.values("training.step")[-1]


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_nothing_is_lost_at_sigterm(receiver: Receiver, terminate: Terminate, temporality: str) -> None:
    """The signal interrupts add() at any place, perhaps while it holds the lock; the last total arrives."""
    script = f"""
os.environ[{TEMPORALITY!r}] = {temporality!r}
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=0.02)
samples = monitel.counter("samples")
pipeline.at_end.insert(0, lambda: print(samples.total, flush=True))
print("ready", flush=True)
while True:
    samples.add(3)
"""
    ended = terminate(script, receiver.url, when=lambda: receiver.wait_until(lambda: receiver.points("samples")))
    expected = int(ended.stdout.split()[-1])
    found = increase(receiver, "samples") if temporality == "cumulative" else sum(receiver.values("samples"))
    assert expected == found


HUNG = """
from threading import Event
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)
monitel.counter("samples").add(3)
pipeline.engine._callbacks.refresh = lambda *_: Event().wait()
print("ready", flush=True)
Event().wait()
"""


def test_sigterm_sends_counters_before_it_waits_for_callbacks(receiver: Receiver, terminate: Terminate) -> None:
    """Even if the encoder never comes back from them."""
    terminate(HUNG, receiver.url)
    assert [3] == receiver.values("samples")


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_forked_child_counts_from_zero(receiver: Receiver, train: Run, temporality: str) -> None:
    """Nothing of the parent is in the child's series, which have another resource and a later start."""
    train(
        f"os.environ[{TEMPORALITY!r}] = {temporality!r}\n"
        "pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n"
        'samples = monitel.counter("samples")\n'
        "samples.add(100)\n"
        "pipeline.force_flush()\n"
        "if (pid := os.fork()) == 0:\n"
        "    samples.add(7)\n"
        '    monitel.emit("child")\n'
        "    sys.exit()\n"
        "os.waitpid(pid, 0)\n"
        "samples.add(1)\n",
        receiver.url,
    )
    parent, child = of_parent_and_child(receiver.points("samples"))
    assert min(point.start_ns for point in child) > max(point.start_ns for point in parent[:1])
    if temporality == "cumulative":
        assert ({100, 101}, {7}) == ({point.value for point in parent}, {point.value for point in child})
        assert 108 == increase(receiver, "samples")
    else:
        assert ([100, 1], [7]) == ([point.value for point in parent], [point.value for point in child])


COUNT_IN_CHILD = {
    "fork": "if (pid := os.fork()) == 0:\n    count()\n    sys.exit()\nos.waitpid(pid, 0)\n",
    "multiprocessing": (
        "import multiprocessing\n"
        'child = multiprocessing.get_context("fork").Process(target=count)\n'
        "child.start()\n"
        "child.join()\n"
    ),
}


@pytest.mark.parametrize("method", list(COUNT_IN_CHILD))
@pytest.mark.parametrize("body", ["samples.add(7)", "loss.add(1), samples.add(7)"])
def test_forked_child_that_records_nothing_before_its_end(
    receiver: Receiver, train: Run, method: str, body: str
) -> None:
    """Neither its counters nor its first window, which ends when its pipeline begins, miss their first value."""
    train(
        "pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n"
        'loss, samples = Stat("loss", [COUNT], 60.0), monitel.counter("samples")\n'
        "samples.add(100)\n"
        f"def count(): {body}\n"
        f"{COUNT_IN_CHILD[method]}",
        receiver.url,
    )
    assert 107 == increase(receiver, "samples")
    assert ("loss" in body) == increase(receiver, "loss.count")
    points = receiver.points("loss.count") + receiver.points("samples")
    assert all(point.start_ns < point.time_ns for point in points)


def test_forked_child_that_counts_nothing_exports_nothing(receiver: Receiver, train: Run) -> None:
    """Most children are not part of the training."""
    train(
        "pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n"
        'samples = monitel.counter("samples")\n'
        "samples.add(100)\n"
        "def count(): monitel.flush()\n"
        f"{COUNT_IN_CHILD['multiprocessing']}",
        receiver.url,
    )
    assert 1 == len({point.resource["process.pid"] for point in receiver.points("samples")})


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.invalid_output("the resource belongs to the application", "resource.distro")
def test_attached_readers_have_the_counters(receiver: Receiver, train: Run, temporality: str) -> None:
    """Each collection of the application's reader, and its shutdown."""
    train(
        f"os.environ[{TEMPORALITY!r}] = {temporality!r}\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader\n"
        "exporter = monitel_otlp.MetricExporter(endpoint=sys.argv[1])\n"
        "provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])\n"
        'own = provider.get_meter("application").create_counter("own")\n'
        'samples = monitel.counter("samples")\n'
        "monitel.set_step(5)\n"
        "for amount in (50, 10):\n"
        "    own.add(1)\n"
        "    samples.add(amount)\n"
        "    provider.force_flush()\n"
        "own.add(1)\n"
        "samples.add(1)\n"
        "provider.shutdown()\n",
        receiver.url,
    )
    if temporality == "cumulative":
        assert [50, 60, 61] == sorted(set(receiver.values("samples")))
        assert 61 == increase(receiver, "samples")
    else:
        assert [50, 10, 1] == receiver.values("samples")
    assert {5} == set(receiver.values("training.step"))
