"""The ledger's metrics in processes: exit, SIGTERM, forks, an application's reader, and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import TEMPORALITY
from tests.support.series import increase

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

SECOND_NS = 10**9
TIME, GOODPUT = "training.time", "training.goodput"
#: Lines that enter each activity, and print the elapsed time.
WORK = """
for step in range(3):
    with monitel.activity("data"):
        time.sleep(0.01)
    monitel.set_step(step)
def elapsed(): print("elapsed", monitel.ledger().elapsed_ns, flush=True)
"""


def elapsed(output: str) -> float:
    """Return the last seconds that a script has printed."""
    return int(output.rpartition("elapsed ")[2].split()[0]) / SECOND_NS


def totals(receiver: Receiver) -> dict[str, float]:
    """Return the last total of each activity."""
    return {str(point.attributes["training.activity"]): point.value for point in receiver.points(TIME)}


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_last_export_has_the_shutdown(receiver: Receiver, train: Run, temporality: str) -> None:
    """All time up to the last export is in it, in a script that ends before the first interval."""
    ended = train(
        f"os.environ[{TEMPORALITY!r}] = {temporality!r}\n"
        "monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n"
        f"{WORK}"
        "import atexit\n"
        "atexit.register(elapsed)\n",
        receiver.url,
    )
    found = totals(receiver)
    assert {"startup", "data", "step", "shutdown"} == set(found)
    assert found["shutdown"] > 0
    assert found["data"] >= 0.03
    (last,) = {point.time_ns for point in receiver.points(TIME)}
    (start,) = {point.start_ns for point in receiver.points(TIME)}
    assert elapsed(ended.stdout) <= sum(found.values())
    assert (last - start) / SECOND_NS == pytest.approx(sum(found.values()), abs=1)
    if temporality == "cumulative":
        assert sum(found.values()) == pytest.approx(increase(receiver, TIME))
    assert 0 < receiver.values(GOODPUT)[-1] < 1


def test_sigterm_begins_the_shutdown(receiver: Receiver, terminate: Terminate) -> None:
    """The signal interrupts an activity, which keeps the time up to then."""
    terminate(
        f"pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n{WORK}"
        'with monitel.activity("evaluation"):\n'
        '    print("ready", flush=True)\n'
        "    while True: time.sleep(0.01)\n",
        receiver.url,
    )
    found = totals(receiver)
    assert {"startup", "data", "step", "evaluation", "shutdown"} == set(found)
    last = receiver.points(TIME)[-1]
    assert (last.time_ns - last.start_ns) / SECOND_NS == pytest.approx(sum(found.values()), abs=1)


@pytest.mark.parametrize("steps", [False, True])
def test_forked_child_has_a_ledger_from_its_first_step_on(receiver: Receiver, train: Run, *, steps: bool) -> None:
    """Activities of other children are not part of the training; the parent's time is not in the child's."""
    train(
        "pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n"
        f"{WORK}"
        "pipeline.force_flush()\n"
        "if (pid := os.fork()) == 0:\n"
        '    with monitel.activity("evaluation"): pass\n'
        f"    if {steps}: monitel.set_step(9)\n"
        '    with monitel.activity("checkpoint.save"): pass\n'
        '    monitel.emit("child")\n'
        "    sys.exit()\n"
        "os.waitpid(pid, 0)\n",
        receiver.url,
    )
    points = receiver.points(TIME)
    parent, *others = dict.fromkeys(point.resource["process.pid"] for point in points)
    child = [point for point in points if point.resource["process.pid"] in others]
    assert "child" in receiver.record_names()
    of_child = {point.attributes["training.activity"] for point in child}
    assert {"startup", "step", "checkpoint.save", "shutdown"} == of_child if steps else not of_child
    starts = {point.start_ns for point in points if point.resource["process.pid"] == parent}
    assert all(point.start_ns > max(starts) for point in child)
    assert len({*receiver.values(GOODPUT)}) >= 1 + steps


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.invalid_output("the resource belongs to the application", "resource.distro")
def test_reader_of_an_application_exports_the_ledger(receiver: Receiver, train: Run, temporality: str) -> None:
    """Each collection, and the shutdown of its provider."""
    ended = train(
        f"os.environ[{TEMPORALITY!r}] = {temporality!r}\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader\n"
        "exporter = monitel_otlp.MetricExporter(endpoint=sys.argv[1])\n"
        "provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])\n"
        'own = provider.get_meter("application").create_counter("own")\n'
        f"{WORK}"
        "for amount in (50, 10):\n"
        "    own.add(amount)\n"
        "    provider.force_flush()\n"
        "own.add(1)\n"
        "elapsed()\n"
        "provider.shutdown()\n",
        receiver.url,
    )
    found: dict[str, float] = {}
    for point in receiver.points(TIME):
        name = str(point.attributes["training.activity"])
        found[name] = point.value + (found.get(name, 0) if temporality == "delta" else 0)
    assert {"startup", "data", "step"} == set(found)
    assert elapsed(ended.stdout) <= sum(found.values()) + 1e-6
    assert len(receiver.values(GOODPUT)) >= 3


def test_replay_has_all_time_of_a_process_without_a_backend(receiver: Receiver, train: Run, run: Run) -> None:
    """The points are sent as they were stored, with the start of the process."""
    ended = train(
        'pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=3600.0)\n'
        f"{WORK}elapsed()\nprint(pipeline.spool_dir)\n"
    )
    run("-m", "monitel_otlp", "replay", ended.stdout.split()[-1], "--endpoint", receiver.url)
    found = totals(receiver)
    assert {"startup", "data", "step", "shutdown"} == set(found)
    assert elapsed(ended.stdout) <= sum(found.values()) + 1e-6
    assert sum(found.values()) == pytest.approx(increase(receiver, TIME))
