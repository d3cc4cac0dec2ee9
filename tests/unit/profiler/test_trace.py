"""Traces: strictly valid for any text and any order of ranges, in bounded memory, with progress."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.profiler.traces import exported, lines, read, slices, validated

from monitel.profiler import profile, record_function, schedule
from monitel.profiler.trace import chrome_trace, progress, recording
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


def test_repeated_export(tmp_path: Path) -> None:
    """A trace can be written repeatedly, even while the profile is running; torch writes it once."""
    with profile() as prof:
        with record_function("a"):
            pass
        assert ["a"] == [event["name"] for event in slices(exported(prof, tmp_path))]
    first = exported(prof, tmp_path)
    assert first == exported(prof, tmp_path)
    prof.export_chrome_trace(str(tmp_path / "python.json"), use_python_export=True)
    assert slices(first) == slices(read(tmp_path / "python.json"))


def test_permissions_and_pipes(tmp_path: Path) -> None:
    """The file has the permissions of any new file; a pipe is written to, not replaced."""
    with profile() as prof:
        pass
    (tmp_path / "other").touch()
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert (tmp_path / "other").stat().st_mode == (tmp_path / "trace.json").stat().st_mode
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    prof.export_chrome_trace(pipe)
    reader.join(30)
    assert pipe.is_fifo()
    validated(json.loads(found[0]))


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_progress_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is written again and again; nothing if standard error is a file."""
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 1)
    with profile() as prof:
        for _ in range(3):
            with record_function("a"):
                pass
    path = tmp_path / "trace.json"
    for stream, last in ((Terminal(), f"writing {path}: 3 of 3 (100%)\n"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        prof.export_chrome_trace(path)
        assert last == stream.getvalue().split("\r")[-1]


def test_memory_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing six times as many ranges does not take more memory."""
    monkeypatch.setattr(recording, "_MAX_DISORDER", 1000)
    cycle, peaks = recording.Recording("id"), []
    cycle.start()
    for number in range(30_000):
        with record_function(f"{number}"):
            pass
    cycle.stop()
    everything = cycle._began
    for part in (5_000, 30_000):
        cycle._began = everything[:part]
        tracemalloc.start()
        chrome_trace.write_chrome_trace(cycle, tmp_path / "trace.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 2 * 2**20


def test_out_of_order(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that threads append out of order are sorted, across the borders of the sorted parts too."""
    monkeypatch.setattr(recording, "_MAX_DISORDER", 4)
    cycle = recording.Recording("id")
    cycle.start()
    for _ in range(30):
        clock.advance(1)
        with record_function("a"):
            pass
    cycle.stop()
    began = cycle._began
    for index in range(0, 24, 6):
        began[index], began[index + 3] = began[index + 3], began[index]
    assert sorted(began, key=lambda each: each.start_ns) != began
    chrome_trace.write_chrome_trace(cycle, tmp_path / "trace.json")
    assert 30 == len(slices(validated(read(tmp_path / "trace.json"))))
