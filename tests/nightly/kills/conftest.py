"""Fixtures of the fuzzer: the nursery, a folder in memory, and batches of it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests.nightly.kills.nursery import running_nursery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nightly.kills.nursery import Nursery


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """A server that forks jobs and collectors."""
    with running_nursery(MONITEL_RUN_EVENTS="0") as nursery:
        yield nursery


@pytest.fixture(scope="module")
def memory(boxes_of_session: Path) -> Iterator[Path]:
    """A folder in memory for several tests."""
    with TemporaryDirectory(dir=boxes_of_session) as folder:
        yield Path(folder)
