"""A spool on a shared file system, in a folder that others can write to, and the signals that its limit applies to."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.support.spools import load, make_request, write

from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from pathlib import Path


def test_file_system_with_mapped_owners_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS with root_squash shows every file as another user's; a file that is created there reveals the mapping."""
    write(tmp_path / "spool", make_request(0))
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    write(tmp_path / "squashed", make_request(1))
    assert [make_request(1)] == load(tmp_path / "squashed")
    assert [make_request(0)] == load(tmp_path / "spool")


def test_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """Another user may have created the folder with the name that this process uses."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o777)
    with pytest.raises(SpoolError, match="other users can write to"):
        Spool(tmp_path / "spool").append(make_request(1))
    assert [] == list((tmp_path / "spool").iterdir())


def test_signals_without_an_endpoint_are_not_limited(tmp_path: Path) -> None:
    """The limit applies only to signals with an endpoint."""
    with closing(Spool(tmp_path / "spool", 500, ["metrics"])) as spool:
        spool.append(make_request(1, "logs", body=b"x" * 1000))
        assert spool.oldest("logs") is not None
