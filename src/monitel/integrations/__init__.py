"""Adapters for training frameworks. Each module imports its framework, and is imported where it is first used."""

from functools import partial as _partial
from typing import TYPE_CHECKING as _TYPE_CHECKING

from monitel import _on_demand

if _TYPE_CHECKING:
    from monitel.integrations import accelerate as accelerate
    from monitel.integrations import lightning as lightning
    from monitel.integrations import transformers as transformers

__getattr__ = _partial(_on_demand, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), "accelerate", "lightning", "transformers"})
