"""The trace as a file: valid for every reader, complete, nested, in order, whole or not there."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import socket
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitel import get_step, profiler, set_step
from monitel.profiler import profile, ranges, record_function, schedule, tensorboard_trace_handler
from monitel.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Halves of surrogate pairs too, which st.text() leaves out of whatever alphabet it is given.
TEXT = st.lists(st.characters() | st.sampled_from('\ud800\udfff\0\n\x7f\\"'), max_size=9).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(), inner, max_size=3),
    max_leaves=5,
)
MANY = 1_000_000


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Give a clock that moves only by advance()."""
    with ManualClock() as clock:
        yield clock


def refuse(constant: str) -> None:
    """Refuse NaN and Infinity, which Python reads and no other reader."""
    raise ValueError(constant)


def read(path: Path) -> Any:
    """Read a trace as strictly as the strictest reader."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text.decode("utf-8"), parse_constant=refuse)


def exported(prof: Any, folder: Path) -> Any:
    """Export a trace and read it."""
    prof.export_chrome_trace(folder / "trace.json")
    return validated(read(folder / "trace.json"))


def validated(trace: Any) -> Any:
    """Check what every trace must be: each event of a known kind, sorted, and nested on each line."""
    assert (1, [], "ms") == (trace["schemaVersion"], trace["deviceProperties"], trace["displayTimeUnit"])
    assert socket.gethostname() == trace["host_name"]
    assert 0 == trace["baseTimeNanoseconds"] % 1_000_000_000
    lines: dict[int, list[float]] = {}
    named = {}
    last = float("-inf")
    for event in trace["traceEvents"]:
        assert os.getpid() == event["pid"]
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                assert event["tid"] not in named
                named[event["tid"]] = event["args"]["name"]
            continue
        assert {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"} == set(event)
        assert ("X", "user_annotation") == (event["ph"], event["cat"])
        assert last <= event["ts"]
        last = event["ts"]
        assert event["dur"] >= 0
        ends = lines.setdefault(event["tid"], [])
        end = round(event["ts"] * 1000) + round(event["dur"] * 1000)  # ns: sums of microseconds are not exact
        while ends and ends[-1] <= round(event["ts"] * 1000):
            ends.pop()
        assert not ends or end <= ends[-1], f"{event} is not nested"
        ends.append(end)
    assert set(lines) == set(named)
    assert len(named) == len(set(named.values())) or len(named) > 2
    return trace


def slices(trace: Any) -> list[Any]:
    """Give the events that are ranges."""
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def lines(trace: Any) -> dict[str, list[str]]:
    """Give what each line shows, by its name."""
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    shown: dict[str, list[str]] = {}
    for event in slices(trace):
        shown.setdefault(named[event["tid"]], []).append(event["name"])
    return shown


def test_content(clock: ManualClock, tmp_path: Path) -> None:
    """Names, times in microseconds since baseTimeNanoseconds, process, thread, args and step."""
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
    """Whatever names, args, metadata and trace ids hold, the trace is JSON for the strictest reader."""
    with profile(custom_trace_id_callback=lambda: value) as prof, record_function(name, args):
        pass
    if key not in profiler.chrome_trace.OWN_KEYS:
        prof.add_metadata(key, value)
    trace = exported(prof, tmp_path)
    readable = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert [readable] == [event["name"] for event in slices(trace)]
    prof.key_averages().table().encode()
    prof.with_stack = True
    prof.export_stacks(tmp_path / "stacks")


class Silent:
    """Something that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"loss": float("nan"), "best": float("-inf")}, {"loss": "nan", "best": "-inf"}),
        ({"shape": (2, 3), "any": {1}, 5: None}, {"shape": [2, 3], "any": [1], "5": None}),
        ({"tensor": Silent()}, {"tensor": "<Silent: str() raised ValueError>"}),
        ({"huge": 10**400, "larger": 10**5000}, {"huge": str(10**400), "larger": "<int: str() raised ValueError>"}),
        (5, {"args": 5}),
        ({"Ev Idx": "mine"}, {}),
    ],
)
def test_args(args: Any, shown: dict[str, Any], tmp_path: Path) -> None:
    """What JSON has no word for is shown as text; nothing of it raises."""
    with profile() as prof, record_function("a", args):
        pass
    found = slices(exported(prof, tmp_path))[0]["args"]
    found.pop("step", None)
    assert {**shown, "Ev Idx": 0} == found


