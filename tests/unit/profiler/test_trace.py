"""Contents of traces: valid for strict readers, complete, nested and in order."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.profiler.traces import exported, lines, slices

from monitel import get_step, set_step
from monitel.profiler import profile, record_function, schedule
from monitel.profiler.trace.chrome_trace import RESERVED_KEYS
from monitel.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

#: Text with unpaired surrogates, which st.text() never has.
TEXT = st.lists(st.characters() | st.sampled_from('\ud800\udfff\0\n\x7f\\"'), max_size=9).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(), inner, max_size=3),
    max_leaves=5,
)


def test_content(clock: ManualClock, tmp_path: Path) -> None:
    """A trace has names, times in microseconds since baseTimeNanoseconds, process, thread, args and step."""
    before = get_step()
    with profile(custom_trace_id_callback=lambda: "an id") as prof:
        clock.advance(0.25)
        with record_function("a", "details"):
            clock.advance(1)
            set_step(7)
            with record_function("b", {"n": 1}):
                clock.advance(0.000_002_05)
    prof.add_metadata("run", 'x"\\\n')
    prof.add_metadata_json("settings", '{"lr": 0.1}')
    trace = exported(prof, tmp_path)
    a, b = slices(trace)
    base_us = trace["baseTimeNanoseconds"] / 1000
    assert ("a", "b") == (a["name"], b["name"])
    assert (clock.time_ns() - 1_000_002_050) / 1000 == base_us + a["ts"]
    assert (1_000_002.05, 2.05, 1e6) == (a["dur"], b["dur"], b["ts"] - a["ts"])
    assert (os.getpid(), threading.get_native_id()) == (a["pid"], a["tid"])
    assert "details" == a["args"]["args"]
    assert {"n": 1, "step": 7, "Ev Idx": 1} == b["args"]
    assert before is None or a["args"]["step"] == before
    assert ("an id", 'x"\\\n', {"lr": 0.1}) == (trace["trace_id"], trace["run"], trace["settings"])
    assert str(tmp_path / "trace.json") == trace["traceName"]
    process, *_, name, order = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert {"name": "python"} == process["args"]
    assert ({"name": "MainThread"}, {"sort_index": 0}) == (name["args"], order["args"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=TEXT, args=VALUES | st.dictionaries(TEXT, VALUES), key=TEXT, value=TEXT)
def test_any_text(tmp_path: Path, name: str, args: Any, key: str, value: str) -> None:
    """With any names, args, metadata and trace ids the trace is strictly valid JSON."""
    with profile(custom_trace_id_callback=lambda: value) as prof, record_function(name, args):
        pass
    if key not in RESERVED_KEYS:
        prof.add_metadata(key, value)
    trace = exported(prof, tmp_path)
    readable = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert [readable] == [event["name"] for event in slices(trace)]
    prof.key_averages().table().encode()
    prof.with_stack = True
    prof.export_stacks(tmp_path / "stacks")


class Unprintable:
    """An object whose str() raises."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"loss": float("nan"), "best": float("-inf")}, {"loss": "nan", "best": "-inf"}),
        ({"shape": (2, 3), "any": {1}, 5: None}, {"shape": [2, 3], "any": [1], "5": None}),
        ({"tensor": Unprintable()}, {"tensor": "<Unprintable: str() raised ValueError>"}),
        ({"huge": 10**400, "larger": 10**5000}, {"huge": str(10**400), "larger": "<int: str() raised ValueError>"}),
        (5, {"args": 5}),
        ({"Ev Idx": "mine"}, {}),
    ],
)
def test_args(args: Any, shown: dict[str, Any], tmp_path: Path) -> None:
    """Args that JSON cannot represent become text, even if str() raises."""
    with profile() as prof, record_function("a", args):
        pass
    found = slices(exported(prof, tmp_path))[0]["args"]
    found.pop("step", None)
    assert {**shown, "Ev Idx": 0} == found


@pytest.mark.parametrize("value", ["", "{", "NaN", "[Infinity]", '{"a": 1} 2', "'a'"])
def test_invalid_metadata(value: str) -> None:
    """Metadata that is not valid JSON is refused; torch writes it, and the trace cannot be read."""
    prof = profile()
    for add in (prof.add_metadata_json, prof.preset_metadata_json):
        with pytest.raises(ValueError, match="metadata 'k' must be valid JSON"):
            add("k", value)


