"""Reading and validation of trace files, for tests."""

import gzip
import json
import os
import socket
from pathlib import Path
from typing import Any


def refuse(constant: str) -> None:
    """Refuse NaN and Infinity, which only Python accepts."""
    raise ValueError(constant)


def read(path: Path) -> Any:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text.decode("utf-8"), parse_constant=refuse)


def exported(prof: Any, folder: Path) -> Any:
    prof.export_chrome_trace(folder / "trace.json")
    return validated(read(folder / "trace.json"))


def validated(trace: Any) -> Any:
    """Check that events are of known kinds, sorted, and nested on each line; return the trace."""
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
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def lines(trace: Any) -> dict[str, list[str]]:
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    shown: dict[str, list[str]] = {}
    for event in slices(trace):
        shown.setdefault(named[event["tid"]], []).append(event["name"])
    return shown
