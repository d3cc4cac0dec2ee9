"""Security of a spool in a shared folder: no link is followed, and files of other users are not touched."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.support.spools import load, make_request, write

from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spool with two metrics requests, a position and a rejected request."""
    folder = tmp_path / "spool"
    with closing(Spool(folder)) as spool:
        for number in range(3):
            spool.append(make_request(number))
        spool.remove_oldest("metrics")
        spool.set_aside(make_request(7), "HTTP 400")
    return folder


def test_file_system_with_mapped_owners_is_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS with root_squash shows every file as another user's; a file that is created there reveals the mapping."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    write(tmp_path / "squashed", make_request(1))
    assert [make_request(1)] == load(tmp_path / "squashed")
    assert [make_request(1), make_request(2)] == load(folder)


def test_unsafe_existing_folder_is_not_written(tmp_path: Path) -> None:
    """Another user may have created the folder with the name that this process uses."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o777)
    with pytest.raises(SpoolError, match="other users can write to"):
        Spool(tmp_path / "spool").append(make_request(1))
    assert [] == list((tmp_path / "spool").iterdir())
