"""What a backend inside pytest has received: decoded, and to be waited for."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Number = int | float
    Rule = Callable[["Request"], "Answer | None"]

DEADLINE = 20.0  # seconds, for what takes a fraction of one


@dataclass(frozen=True)
class Answer:
    """How a request is answered; the default is what a healthy backend says.

    Attributes:
        status: HTTP status (a gRPC twin has its own codes).
        headers: Headers of the answer.
        body: The encoded answer; None is the empty OTLP response of the signal.
        delay: Seconds before the answer.
        fault: ``drop unread`` closes the connection before the body is read, ``drop unanswered`` after the data was
            taken, ``drop in answer`` in the middle of the answer; ``hang`` never answers, and ``drip`` does so a byte
            at a time, too slowly for any deadline.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    delay: float = 0.0
    fault: Literal["", "drop unread", "drop unanswered", "drop in answer", "hang", "drip"] = ""

    @property
    def takes(self) -> bool:
        """Whether a backend that answers so has the data."""
        return 200 <= self.status < 300 and self.fault not in {"drop unread", "hang", "drip"}


@dataclass(frozen=True)
class Request:
    """One request, and how it was answered."""

    signal: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    message: Any
    answer: Answer
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Point:
    """One data point of a sum, gauge or histogram."""

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
    """One log record."""

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


@dataclass(frozen=True)
class Span:
    """One span."""

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


class Inbox:
    """Requests in order of arrival, whatever the transport, and the answers that a test wants given.

    ``points()``, ``records()`` and ``spans()`` are of the requests that were taken (see :class:`Answer`).
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._changed = Condition()
        self._script: dict[str, deque[Answer]] = {}
        self._rules: list[Rule] = []

    def answer(self, signal: str, *answers: Answer) -> None:
        """Give these answers to the next requests of a signal, one each."""
        self._script.setdefault(signal, deque()).extend(answers)

    def rule(self, rule: Rule) -> None:
        """Ask ``rule`` for the answer to every request that has none scripted; None is no opinion."""
        self._rules.insert(0, rule)

    def forget_rules(self) -> None:
        """Be healthy again."""
        self._rules.clear()
        self._script.clear()

    def scripted(self, signal: str) -> Answer | None:
        """Take the next scripted answer."""
        script = self._script.get(signal)
        return script.popleft() if script else None

    def decide(self, request: Request) -> Answer:
        """Ask the rules."""
        return next((answer for rule in self._rules if (answer := rule(request)) is not None), Answer())

    def add(self, request: Request) -> None:
        """Note a request, and wake whoever waits."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def wait_until(self, predicate: Callable[[], object], deadline: float = DEADLINE) -> None:
        """Wait until ``predicate`` holds, looked at after each arrival; fail after ``deadline`` seconds."""
        with self._changed:
            assert self._changed.wait_for(predicate, deadline), (
                f"not within {deadline:g} s; there are {[(each.signal, each.answer.status) for each in self.requests]}"
            )

    def of(self, signal: str) -> list[Request]:
        """The requests of one signal."""
        return [request for request in list(self.requests) if request.signal == signal]

    def points(self, metric: str) -> list[Point]:
        """The data points of one metric, in order of arrival."""
        return [point for point in self.all_points() if point.metric == metric]

    def values(self, metric: str) -> list[Number]:
        """Their values."""
        return [point.value for point in self.points(metric)]

    def all_points(self) -> Iterator[Point]:
        """The data points of all metrics."""
        for request in self._taken("metrics"):
            yield from points_of(request.message)

    def records(self, name: str | None = None) -> list[Record]:
        """The log records, of one event name or all."""
        found = [record for request in self._taken("logs") for record in records_of(request.message)]
        return [record for record in found if name in {None, record.name}]

    def spans(self) -> list[Span]:
        """The spans."""
        return [span for request in self._taken("traces") for span in spans_of(request.message)]

    def _taken(self, signal: str) -> Iterator[Request]:
        return (request for request in self.of(signal) if request.answer.takes)


def points_of(message: Any) -> Iterator[Point]:
    """The data points of a metrics request."""
    for resource_metrics in message.resource_metrics:
        resource = attributes_of(resource_metrics.resource.attributes)
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    value = point.sum if kind.endswith("histogram") else getattr(point, point.WhichOneof("value"))
                    yield Point(
                        metric.name,
                        kind,
                        value,
                        point.time_unix_nano,
                        point.start_time_unix_nano,
                        attributes_of(point.attributes),
                        metric.unit,
                        metric.description,
                        data.is_monotonic if kind == "sum" else None,
                        data.aggregation_temporality if kind != "gauge" else None,
                        scope_metrics.scope.name,
                        resource,
                        point,
                    )


def records_of(message: Any) -> Iterator[Record]:
    """The log records of a logs request."""
    for resource_logs in message.resource_logs:
        resource = attributes_of(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                yield Record(
                    record.event_name,
                    record.time_unix_nano,
                    record.observed_time_unix_nano,
                    record.severity_number,
                    attributes_of(record.attributes),
                    _value(record.body),
                    record.trace_id.hex(),
                    record.span_id.hex(),
                    scope_logs.scope.name,
                    resource,
                )


def spans_of(message: Any) -> Iterator[Span]:
    """The spans of a traces request."""
    for resource_spans in message.resource_spans:
        resource = attributes_of(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield Span(
                    span.name,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    attributes_of(span.attributes),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.flags,
                    scope_spans.scope.name,
                    resource,
                )


def attributes_of(pairs: Iterable[Any]) -> dict[str, Any]:
    """Attributes as a dict."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
