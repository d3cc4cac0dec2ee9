"""Wait counters at the end of a process: exit, SIGTERM, forks, and the reader of an application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import TEMPORALITY
from tests.support.series import increase, of_parent_and_child

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate


WAIT = """
waiting = monitel.WaitCounter("loading")
def wait(times):
    for _ in range(times):
        with waiting.guard():
            pass
"""


def test_last_wait_arrives_at_exit(receiver: Receiver, train: Run) -> None:
    """A script that ends before the first interval, in which nothing else was recorded."""
    train(
        f"pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n{WAIT}wait(60)\n"
        'print(monitel.wait_counters()["loading"].total)\n',
        receiver.url,
    )
    assert 60 == increase(receiver, "loading.wait.count")
    assert 0 < receiver.values("loading.wait.max")[0] <= increase(receiver, "loading.wait.time")


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_nothing_is_lost_at_sigterm(receiver: Receiver, terminate: Terminate, temporality: str) -> None:
    """The signal interrupts a guard at any place, perhaps while it holds the lock; the last total arrives."""
    script = f"""
os.environ[{TEMPORALITY!r}] = {temporality!r}
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=0.02)
{WAIT}
pipeline.at_end.insert(0, lambda: print(monitel.wait_counters()["loading"].count, flush=True))
print("ready", flush=True)
while True:
    wait(1)
"""
    metric = "loading.wait.count"
    ended = terminate(script, receiver.url, when=lambda: receiver.wait_until(lambda: receiver.points(metric)))
    expected = int(ended.stdout.split()[-1])
    found = increase(receiver, metric) if temporality == "cumulative" else sum(receiver.values(metric))
    assert expected == found


def test_sigterm_inside_a_wait_sends_it_as_active(receiver: Receiver, terminate: Terminate) -> None:
    """A job that hangs and is then killed shows the wait in which it hung."""
    script = f"""
from threading import Event
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)
{WAIT}
wait(3)
with waiting.guard():
    print("ready", flush=True)
    Event().wait()
"""
    terminate(script, receiver.url)
    assert (3, 1) == (receiver.values("loading.wait.count")[-1], receiver.values("loading.wait.active")[-1])


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("record", ["", 'monitel.emit("child")'])
def test_forked_child_counts_from_zero(receiver: Receiver, train: Run, temporality: str, record: str) -> None:
    """Nothing of the parent is in the child's series, which have another resource and a later start."""
    ended = train(
        f"os.environ[{TEMPORALITY!r}] = {temporality!r}\n"
        "pipeline = monitel_otlp.configure(endpoint=sys.argv[1], export_interval=3600.0)\n"
        f"{WAIT}"
        "wait(100)\n"
        "pipeline.force_flush()\n"
        "print(time.time_ns(), flush=True)\n"
        "if (pid := os.fork()) == 0:\n"
        "    wait(7)\n"
        f"    {record}\n"
        "    sys.exit()\n"
        "os.waitpid(pid, 0)\n"
        "wait(1)\n",
        receiver.url,
    )
    parent, child = of_parent_and_child(receiver.points("loading.wait.count"))
    assert parent[0].start_ns < int(ended.stdout.split()[0]) < min(point.start_ns for point in child)
    if temporality == "cumulative":
        assert ({100, 101}, {7}) == ({point.value for point in parent}, {point.value for point in child})
        assert 108 == increase(receiver, "loading.wait.count")
    else:
        assert ([100, 1], [7]) == ([point.value for point in parent], [point.value for point in child])


@pytest.mark.invalid_output("the resource belongs to the application", "resource.distro")
def test_application_reader_observes_wait_counters(receiver: Receiver, train: Run) -> None:
    """An attached pipeline writes none itself; its instruments have the same names, and the names of collisions."""
    train(
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.metrics import set_meter_provider\n"
        "from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader\n"
        "exporter = monitel_otlp.MetricExporter(endpoint=sys.argv[1])\n"
        "provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])\n"
        "set_meter_provider(provider)\n"
        'monitel.counter("loading.wait.count").add(49)\n'
        f"{WAIT}"
        "wait(3)\n"
        "from monitel_otlp import attach\n"
        "attach._attached.force_flush(10)\n"
        "provider.force_flush()\n"
        "wait(2)\n"
        "provider.shutdown()\n",
        receiver.url,
    )
    assert {49} == set(receiver.values("loading.wait.count"))
    assert [3, 5] == receiver.values("loading_2.wait.count")
    assert [0, 0] == receiver.values("loading_2.wait.active")
