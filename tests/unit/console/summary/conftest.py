"""The folder of a run, as ``monitel run`` makes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monitel_otlp.config.run_folder import VARIABLE, make_run_folder, remove_run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the run that has started this process, with somebody who reads the announcements."""
    path, announcements = make_run_folder()
    monkeypatch.setenv(VARIABLE, path)
    yield Path(path)
    os.close(announcements)
    remove_run_folder(path)
