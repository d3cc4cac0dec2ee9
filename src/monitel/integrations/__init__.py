"""Adapters for training frameworks. Each module imports its framework, and is imported where it is first used."""

from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from monitel import _on_demand

if _TYPE_CHECKING:
    from monitel.integrations import accelerate as accelerate
    from monitel.integrations import lightning as lightning
    from monitel.integrations import transformers as transformers


def __getattr__(name: str) -> _ModuleType:
    return _on_demand(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), "accelerate", "lightning", "transformers"})
