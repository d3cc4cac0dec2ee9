"""The check of all requests of a test: messages of all signals, in order of arrival."""

from collections.abc import Collection, Iterable
from typing import Any

from tests.support.validity.envelope import Envelopes
from tests.support.validity.intervals import Intervals
from tests.support.validity.logs import check_logs
from tests.support.validity.names import Names
from tests.support.validity.points import check_points
from tests.support.validity.rules import RULES, Finding, Findings
from tests.support.validity.traces import Traces

_SHOWN = 20


def violations(requests: Iterable[tuple[str, Any]], *, distro: bool = True, undisturbed: bool = True) -> list[Finding]:
    """Return the violations in requests, each with its signal, in order of arrival.

    With ``distro``, resources and scopes must be as monitel-otlp writes them. ``undisturbed``: every request was
    accepted at once, so each point arrives once, and in order.
    """
    findings = Findings()
    envelopes, names, intervals = (
        Envelopes(findings, distro=distro),
        Names(findings),
        Intervals(findings, apart=distro, undisturbed=undisturbed),
    )
    traces = Traces(findings)
    arrived: set[tuple[str, bytes]] = set()
    for number, (signal, message) in enumerate(requests):
        content = signal, message.SerializeToString(deterministic=True)
        first = content not in arrived  # a request may arrive again after a lost answer
        arrived.add(content)
        for scoped in envelopes.open(signal, message, f"{signal}[{number}]"):
            if signal == "metrics":
                names.check(scoped)
                for position, metric in enumerate(scoped.records):
                    check_points(metric, f"{scoped.path}[{position}] {metric.name}", findings)
                if first:
                    intervals.collect(scoped)
            elif signal == "logs":
                check_logs(scoped, findings)
            else:
                traces.collect(scoped)
    intervals.check()
    traces.check()
    return findings.found


def assert_valid(
    requests: Iterable[tuple[str, Any]], *, distro: bool = True, undisturbed: bool = True, broken: Collection[str] = ()
) -> None:
    assert set(broken) <= set(RULES), broken
    found = [each for each in violations(requests, distro=distro, undisturbed=undisturbed) if each.rule not in broken]
    shown = [str(each) for each in found[:_SHOWN]]
    assert not found, "\n".join([f"violations in what was sent: {len(found)}", *shown])
