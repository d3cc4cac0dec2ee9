"""The instrumentation scope of monitel, and the version of the semantic conventions that its telemetry follows."""

from __future__ import annotations

from typing import NamedTuple

import monitel


class Scope(NamedTuple):
    """An instrumentation scope: the arguments of ``get_meter()``, ``get_logger()`` and ``get_tracer()``, in order."""

    name: str
    version: str
    schema_url: str


#: Schema of the semantic conventions for the attributes, metrics and events of monitel.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
#: The scope of everything that monitel records.
SCOPE = Scope("monitel", monitel.__version__, SCHEMA_URL)
