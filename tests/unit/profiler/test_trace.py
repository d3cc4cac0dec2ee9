"""Traces: strictly valid for any text and any order of ranges, in files and pipes."""

import json
import os
import threading
from pathlib import Path
from typing import Any, NoReturn
from weakref import proxy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.profiler.traces import exported, slices, validated

from monitel.profiler import ExecutionTraceObserver, profile, record_function
from monitel.profiler.trace import RESERVED_KEYS
from monitel.testing import ManualClock

#: Text with unpaired surrogates, which st.text() never has.
TEXT = st.lists(st.characters() | st.sampled_from('\ud800\udfff\0\n\x7f\\"'), max_size=9).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(), inner, max_size=3),
    max_leaves=5,
)


class Unreadable(dict[str, int]):
    def items(self) -> NoReturn:
        raise LookupError


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_details_that_raise(tmp_path: Path) -> None:
    """An object that is gone, and a mapping that cannot be read, are text; the rest of the trace is complete."""
    observer = ExecutionTraceObserver().register_callback(tmp_path / "graph.json")
    with profile(execution_trace_observer=observer) as prof:
        for args in (proxy(Unreadable()), Unreadable(a=1), {"a": Unreadable(a=1)}):
            with record_function("a", args):
                pass
    found = [event["args"].get("args") or event["args"]["a"] for event in slices(exported(prof, tmp_path))]
    assert ["<ProxyType raised ReferenceError>", *2 * ["<Unreadable raised LookupError>"]] == found
    assert 5 == len(json.loads((tmp_path / "graph.json").read_text())["nodes"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
