"""Requests that a backend inside pytest has received: decoded, with functions to wait for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from threading import Condition
from typing import Any, Literal, TypeVar

from tests.support.validity.envelope import LEVELS

Number = int | float
OwnInbox = TypeVar("OwnInbox", bound="Inbox")
Rule = Callable[["Request"], "Answer | None"]

CUMULATIVE = 2  # aggregation temporality
TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
DEADLINE = 60.0  # seconds, for operations that take a fraction of a second, on a busy machine

#: The inboxes of the running test. At its end everything that they have accepted is checked; see ``validity``.
opened: list[Inbox] = []


@dataclass(frozen=True)
class Answer:
    """An answer to a request; the default is that of a healthy backend."""

    status: int = 200  # HTTP status (:class:`GrpcAnswer` has a gRPC status)
    headers: Mapping[str, str] = field(default_factory=dict)  # headers of the answer
    body: bytes | None = None  # the encoded answer; None is the empty OTLP response of the signal
    delay: float = 0.0  # seconds before the answer
    # ``drop unread`` closes the connection before the body is read, ``drop unanswered`` after the data was accepted,
    # ``drop in answer`` in the middle of the answer; ``hang`` never answers
    fault: Literal["", "drop unread", "drop unanswered", "drop in answer", "hang"] = ""

    @property
    def takes(self) -> bool:
        return 200 <= self.status < 300 and self.fault not in {"drop unread", "hang"}


@dataclass(frozen=True)
class Request:
    signal: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    message: Any
    answer: Answer
    arrived: float = field(default_factory=time.monotonic)

    @cached_property
    def points(self) -> list[Point]:
        """The data points of a metrics request. Tests that wait ask for them after each arrival."""
        return [*points_of(self.message)]

    @cached_property
    def records(self) -> list[Record]:
        return [*records_of(self.message)]

    @cached_property
    def spans(self) -> list[Span]:
        return [*spans_of(self.message)]


@dataclass(frozen=True)
class Point:
    metric: str
    kind: str
    value: Number
    time_ns: int
    start_ns: int
    attributes: dict[str, Any]
    unit: str
    description: str
    monotonic: bool | None
    temporality: int | None
    scope: str
    resource: dict[str, Any]
    proto: Any


@dataclass(frozen=True)
class Record:
    name: str
    time_ns: int
    observed_ns: int
    severity: int
    attributes: dict[str, Any]
    body: Any
    trace_id: str
    span_id: str
    scope: str
    resource: dict[str, Any]
    severity_text: str
    proto: Any


@dataclass(frozen=True)
class Span:
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    flags: int
    scope: str
    resource: dict[str, Any]
    status: int
    proto: Any


class Inbox:
    """Requests in order of arrival, over any transport, and the answers that a test has prepared; a context manager.

    ``points()``, ``records()`` and ``spans()`` return the content of accepted requests (see :attr:`Answer.takes`).
    """

    url: str
    protocol: str  # the argument of ``configure()``

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.failures: list[BaseException | None] = []  # of the server
        self._changed = Condition()
        self._script: dict[str, deque[Answer]] = {}
        self._rules: list[Rule] = []
        opened.append(self)

    def __enter__(self: OwnInbox) -> OwnInbox:  # noqa: PYI019  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.stop()
        if self.failures:
            raise AssertionError("the receiver failed") from self.failures[0]

    def stop(self) -> None:
        raise NotImplementedError

    def answer(self, signal: str, *answers: Answer) -> None:
        self._script.setdefault(signal, deque()).extend(answers)

    def rule(self, rule: Rule) -> None:
        """Call ``rule`` for the answer to each request without a prepared answer; None leaves it to earlier rules."""
        self._rules.insert(0, rule)

    def forget_rules(self) -> None:
        self._rules.clear()
        self._script.clear()

    def scripted(self, signal: str) -> Answer | None:
        script = self._script.get(signal)
        return script.popleft() if script else None

    def decide(self, request: Request) -> Answer:
        return next((answer for rule in self._rules if (answer := rule(request)) is not None), Answer())

    def add(self, request: Request) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def wait_until(self, predicate: Callable[[], object], deadline: float = DEADLINE) -> None:
        """Call ``predicate`` after each arrival until it holds; fail the test after ``deadline`` seconds."""
        with self._changed:
            assert self._changed.wait_for(predicate, deadline), (
                f"not within {deadline:g} s; received: {[(each.signal, each.answer.status) for each in self.requests]}"
            )

    def of(self, signal: str) -> list[Request]:
        return [request for request in list(self.requests) if request.signal == signal]

    def points(self, metric: str) -> list[Point]:
        """Return the data points of one metric, in order of arrival, without :meth:`start_points`."""
        return [point for point, is_start in self._marked_points(metric) if not is_start]

    def start_points(self, metric: str) -> list[Point]:
        """Return the points of value zero with which the series of a cumulative sum begin.

        A start point is the first one with its start time, is not earlier than that, and has the next point of the
        series beside it in the request. A later pipeline starts the series again.
        """
        return [point for point, is_start in self._marked_points(metric) if is_start]

    def _marked_points(self, metric: str) -> Iterator[tuple[Point, bool]]:
        seen: set[tuple[str, int]] = set()
        for request in self._taken("metrics"):
            points = [point for point in request.points if point.metric == metric]
            for point, following in zip_longest(points, points[1:]):
                beside = following is not None and _series(following) == _series(point)
                is_zero = point.value == 0 and point.temporality == CUMULATIVE and point.time_ns >= point.start_ns
                start = _series(point), point.start_ns
                yield point, is_zero and beside and start not in seen
                seen.add(start)

    def values(self, metric: str) -> list[Number]:
        return [point.value for point in self.points(metric)]

    def all_points(self) -> Iterator[Point]:
        for request in self._taken("metrics"):
            yield from request.points

    def records(self, name: str | None = None) -> list[Record]:
        found = [record for request in self._taken("logs") for record in request.records]
        return [record for record in found if name in {None, record.name}]

    def numbers(self, name: str | None = None) -> list[Any]:
        """Return the attribute ``number`` of the records with a name."""
        return [record.attributes["number"] for record in self.records(name)]

    def record_names(self) -> list[str]:
        return [record.name for record in self.records()]

    def spans(self) -> list[Span]:
        return [span for request in self._taken("traces") for span in request.spans]

    def span(self, name: str) -> Span:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def parents(self) -> dict[str, str]:
        """Return the name of each span's parent by the name of the span, or "" if no parent was received.

        Ids and names must be unique.
        """
        spans = self.spans()
        names = {span.span_id: span.name for span in spans}
        assert len(spans) == len(names) == len(set(names.values()))
        return {span.name: names.get(span.parent_id, "") for span in spans}

    def _taken(self, signal: str) -> Iterator[Request]:
        return (request for request in self.of(signal) if request.answer.takes)


def _series(point: Point) -> str:
    return repr((point.resource, point.attributes))


def all_accepted() -> bool:
    """Return True if every request of the test was accepted at once.

    A request that was refused is sent again behind later ones, and one without an answer may be sent again in parts.
    """
    answers = [request.answer for inbox in opened for request in list(inbox.requests)]
    return all(each.takes and not each.fault and not each.delay for each in answers)


def take_accepted() -> list[tuple[str, Any]]:
    """Return signal and message of all accepted requests of the test, in order of arrival, and forget its inboxes."""
    requests = [request for inbox in opened for request in list(inbox.requests)]
    opened.clear()
    requests.sort(key=lambda request: request.arrived)
    return [(request.signal, request.message) for request in requests if request.answer.takes]


def _inside(message: Any, signal: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield the metrics, records or spans of a request, each with its scope and its resource."""
    resources, scopes, records = LEVELS[signal]
    for each in getattr(message, resources):
        resource = attributes_of(each.resource.attributes)
        for scoped in getattr(each, scopes):
            for record in getattr(scoped, records):
                yield scoped.scope.name, resource, record


