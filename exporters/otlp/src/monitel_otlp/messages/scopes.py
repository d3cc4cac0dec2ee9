"""Resources and scopes of requests, with the schema of the semantic conventions."""

from __future__ import annotations

from typing import Any

from monitel_otel.scope import SCHEMA_URL, SCOPE


def write_scope(target: Any, scope: tuple[str, str, str] = SCOPE) -> None:
    """Fill the header of a ``ScopeMetrics``, ``ScopeLogs`` or ``ScopeSpans`` with name, version and schema."""
    target.scope.name, target.scope.version, target.schema_url = scope


def is_own(target: Any) -> bool:
    """Return True if a ``ScopeMetrics``, ``ScopeLogs`` or ``ScopeSpans`` is monitel's."""
    return bool(target.scope.name == SCOPE[0])


def complete_schema(target: Any) -> None:
    """Set the schema of a ``ResourceMetrics``, ``ResourceLogs`` or ``ResourceSpans``, unless it has one."""
    if not target.schema_url:
        target.schema_url = SCHEMA_URL
