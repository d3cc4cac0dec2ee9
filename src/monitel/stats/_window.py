"""The open window of a Stat: in C if the extension was built, otherwise in Python.

``MONITEL_NO_EXTENSIONS=1``, read at import, selects the Python twin.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel.stats import _window_py
from monitel.stats._window_py import *  # noqa: F403  the names in its __all__, which the twin has as well

if not TYPE_CHECKING and os.environ.get("MONITEL_NO_EXTENSIONS", "0") in {"", "0"}:
    # Missing if there was no compiler; any other ImportError is a fault that must be raised.
    with suppress(ModuleNotFoundError):
        from monitel.stats._window_c import *  # noqa: F403

__all__ = _window_py.__all__
