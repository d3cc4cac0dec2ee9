"""Folders of boxes and of spools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def boxes(own_boxes: Path) -> Path:
    """A folder in memory for the boxes."""
    return own_boxes


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder that holds spools."""
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"