def test_metadata(tmp_path: Path) -> None:
    """Metadata before the start is for the next trace, a preset for every trace; reserved keys are refused."""
    prof = profile(schedule=schedule(wait=0, warmup=1, active=1), acc_events=True)
    prof.add_metadata("first", "1")
    prof.preset_metadata_json("preset", "[1,\n2]")
    seen = []

    def ready(prof: Any) -> None:
        prof.add_metadata("now", "a")
        prof.add_metadata("now", "b")
        trace = exported(prof, tmp_path)
        seen.append({key: trace[key] for key in ("first", "preset", "now") if key in trace})

    prof.on_trace_ready = ready
    with prof:
        for _ in range(4):
            prof.step()
    assert [{"first": "1", "preset": [1, 2], "now": "b"}, {"preset": [1, 2], "now": "b"}] == seen
    for add in (prof.add_metadata, prof.add_metadata_json, prof.preset_metadata_json):
        with pytest.raises(ValueError, match="metadata key 'traceEvents' is reserved"):
            add("traceEvents", "1")


def test_threads(tmp_path: Path) -> None:
    """Each thread has a separate line, with its id and name."""

    def work() -> None:
        for _ in range(3):
            with record_function("outer"), record_function("inner"):
                pass

    threads = [threading.Thread(target=work, name=f"worker-{number}") for number in range(2)]
    with profile() as prof:
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join(30)
    shown = lines(exported(prof, tmp_path))
    assert dict.fromkeys(("MainThread", "worker-0", "worker-1"), ["outer", "inner"] * 3) == shown


def test_tasks(clock: ManualClock, tmp_path: Path) -> None:
    """Interleaved tasks have separate lines, so that each line nests."""

    async def job(name: str) -> None:
        with record_function(f"job {name}"):
            for part in range(2):
                with record_function(f"part {name}{part}"):
                    clock.advance(1)
                    await asyncio.sleep(0)

    async def main() -> None:
        with record_function("main"):
            await asyncio.gather(*[asyncio.create_task(job(name), name=name) for name in "ab"])

    with profile() as prof:
        asyncio.run(main())
    shown = lines(exported(prof, tmp_path))
    assert ["job a", "part a0", "part a1"] == shown["a (MainThread)"]
    assert ["job b", "part b0", "part b1"] == shown["b (MainThread)"]
    assert 3 == len(shown)


def test_overlapping_ranges(clock: ManualClock, tmp_path: Path) -> None:
    """A range that overlaps others of its thread without nesting goes to a second line."""
    with profile(schedule=schedule(wait=0, warmup=1, active=2, repeat=1)) as prof:
        prof.step()
        clock.advance(1)
        with record_function("epoch"):
            for _ in range(2):
                with record_function("batch"):
                    clock.advance(1)
                prof.step()
            clock.advance(1)
    shown = lines(exported(prof, tmp_path))
    assert {
        "MainThread": ["ProfilerStep#1", "batch", "ProfilerStep#2", "batch"],
        "MainThread, 2": ["epoch"],
    } == shown


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30), st.randoms())
def test_any_order(tmp_path: Path, moves: list[tuple[int, int]], random: Any) -> None:
    """Ranges that begin and end in any order, in three contexts, make a valid and complete trace."""
    import contextvars

    with ManualClock() as clock:
        contexts = [contextvars.Context() for _ in range(3)]
        opened: list[Any] = []
        begun = 0
        with profile() as prof:
            for action, where in moves:
                clock.advance(random.choice([0, 1]))
                if action or not opened:
                    label = record_function(f"{begun}")
                    contexts[where % 3].run(label.__enter__)
                    opened.append((label, contexts[where % 3]))
                    begun += 1
                else:
                    label, context = opened.pop(random.randrange(len(opened)))
                    context.run(label.__exit__, None, None, None)
        trace = exported(prof, tmp_path)
        assert sorted(map(str, range(begun))) == sorted(event["name"] for event in slices(trace))
        assert len(opened) == sum(event["args"].get("finished") is False for event in slices(trace))
        for label, context in opened:
            context.run(label.__exit__, None, None, None)
        for event in prof.events():
            assert event.self_cpu_time_total <= event.cpu_time_total


def test_unfinished(clock: ManualClock, tmp_path: Path) -> None:
    """A range that still runs at the stop ends there, and is marked as not finished."""
    prof = profile()
    prof.start()
    with record_function("a"):
        clock.advance(1)
        prof.stop()
        clock.advance(1)
    (event,) = slices(exported(prof, tmp_path))
    assert (1e6, False) == (event["dur"], event["args"]["finished"])
