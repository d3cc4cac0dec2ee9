"""Spans: ids, times, parents and status, over all requests."""

from typing import Any, NamedTuple

from tests.support.validity.envelope import OWN, Scoped, check_attributes
from tests.support.validity.rules import Findings

_IS_REMOTE = 0x200
_ERROR = 2
_FOLDED = "monitel.folded"  # lasts as long as the ranges that it stands for, on any thread


class _Span(NamedTuple):
    resource: bytes
    scope: str
    path: str
    content: bytes
    span: Any


class Traces:
    """Checks spans by themselves as they come, and the tree that they form at the end."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._spans: dict[tuple[bytes, bytes], _Span] = {}
        self._trace_of: dict[bytes, bytes] = {}

    def collect(self, scoped: Scoped) -> None:
        findings = self._findings
        for number, span in enumerate(scoped.records):
            path = f"{scoped.path}[{number}] {span.name}"
            check_attributes(span.attributes, path, findings)
            ids = (span.trace_id, span.span_id, span.parent_span_id or b"1" * 8)
            are_valid = tuple(map(len, ids)) == (16, 8, 8) and all(map(any, ids))
            findings.check(are_valid, "span.ids", path, [each.hex() for each in ids])
            findings.check(span.name, "span.name", path)
            findings.check(span.kind, "span.kind", path)
            start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
            findings.check(start_ns and end_ns >= start_ns, "span.time", path, f"{start_ns} to {end_ns}")
            findings.check(span.status.code == _ERROR or not span.status.message, "span.status", path)
            content = span.SerializeToString(deterministic=True)
            kept = self._spans.setdefault(
                (span.trace_id, span.span_id), _Span(scoped.resource, scoped.scope, path, content, span)
            )
            findings.check(kept.content == content, "span.duplicate", path, f"{span.span_id.hex()}, {kept.span.name}")
            self._trace_of.setdefault(span.span_id, span.trace_id)

    def check(self) -> None:
        for (trace_id, _), each in self._spans.items():
            parent_id = each.span.parent_span_id
            if not parent_id:
                continue
            parent = self._spans.get((trace_id, parent_id))
            if parent is None:
                self._missing(each, trace_id, parent_id)
            else:
                self._within(each, parent)
                self._ancestors(each, trace_id)

    def _missing(self, each: _Span, trace_id: bytes, parent_id: bytes) -> None:
        elsewhere = self._trace_of.get(parent_id)
        if elsewhere is not None:
            self._findings.add("span.parent.trace", each.path, f"{elsewhere.hex()}, not {trace_id.hex()}")
        elif each.scope == OWN and not each.span.flags & _IS_REMOTE:
            self._findings.add("span.parent", each.path, parent_id.hex())

    def _within(self, each: _Span, parent: _Span) -> None:
        if each.resource != parent.resource or each.scope != OWN or parent.scope != OWN or each.span.name == _FOLDED:
            return
        inner, outer = each.span, parent.span
        early = outer.start_time_unix_nano - inner.start_time_unix_nano
        late = inner.end_time_unix_nano - outer.end_time_unix_nano
        self._findings.check(max(early, late) <= 0, "span.within", each.path, f"{outer.name}: {early}, {late} ns")

    def _ancestors(self, each: _Span, trace_id: bytes) -> None:
        seen = {each.span.span_id}
        parent: _Span | None = each
        while parent is not None and parent.span.parent_span_id:
            if parent.span.parent_span_id in seen:
                self._findings.add("span.cycle", each.path, parent.span.name)
                return
            parent = self._spans.get((trace_id, parent.span.parent_span_id))
            if parent is not None:
                seen.add(parent.span.span_id)
