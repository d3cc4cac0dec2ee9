"""Ranks with step traces, and the spans that a backend must have of them, computed from the notes of the ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.services import DEADLINE

RANKS = 2
UNSET, ERROR = 0, 2
_JOB = Path(__file__).parent / "jobs" / "spans_job.py"


class Span(NamedTuple):
    """One span. Ids are hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]
    rank: int = 0
    links: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    events: tuple[tuple[str, dict[str, Any]], ...] = ()


class Ranks:
    """The processes of a job, each of which waits at the end of each part.

    Args:
        url: The base URL of the backend of the spans; other signals stay on disk.
        folder: The working folder of all ranks.
        parts: The number of steps of each part.
        headers: Headers of the requests.
    """

    def __init__(self, url: str, folder: Path, parts: list[int], headers: str = "") -> None:
        self.run = str(folder)
        environment = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}/v1/traces",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": headers,
            "WORLD_SIZE": str(RANKS),
            "TORCHELASTIC_RUN_ID": self.run,
        }
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(_JOB), *map(str, parts)],
                env={**os.environ, **environment, "RANK": str(rank)},
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]

    def wait_until_recorded(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "recorded\n", line or process.communicate(timeout=DEADLINE)

    def flush(self, seconds: float) -> list[str]:
        """Let each rank flush for this time; return what each flush has returned."""
        self._write(f"flush {seconds}\n")
        return [process.stdout.readline().strip() for process in self.processes if process.stdout is not None]

    def go_on(self) -> None:
        """Let all ranks begin the next part, or end."""
        self._write("go on\n")

    def _write(self, line: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()

    def notes(self) -> list[dict[str, Any]]:
        """Wait for the end of all ranks; return the notes of each. Each rank must have delivered everything."""
        found = []
        for process in self.processes:
            stdout, stderr = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, stderr
            delivered, notes = stdout.split(" ", 1)
            assert delivered == "True", stderr
            found.append(json.loads(notes))
        return found


@contextmanager
def ranks(url: str, folder: Path, parts: list[int], headers: str = "") -> Iterator[Ranks]:
    """Start all ranks; end those that are still there at the end."""
    started = Ranks(url, folder, parts, headers)
    try:
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.communicate(timeout=DEADLINE)


def expected(run: str, notes: list[dict[str, Any]]) -> dict[str, Span]:
    """Return the spans that the backend must have, by id. Ids are the documented hashes."""
    found: dict[str, Span] = {}
    for rank, noted in enumerate(notes):
        for path, step, start_ns, end_ns, thread, args, error in noted["ranges"]:
            trace_id = _hash(16, run.encode(), b"0", str(step).encode())
            parent_id = top_id = _hash(8, trace_id, str(rank).encode())
            for name, number in path[:-1]:
                parent_id = _hash(8, parent_id, name.encode(), str(number).encode())
            name, number = path[-1]
            span_id = _hash(8, parent_id, name.encode(), str(number).encode()).hex()
            failed = {"error.type": error} if error else {}
            attributes = {"training.step": step, **thread, **(args or {}), **failed}
            assert span_id not in found, f"{path} has the id of {found[span_id]}"
            ids, times = (trace_id.hex(), span_id, parent_id.hex()), (start_ns, end_ns)
            found[span_id] = Span(*ids, name, *times, ERROR if error else UNSET, attributes, rank)
            root_id = _hash(8, trace_id).hex()
            own = {"training.step": step, "training.rank": rank}
            _extend(found, Span(ids[0], top_id.hex(), root_id, "training.rank", *times, UNSET, own, rank))
            if rank == 0:
                _extend(found, Span(ids[0], root_id, "", "training.step", *times, UNSET, {"training.step": step}))
        for number, each in enumerate(noted["spans"]):
            before = noted["spans"][number - 1]
            links = ((before["trace_id"], before["span_id"], {"kind": "previous"}),) if number else ()
            ids, times = (each["trace_id"], each["span_id"], ""), (each["start_ns"], each["end_ns"])
            events = (("best", {"loss": 0.25}),)
            found[ids[1]] = Span(*ids, "evaluate", *times, ERROR, {"step": each["step"]}, rank, links, events)
    return found


def _extend(found: dict[str, Span], span: Span) -> None:
    """Let the span of a step or of a rank last from its first range to its last."""
    known = found.get(span.span_id, span)
    start_ns, end_ns = min(known.start_ns, span.start_ns), max(known.end_ns, span.end_ns)
    found[span.span_id] = span._replace(start_ns=start_ns, end_ns=end_ns)


def _hash(size: int, *words: bytes) -> bytes:
    return blake2b(b"\0".join(words), digest_size=size).digest()


def read_file(path: Path) -> list[Span]:
    """Return the spans in the file of a Collector: a request in JSON on each line. The last line may be incomplete."""
    found = []
    for line in path.read_text("utf-8").split("\n")[:-1]:
        for resource in json.loads(line)["resourceSpans"]:
            rank = _attributes(resource["resource"])["training.rank"]
            found += [_span(span, rank) for scope in resource["scopeSpans"] for span in scope["spans"]]
    return found


def _span(span: Mapping[str, Any], rank: int) -> Span:
    return Span(
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        span["name"],
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        span["status"].get("code", UNSET),
        _attributes(span),
        rank,
        tuple((each["traceId"], each["spanId"], _attributes(each)) for each in span.get("links", [])),
        tuple((each["name"], _attributes(each)) for each in span.get("events", [])),
    )


def _attributes(message: Mapping[str, Any]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in message.get("attributes", [])}


def _value(value: Mapping[str, Any]) -> Any:
    ((kind, found),) = value.items()
    if kind == "arrayValue":
        return [_value(each) for each in found["values"]]
    return int(found) if kind == "intValue" else found