def points_of(message: Any) -> Iterator[Point]:
    for scope, resource, metric in _inside(message, "metrics"):
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        monotonic = data.is_monotonic if kind == "sum" else None
        temporality = None if kind == "gauge" else data.aggregation_temporality
        described: tuple[Any, Any, Any, Any] = metric.unit, metric.description, monotonic, temporality
        for point in data.data_points:
            value = point.sum if kind.endswith("histogram") else getattr(point, point.WhichOneof("value"))
            times, attributes = (point.time_unix_nano, point.start_time_unix_nano), attributes_of(point.attributes)
            yield Point(metric.name, kind, value, *times, attributes, *described, scope, resource, point)


def records_of(message: Any) -> Iterator[Record]:
    for scope, resource, record in _inside(message, "logs"):
        times = record.time_unix_nano, record.observed_time_unix_nano
        content = record.severity_number, attributes_of(record.attributes), _value(record.body)
        ids = record.trace_id.hex(), record.span_id.hex()
        yield Record(record.event_name, *times, *content, *ids, scope, resource, record.severity_text, record)


def spans_of(message: Any) -> Iterator[Span]:
    for scope, resource, span in _inside(message, "traces"):
        times, attributes = (span.start_time_unix_nano, span.end_time_unix_nano), attributes_of(span.attributes)
        ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        rest: Any = span.kind, span.flags, scope, resource, span.status.code, span
        yield Span(span.name, *times, attributes, *ids, *rest)


def attributes_of(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return None if kind is None else getattr(value, kind)
