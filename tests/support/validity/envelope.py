"""Resources, scopes and attributes, which the messages of all signals have in common."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.support.validity.rules import Findings

#: Fields of the messages of each signal: resources, scopes, records.
LEVELS = {
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "traces": ("resource_spans", "scope_spans", "spans"),
}
OWN = "monitel"
_SDK = ("service.name", "telemetry.sdk.name", "telemetry.sdk.language", "telemetry.sdk.version")
_DISTRO = ("telemetry.distro.name", "telemetry.distro.version")


class Scoped(NamedTuple):
    resource: bytes
    scope: str
    path: str
    records: Any


class Envelopes:
    """Checks resources and scopes, with ``distro`` those of a distribution of the SDK; returns the records inside."""

    def __init__(self, findings: Findings, *, distro: bool = True) -> None:
        self._findings = findings
        self._distro = distro
        self._good: set[bytes] = set()
        self._scopes: dict[tuple[bytes, str], tuple[str, str]] = {}

    def open(self, signal: str, message: Any, path: str) -> Iterator[Scoped]:
        """Check the resources and scopes of a request, and yield the records of each scope."""
        resources, scopes, records = LEVELS[signal]
        seen: set[bytes] = set()
        for number, each in enumerate(getattr(message, resources)):
            where = f"{path}.{resources}[{number}]"
            key = identity(each.resource.attributes)
            self._findings.check(key not in seen, "resource.twice", where)
            seen.add(key)
            self._resource(each, key, where)
            self._scopes_of(getattr(each, scopes), where)
            for position, scoped in enumerate(getattr(each, scopes)):
                inside = f"{where}.{scopes}[{position}]"
                self._scope(scoped, key, inside)
                found = getattr(scoped, records)
                self._findings.check(len(found), "resource.empty", inside)
                yield Scoped(key, scoped.scope.name, f"{inside}.{records}", found)

    def _resource(self, each: Any, key: bytes, path: str) -> None:
        if self._distro:
            self._findings.check(each.schema_url, "resource.schema", path)
        if key in self._good:
            return
        self._good.add(key)
        check_attributes(each.resource.attributes, f"{path}.resource", self._findings)
        present = {pair.key for pair in each.resource.attributes}
        for rule, names in (("resource.required", _SDK), ("resource.distro", _DISTRO if self._distro else ())):
            for name in names:
                self._findings.check(name in present, rule, f"{path}.resource", name)

    def _scopes_of(self, scopes: Any, path: str) -> None:
        seen = set()
        for each in scopes:
            key = (each.scope.name, each.scope.version, each.schema_url)
            self._findings.check(key not in seen, "scope.twice", path, key)
            seen.add(key)
            name = each.scope.name
            if name.startswith(f"{OWN}.") or (name == OWN and sum(other[0] == OWN for other in seen) > 1):
                self._findings.add("scope.other", path, name)

    def _scope(self, scoped: Any, resource: bytes, path: str) -> None:
        scope = scoped.scope
        self._findings.check(scope.name, "scope.name", path)
        check_attributes(scope.attributes, f"{path}.scope", self._findings)
        if scope.name != OWN:
            return
        self._findings.check(scope.version, "scope.version", path)
        if self._distro:
            self._findings.check(scoped.schema_url, "scope.schema", path)
        kept = self._scopes.setdefault((resource, scope.name), (scope.version, scoped.schema_url))
        found = (scope.version, scoped.schema_url)
        self._findings.check(found == kept, "scope.changed", path, f"{found}, earlier {kept}")


def check_attributes(pairs: Any, path: str, findings: Findings) -> None:
    keys = [pair.key for pair in pairs]
    if len(set(keys)) < len(keys):
        findings.add("attribute.twice", path, keys)
    for pair in pairs:
        if not any(each.isascii() and each.isalnum() for each in pair.key):
            findings.add("attribute.key", path)
        if pair.value.WhichOneof("value") is None:
            findings.add("attribute.value", path, pair.key)


def identity(pairs: Iterable[Any]) -> bytes:
    return b"\0".join(sorted([pair.SerializeToString(deterministic=True) for pair in pairs]))
