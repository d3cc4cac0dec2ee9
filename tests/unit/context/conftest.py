"""Fixtures of the context page's tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def context_page(monitel: ModuleType, twin: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield monitel.context_page with one twin; close the page afterwards."""
    monkeypatch.setenv("MONITEL_NO_EXTENSIONS", "1" if twin == "py" else "0")
    module = import_module("monitel.context_page")
    assert f"monitel._context_{twin}" == module._writer.__name__
    yield module
    module.close_page()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a page that a test opens."""
    return tmp_path / "context"


@pytest.fixture
def read(context_page: Any, path: Path) -> Callable[[], Any]:
    """Return a function that reads the file."""
    return lambda: context_page.read_page(path.read_bytes())
