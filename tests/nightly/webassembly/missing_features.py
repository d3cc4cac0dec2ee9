"""Plugin of pytest: a test that needs a feature that WebAssembly lacks is skipped where it asks for the feature."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_MISSING = re.compile(
    r"can't start new thread|Function not implemented|emscripten does not support processes"
    r"|stack switching not supported"
    r"|module '(?:signal|os|threading)' has no attribute '(?:setitimer|alarm|fork|mkfifo|get_native_id)'"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test instead of failing it for a missing feature."""
    try:
        yield
    except (AttributeError, OSError, RuntimeError) as error:
        if missing := _MISSING.search(str(error)):
            pytest.skip(f"WebAssembly: {missing[0]}")
        raise
