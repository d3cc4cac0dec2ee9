"""The instrumentation scope of monitel, and the version of the semantic conventions that its telemetry follows."""

import monitel

#: Schema of the semantic conventions for the attributes, metrics and events of monitel.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
#: Name, version and schema: the arguments of ``get_meter()``, ``get_logger()`` and ``get_tracer()``, in order.
SCOPE = ("monitel", monitel.__version__, SCHEMA_URL)
