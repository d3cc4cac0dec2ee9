"""Comparison of a job's operations with its telemetry at the backend: nothing half or twice, and nothing old lost."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.nightly.kills.history import History
from tests.nightly.kills.job import SHARED_BITS, THREADS
from tests.support.inbox import CUMULATIVE, Point, Record, Span, points_of, records_of, spans_of
from tests.support.receiver import MESSAGES

Window = Mapping[str, Point]

#: Seconds before the death in which samples may be lost: a second, and half a second to spare.
BOUND = 1.5

_DELTA = 1
_SECOND_NS = 10**9
#: The aggregations of a Stat, which are the last part of the names of its metrics.
_SUFFIXES = frozenset({"count", "sum", "min", "max", "value", "mean", "stddev", "histogram"})


class ProcessId(NamedTuple):
    job: int
    pid: int


@dataclass
class Arrived:
    """Telemetry of one process at the backend, each item once."""

    # the points of each Stat's series by time: aggregation -> point; without the zeros at their starts
    windows: dict[str, dict[int, dict[str, Point]]] = field(default_factory=lambda: defaultdict(dict))
    # the points of counters and logged numbers by name, in order of arrival
    points: dict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    records: list[Record] = field(default_factory=list)  # the log records
    ranges: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # numbers of the spans by name
    # number of requests with items that arrived again with the same times and values, by signal
    repeated: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)  # windows that have arrived twice
    starts: dict[tuple[str, str], int] = field(default_factory=dict)  # time of the zero at the start of each sum

    def add(self, item: Point | Record | Span) -> None:
        if isinstance(item, Point):
            self._add_point(item)
        elif isinstance(item, Record):
            self.records.append(item)
        elif item.name.startswith("range."):
            self.ranges[item.name].append(int(item.attributes["number"]))

    def _add_point(self, point: Point) -> None:
        series, _, suffix = point.metric.rpartition(".")
        if suffix not in _SUFFIXES:
            self.points[point.metric].append(point)
        elif suffix in {"count", "sum"} and not point.value and point.temporality == CUMULATIVE:
            if self.starts.setdefault((point.metric, repr(point.attributes)), point.time_ns) != point.time_ns:
                self.problems.append(f"{point.metric} begins twice")
        elif suffix in (others := self.windows[series].setdefault(point.time_ns, {})):
            both = " and ".join(f"{each.value} from {each.start_ns}" for each in (others[suffix], point))
            self.problems.append(f"{point.metric}, twice at {point.time_ns}: {both}")
        else:
            others[suffix] = point


class Arrival(NamedTuple):
    """A request that a backend has stored."""

    signal: str
    body: bytes  # the protobuf message
    answered: bool = True  # the backend has answered, so that the sender need not send it again


def decode(arrivals: Iterable[Arrival]) -> dict[ProcessId, Arrived]:
    """Return the telemetry of each process in requests. An item that arrived again, with equal values, counts once."""
    found: dict[ProcessId, Arrived] = defaultdict(Arrived)
    latest: dict[tuple[ProcessId, object], int] = {}  # requests in which each item has arrived last
    unanswered, repeated = set[int](), set[tuple[ProcessId, str, int]]()
    for number, (signal, body, answered) in enumerate(arrivals):
        if not answered:
            unanswered.add(number)
        for resource, item in _items(signal, MESSAGES[signal][0].FromString(body)):
            process = _process(resource)
            before = latest.get((process, key := _key(item)), number)
            latest[process, key] = number
            if before == number:
                found[process].add(item)
            elif before not in unanswered:
                repeated.add((process, signal, before))
    for process, signal, _ in repeated:
        found[process].repeated[signal] += 1
    return found


def _items(signal: str, message: Any) -> Iterator[tuple[dict[str, Any], Point | Record | Span]]:
    of_signal: dict[str, Any] = {"metrics": points_of, "logs": records_of, "traces": spans_of}
    yield from ((item.resource, item) for item in of_signal[signal](message))


def _key(item: Point | Record | Span) -> object:
    return (item.metric, item.temporality, item.proto.SerializeToString()) if isinstance(item, Point) else repr(item)


def _process(resource: dict[str, Any]) -> ProcessId:
    return ProcessId(resource.get("job", -1), resource.get("process.pid", -1))


@dataclass
class Verdict:
    problems: list[str] = field(default_factory=list)  # breaches of the promise, in words
    lost: int = 0  # number of operations that were done and have not arrived
    done: int = 0  # number of operations that were done
    # operations that are lost although later ones have arrived, by source. A thread that is killed after it has closed
    # a window may lose it, although another thread has closed the next one
    holes: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def compare(
    history: History, arrived: Arrived, died_ns: int | None, *, repeats: int = 1, dropped: bool = False
) -> Verdict:
    """Compare the operations of a process with its telemetry at the backend.

    Args:
        history: The operations.
        arrived: The telemetry.
        died_ns: Time of its death, monotonic ns; None if it had shut down completely, so that nothing may be missing.
        repeats: The most requests of a signal that may have arrived twice.
        dropped: The exit had no time, so that anything may be missing; see :meth:`History.exit_had_no_time`.
    """
    verdict = Verdict(list(arrived.problems))
    for source, begun in history.begun.items():
        done_ns = history.done_ns[source]
        count = _count(source, history, arrived, verdict)
        if count > begun:
            verdict.problems.append(f"{source}: {count} arrived of {begun}")
        verdict.done += len(done_ns)
        for begin, end in [*verdict.holes.pop(source, ()), (count, len(done_ns))]:
            lost_ns = done_ns[begin:end]
            verdict.lost += len(lost_ns)
            if lost_ns and not dropped:
                bound = 0.0 if source.startswith("event") or died_ns is None else _bound_s(history, lost_ns[0], died_ns)
                found = f"{source}: {count} of {len(done_ns)} arrived, without those from {begin} to {end}"
                _judge(found, lost_ns, died_ns, verdict, bound=bound)
    for signal, times in arrived.repeated.items():
        if times > repeats:
            verdict.problems.append(f"{times} requests of {signal} arrived twice, expected at most {repeats}")
    return verdict


def _count(source: str, history: History, arrived: Arrived, verdict: Verdict) -> int:
    """Return how many of the first operations of a source have arrived, and check them."""
    kind, _, thread = source.partition(".")
    if kind.startswith("tile") or kind == "short":
        return _of_tiles(source, arrived.windows.get(source, {}), verdict)
    if kind == "shared":
        return _of_shared(arrived.windows.get(kind, {}), int(thread), verdict)
    if kind == "counter":
        return _of_counter(source, arrived.points.get(source, []), verdict)
    numbers = _numbers(kind, source, arrived, verdict)
    return _of_single_items(source, numbers, history.begun[source], len(history.done_ns[source]), verdict)


def _bound_s(history: History, done_ns: int, died_ns: int) -> float:
    """Return the age in seconds up to which an operation may be lost: that of a process that never waits, and waits.

    The cut that should have included it may have begun up to a second earlier.
    """
    return BOUND + history.lateness(done_ns - _SECOND_NS, died_ns) / _SECOND_NS


def _judge(found: str, lost_ns: list[int], died_ns: int | None, verdict: Verdict, *, bound: float) -> None:
    """Report operations that have not arrived, unless all of them were done so many seconds before the death."""
    if died_ns is None:
        verdict.problems.append(f"{found}, and the process had shut down")
        return
    age = (died_ns - lost_ns[0]) / _SECOND_NS
    if not bound or age > bound:
        older = bisect_right(lost_ns, died_ns - int(bound * _SECOND_NS)) if bound else len(lost_ns)
        verdict.problems.append(
            f"{found}; {older} more are promised: the oldest was done {age:.3f} s before the death, "
            f"and the last {bound:.3f} s may be lost"
        )


def _of_tiles(series: str, windows: Mapping[int, Window], verdict: Verdict) -> int:
    """Check the windows of a series with the samples 1, 2, 3 ...; return the last sample."""
    aggregations = {name for window in windows.values() for name in window} - {"stddev"}
    whole = []
    for time_ns, window in sorted(windows.items()):
        if missing := aggregations - window.keys():
            verdict.problems.append(f"{series}: half a window at {time_ns}, without {sorted(missing)}")
        else:
            whole.append(window)
            verdict.problems += [f"{series}.{problem}" for problem in _of_window(window)]
    end = 0
    for low, high in sorted(_samples(window) for window in whole):
        if low > end + 1:
            verdict.holes[series].append((end, low - 1))
        elif low <= end:
            verdict.problems.append(f"{series}: the window from {low} to {high} follows the sample {end}")
        end = max(end, high)
    for name in ("count", "sum", "histogram"):
        points = [window[name] for window in whole if name in window]
        verdict.problems += [f"{series}.{name}: {problem}" for problem in _of_totals(points, whole, name)]
    return end


def _samples(window: Window) -> tuple[int, int]:
    return int(window["min"].value), int(window["max"].value)


def _of_window(window: Window) -> Iterator[str]:
    low, high = _samples(window)
    expected = {"value": high, "mean": (low + high) / 2}
    if window["count"].temporality == _DELTA:
        expected["count"] = high - low + 1
    for name, value in expected.items():
        if window[name].value != value:
            yield f"{name} is {window[name].value}, expected {value}, for the samples from {low} to {high}"


def _of_totals(points: list[Point], windows: list[Window], name: str) -> Iterator[str]:
    """Yield the problems of sums: they rise, or begin, with the windows, in the order of arrival.

    Two threads may hand over two windows of a Stat in the wrong order: their totals are in that order.
    """
    values = [int(point.proto.count if name == "histogram" else point.value) for point in points]
    if points and points[0].temporality == _DELTA:
        for before, point in pairwise(points):
            if point.start_ns < before.time_ns:
                yield f"the point at {point.time_ns} begins before the earlier one ends"
    else:
        values = [value - before for before, value in pairwise([0, *values])]
        if len({point.start_ns for point in points}) > 1:
            yield "there are several start times"
    samples = [_samples(window) for window in windows if name in window]
    sizes = [(high + 1 - low) * ((low + high) / 2 if name == "sum" else 1) for low, high in samples]
    if Counter(values) != Counter(sizes):
        yield f"the points are {values[:20]}, and the windows {sizes[:20]}"


def _of_shared(windows: Mapping[int, Window], thread: int, verdict: Verdict) -> int:
    """Check the totals of the series that all threads share; return the number of samples of one thread."""
    count = total = seen = 0
    for _, window in sorted(windows.items()):
        if {"count", "sum"} - window.keys():
            verdict.problems.append(f"shared: half a window, {sorted(window)}")
            continue
        count, total = _next_total(window["count"], count), _next_total(window["sum"], total)
        of_threads = [total >> (SHARED_BITS * each) & ((1 << SHARED_BITS) - 1) for each in range(THREADS)]
        if sum(of_threads) != count:
            verdict.problems.append(f"shared: the count is {count}, and the sum that of {of_threads}")
        if of_threads[thread] < seen:
            verdict.problems.append(f"shared: the samples of thread {thread} fall from {seen} to {of_threads[thread]}")
        seen = of_threads[thread]
    return seen


def _of_counter(name: str, points: list[Point], verdict: Verdict) -> int:
    total = before_ns = 0
    for point in sorted(points, key=lambda point: point.time_ns):
        if point.time_ns <= before_ns:
            verdict.problems.append(f"{name}: two points at {before_ns}")
        if point.temporality == _DELTA and point.start_ns < before_ns:
            verdict.problems.append(f"{name}: a point begins before the end of the earlier one")
        before, total, before_ns = total, _next_total(point, total), point.time_ns
        if total < before:
            verdict.problems.append(f"{name} falls from {before} to {total}")
    return total


def _next_total(point: Point, total: int) -> int:
    return int(point.value) + (total if point.temporality == _DELTA else 0)


def _numbers(kind: str, source: str, arrived: Arrived, verdict: Verdict) -> list[int]:
    if kind == "number":
        return [int(point.value) for point in arrived.points.get(source, [])]
    if kind == "range":
        return arrived.ranges.get(source, [])
    records = [record.attributes for record in arrived.records if record.name == source]
    for each in records:
        if each["square"] != each["number"] ** 2 or set(each["text"]) - {"x"}:
            verdict.problems.append(f"{source}: the event {each['number']} is damaged")
    return [int(each["number"]) for each in records]


def _of_single_items(source: str, numbers: list[int], begun: int, done: int, verdict: Verdict) -> int:
    """Check items that arrive one by one; return how many of the first ones have arrived without a gap."""
    found = {*numbers}
    if len(found) < len(numbers):
        twice = sorted(number for number in found if numbers.count(number) > 1)
        verdict.problems.append(f"{source}: {len(twice)} items arrived twice, such as {twice[:5]}")
    if beyond := sorted(number for number in found if not 0 < number <= begun):
        verdict.problems.append(f"{source}: items that the job did not make: {beyond[:5]}")
    return next((number - 1 for number in range(1, done + 1) if number not in found), max(done, len(found)))
