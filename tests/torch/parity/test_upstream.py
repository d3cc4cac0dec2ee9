"""torch's tests of torch.monitor, rewritten, over torch.monitor and monitel."""

from __future__ import annotations

import datetime as dt
import json
import time
import types
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Any], Any]

torch: Any = pytest.importorskip("torch", reason="compares with torch.monitor: torch is not installed")

from tests.torch.parity.parity import HOURS, event, recorded  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch


def counted(monitor: Any, key: str) -> tuple[int, int]:
    """Return the number of waits and of waits in flight. torch reports them only to its debug server."""
    if monitor is monitel:
        return monitel.wait_counters()[key].count, monitel.wait_counters()[key].active
    c10d = pytest.importorskip("torch._C._distributed_c10d", reason="torch is built without distributed")
    texts: list[str] = []
    answer = {"set_content": lambda _, text, __: texts.append(text), "set_status": lambda *_: None}
    c10d._get_handler("wait_counter_values")(
        type("Request", (c10d._Request,), {})(), type("Response", (c10d._Response,), answer)()
    )
    totals = json.loads(texts[0])[key]
    return totals["total_calls"], totals["active_count"]


@pytest.mark.parametrize(
    "steps",
    [
        *("", "enter exit", "exit", "enter exit exit", "enter exit enter exit", "enter enter exit", "enter enter"),
        *("enter lose", "enter exit lose", "enter new enter", "enter new enter exit lose", "enter new enter lose"),
    ],
)
def test_wait_totals(steps: str, request: pytest.FixtureRequest) -> None:
    """After every step, the number of waits in flight equals torch's, and at the end the number of waits does."""

    def walk(m: Any) -> Any:
        key = request.node.name
        guards = [m._WaitCounter(key).guard()]
        in_flight = []
        for step in steps.split():
            if step == "new":
                guards.append(m._WaitCounter(key).guard())
            elif step == "lose":
                guards.pop()
            else:
                getattr(guards[-1], f"__{step}__")()
            in_flight.append(counted(m, key)[1])
        while guards:
            guards.pop().__exit__()
        return in_flight, counted(m, key)

    assert walk(torch.monitor) == walk(monitel)


@pytest.fixture(params=[torch.monitor, monitel], ids=["torch", "monitel"])
def monitor(request: pytest.FixtureRequest) -> Any:
    """Provide torch.monitor, then monitel."""
    return request.param


def test_upstream_interval_stat(monitor: Any) -> None:
    """test_monitor.py, test_counters.cpp Stat: windows of 1 ms end while samples are added, and are logged."""
    with recorded(monitor) as events:
        stat = monitor.Stat("asdf", (monitor.SUM, monitor.COUNT), dt.timedelta(milliseconds=1))
        assert stat.name == "asdf"
        deadline = time.monotonic() + 60
        while not events and time.monotonic() < deadline:
            stat.add(2)
    assert {"asdf.sum", "asdf.count"} == set(events[0].data)
    assert events[0].data["asdf.sum"] == 2 * events[0].data["asdf.count"]


def test_upstream_fixed_count_stat(monitor: Any) -> None:
    """test_monitor.py, test_counters.cpp: the third sample of 3 closes the window, and a fourth is discarded."""
    stat = monitor.Stat("asdf", (monitor.SUM, monitor.COUNT), HOURS, 3)
    zeros, full = {monitor.SUM: 0.0, monitor.COUNT: 0.0}, {monitor.SUM: 6.0, monitor.COUNT: 3.0}
    seen = [(stat.add(sample), stat.count, stat.get())[1:] for sample in (1, 2, 3, 4)]
    assert [(1, zeros), (2, zeros), (0, full), (0, full)] == seen


@pytest.mark.parametrize(
    ("aggregation", "samples", "expected"),
    [("SUM", [5, 6], 11), ("MEAN", [0, 10], 5), ("COUNT", [0, 10], 2), ("MIN", [5, -5, 0], -5), ("MAX", [5, 9, 0], 9)],
)
def test_upstream_counters(monitor: Any, aggregation: str, samples: list[int], expected: float) -> None:
    """test_counters.cpp: each aggregation is 0 until the window is full, in windows of up to ten years."""
    member = getattr(monitor, aggregation)
    for window_size in (dt.timedelta(hours=100), dt.timedelta(days=3650)):
        stat = monitor.Stat("a", [member], window_size, len(samples))
        assert {member: 0.0} == stat.get()
        for sample in samples:
            stat.add(sample)
        assert {member: expected} == stat.get()


def test_upstream_log_event(monitor: Any) -> None:
    """test_monitor.py: an Event of str, float and int, created by keywords, is logged without a handler."""
    data = {"str": "a string", "float": 1234.0, "int": 1234}
    made = monitor.Event(name="torch.monitor.TestEvent", timestamp=dt.datetime.now(), data=data)  # noqa: DTZ005  naive
    assert ("torch.monitor.TestEvent", data) == (made.name, made.data)
    assert monitor.log_event(made) is None


def test_upstream_event_handler(monitor: Any) -> None:
    """test_monitor.py, test_events.cpp: a handler is called once per event, until it is unregistered."""
    made = event(monitor)
    with recorded(monitor) as events:
        monitor.log_event(made)
        monitor.log_event(made)
    monitor.log_event(made)
    assert [made, made] == events


def test_upstream_tensorboard(monitor: Any) -> None:
    """test_monitor.py: a window of five of ten samples is one scalar per aggregation."""
    scalars: dict[str, list[float]] = {}
    writer = types.SimpleNamespace(add_scalar=lambda tag, value, **_: scalars.setdefault(tag, []).append(value))
    handle = monitor.register_event_handler(monitor.TensorboardEventHandler(writer))
    stat = monitor.Stat("asdf", [monitor.SUM, monitor.COUNT], HOURS, 5)
    for sample in range(10):
        stat.add(sample)
    monitor.unregister_event_handler(handle)
    assert {"asdf.sum": [10.0], "asdf.count": [5.0]} == scalars


def test_upstream_wait_counter(monitor: Any, request: pytest.FixtureRequest, run_threads: Any) -> None:
    """test_monitor.py, WaitCounter_test.cpp: five guards, then a hundred guards in each of ten threads."""
    counter = monitor._WaitCounter(request.node.name)

    def wait(times: int) -> None:
        for _ in range(times):
            with counter.guard():
                pass

    wait(5)
    assert (5, 0) == counted(monitor, request.node.name)
    run_threads(*[lambda: wait(100)] * 10)
    assert (1005, 0) == counted(monitor, request.node.name)


def test_public_names_of_torch() -> None:
    """Every name of torch.monitor is in monitel too."""
    names = {name for name in dir(torch.monitor) if not name.startswith("__")} - {"TYPE_CHECKING"}
    assert set() == {name for name in names if not hasattr(monitel, name)}
    assert names > {"Stat", "Event", "log_event"}
    assert torch.monitor.STAT_EVENT == monitel.STAT_EVENT