@pytest.mark.parametrize("value", ["", "{", "NaN", "[Infinity]", '{"a": 1} 2', "'a'"])
def test_metadata_that_is_no_json(value: str) -> None:
    """It is refused where it is given; torch pastes it, and the trace cannot be read."""
    prof = profile()
    for add in (prof.add_metadata_json, prof.preset_metadata_json):
        with pytest.raises(ValueError, match="metadata 'k' must be valid JSON"):
            add("k", value)


def test_metadata(tmp_path: Path) -> None:
    """Before the start it is for the next trace, a preset for every one; the last value wins; no key of the trace's."""
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
        with pytest.raises(ValueError, match="metadata must not be named 'traceEvents'"):
            add("traceEvents", "1")


def test_threads(tmp_path: Path) -> None:
    """Each thread has a line of its own, by its number and name."""

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
    """Tasks that take turns have a line each, so that each nests."""

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


def test_ranges_that_overlap(clock: ManualClock, tmp_path: Path) -> None:
    """What overlaps in one thread without nesting, as an epoch across steps does, goes to a second line."""
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
    """Ranges that begin and end in any order, in three contexts, give a valid and complete trace."""
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
    """What still runs at the stop ends there, and says so."""
    prof = profile()
    prof.start()
    with record_function("a"):
        clock.advance(1)
        prof.stop()
        clock.advance(1)
    (event,) = slices(exported(prof, tmp_path))
    assert (1e6, False) == (event["dur"], event["args"]["finished"])


def test_exported_again(tmp_path: Path) -> None:
    """A trace can be written as often as wanted, while it is recorded too; torch writes it once."""
    with profile() as prof:
        with record_function("a"):
            pass
        assert ["a"] == [event["name"] for event in slices(exported(prof, tmp_path))]
    first = exported(prof, tmp_path)
    assert first == exported(prof, tmp_path)
    prof.export_chrome_trace(str(tmp_path / "python.json"), use_python_export=True)
    assert slices(first) == slices(read(tmp_path / "python.json"))


def test_compressed(tmp_path: Path) -> None:
    """A name that ends with .gz."""
    with profile() as prof, record_function("a"):
        pass
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    assert ["a"] == [event["name"] for event in slices(validated(read(tmp_path / "trace.json.gz")))]


def test_missing_folder(tmp_path: Path) -> None:
    """An error that names the folder; torch loses the trace."""
    with profile() as prof:
        pass
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "missing")):
        prof.export_chrome_trace(tmp_path / "missing" / "trace.json")


def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in the middle leaves the file that was there, and nothing else."""
    path = tmp_path / "trace.json"
    path.write_text("what was there")
    with profile() as prof, record_function("a"):
        pass

    def full(*_arguments: Any) -> str:
        assert 2 == len(list(tmp_path.iterdir()))
        raise OSError("disk full")

    monkeypatch.setattr(profiler.chrome_trace, "_args", full)
    with pytest.raises(OSError, match="disk full"):
        prof.export_chrome_trace(path)
    assert ["trace.json"] == [each.name for each in tmp_path.iterdir()]
    assert "what was there" == path.read_text()


def test_a_file_like_others(tmp_path: Path) -> None:
    """The file has the permissions that any new file has, and a pipe or /dev/null is written to, not replaced."""
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


@pytest.mark.parametrize(("use_gzip", "suffix"), [(False, ".pt.trace.json"), (True, ".pt.trace.json.gz")])
def test_tensorboard_trace_handler(tmp_path: Path, use_gzip: bool, suffix: str) -> None:
    """A file for each cycle, named so that TensorBoard finds it, in a folder that is made."""
    folder = tmp_path / "log" / "profile"
    plan = schedule(wait=0, warmup=1, active=1)
    with profile(
        schedule=plan, acc_events=True, on_trace_ready=tensorboard_trace_handler(str(folder), use_gzip=use_gzip)
    ) as prof:
        assert not folder.exists()
        for _ in range(4):
            prof.step()
    paths = sorted(folder.iterdir())
    assert 2 == len(paths)
    worker = f"{socket.gethostname()}_{os.getpid()}."
    for path, step in zip(paths, (1, 3), strict=True):
        assert path.name.startswith(worker)
        assert path.name.endswith(suffix)
        assert path.name[len(worker) : -len(suffix)].isdigit()
        assert [f"ProfilerStep#{step}"] == [event["name"] for event in slices(validated(read(path)))]
    tensorboard_trace_handler(folder, "rank0")(prof)
    assert 1 == len(list(folder.glob("rank0.*.pt.trace.json")))


def test_tensorboard_trace_handler_without_a_folder(tmp_path: Path) -> None:
    """Torch's RuntimeError."""
    (tmp_path / "file").touch()
    with profile() as prof:
        pass
    with pytest.raises(RuntimeError, match=f"Can't create directory: {tmp_path}/file/log"):
        tensorboard_trace_handler(str(tmp_path / "file" / "log"))(prof)


