"""The OpenTelemetry pipeline of monitel: providers, OTLP delivery, spool and exit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

__all__ = ["Account", "Pipeline", "RankResourceDetector", "configure"]

if TYPE_CHECKING:
    from monitel.blackbox.journal import Account
    from monitel_otlp.config.resource import RankResourceDetector
    from monitel_otlp.configuration import configure
    from monitel_otlp.pipeline import Pipeline
else:  # lazy: the SDK imports this module as a resource detector, before the import of the SDK has finished
    _MODULES = {
        "Account": "monitel.blackbox.journal",
        "Pipeline": "monitel_otlp.pipeline",
        "RankResourceDetector": "monitel_otlp.config.resource",
        "configure": "monitel_otlp.configuration",
    }

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