def test_stacks(clock: ManualClock, tmp_path: Path) -> None:
    """A line for each path of nested ranges with its own microseconds, for flame graphs; torch's file is empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiler.cycles, "_warned", {"with_stack"})
        prof = profile()
    prof.with_stack = True
    with prof:
        for _ in range(2):
            with record_function("a b;c"):
                clock.advance(1)
                with record_function("inner"):
                    clock.advance(2)
    prof.export_stacks(tmp_path / "stacks.txt")
    assert "a_b_c 2000000\na_b_c;inner 4000000\n" == (tmp_path / "stacks.txt").read_text()
    prof.export_stacks(tmp_path / "cuda.txt", "self_cuda_time_total")
    assert "" == (tmp_path / "cuda.txt").read_text()
    with pytest.raises(ValueError, match="metric should be one of"):
        prof.export_stacks(tmp_path / "x", "beauty")
    prof.with_stack = False
    with pytest.raises(AssertionError, match="requires with_stack=True"):
        prof.export_stacks(tmp_path / "x")


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_a_million_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all written, with a line that says how far it is."""
    with profile() as prof:
        label = record_function("a")
        for _ in range(MANY):
            with label:
                pass
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(profiler.progress, "_PATIENCE", 0.1)
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(path)
    with path.open() as file:
        assert MANY == sum(line.startswith('{"ph":"X"') for line in file)
    shown = terminal.getvalue().split("\r")
    assert re.fullmatch(rf"writing {path}: [0-9,]+ of 1,000,000 \([0-9]+%\)", shown[1])
    assert f"writing {path}: 1,000,000 of 1,000,000 (100%)\n" == shown[-1]


def test_memory_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing six times as many ranges takes no more memory, beyond what the ranges themselves are."""
    monkeypatch.setattr(profiler.recording, "_OUT_OF_ORDER", 1000)
    with profile() as prof:
        for number in range(30_000):
            with record_function(f"{number}"):
                pass
    recording, peaks = prof._cycles[0], []
    everything = recording._began
    for part in (5_000, 30_000):
        recording._began = everything[:part]
        tracemalloc.start()
        prof.export_chrome_trace(tmp_path / "trace.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 2 * 2**20


def test_out_of_order(clock: ManualClock, tmp_path: Path) -> None:
    """Ranges that threads hand over out of order are sorted, over the seams of the pieces too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiler.recording, "_OUT_OF_ORDER", 4)
        with profile() as prof:
            for _ in range(30):
                clock.advance(1)
                with record_function("a"):
                    pass
            began = prof._cycles[0]._began
            for place in range(0, 24, 6):
                began[place], began[place + 3] = began[place + 3], began[place]
        assert sorted(began, key=lambda each: each.start_ns) != began
        assert 30 == len(slices(exported(prof, tmp_path)))


def test_no_line_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard error is no terminal, nothing is printed."""
    monkeypatch.setattr(profiler.progress, "_PATIENCE", 0.0)
    monkeypatch.setattr(profiler.progress, "_EVERY", 1)
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with profile() as prof:
        for _ in range(10):
            with record_function("a"):
                pass
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert "" == log.getvalue()
    assert () == ranges._listeners
