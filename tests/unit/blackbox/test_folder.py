"""The folder of the boxes: private, in memory, and never one that another user could replace."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitel.blackbox import folder
from monitel.blackbox.folder import automatic_roots, open_root

NAME = f"monitel-{os.geteuid()}"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")


@pytest.fixture
def candidates(own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The two folders that are considered without a given one, which do not exist, both in memory."""
    shared, runtime = own_boxes / "shm", own_boxes / "runtime"
    for each in (own_boxes, shared, runtime):
        each.mkdir(mode=0o700)
    shared.chmod(0o1777)
    monkeypatch.setattr(folder, "_SHARED_MEMORY", shared)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield shared / NAME, runtime / NAME
    for each in (shared / NAME, runtime / NAME):
        if each.exists() and not each.is_symlink():
            os.chown(each, os.geteuid(), -1)


def choose(given: Path | None = None) -> Path:
    root = open_root(given)
    root.close()
    return root.path


@needs_root
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_default_folder_is_that_of_the_user_alone(candidates: tuple[Path, Path]) -> None:
    """Shared memory first; the runtime folder if something unsafe is in its place, about which nothing is repaired."""
    shared, runtime = candidates
    assert [shared, runtime] == automatic_roots()
    assert shared == choose()
    assert 0o700 == shared.stat().st_mode & 0o7777
    shared.chmod(0o750)
    assert (runtime, 0o750) == (choose(), shared.stat().st_mode & 0o7777)
    shared.chmod(0o700)
    os.chown(shared, 12345, 12345)
    assert runtime == choose()
    shared.rmdir()
    shared.with_name("target").mkdir(mode=0o700)
    shared.symlink_to(shared.with_name("target"))
    assert runtime == choose()
    assert [] == [*shared.with_name("target").iterdir()]
    shared.unlink()
    shared.parent.chmod(0o777)  # others could replace it
    assert runtime == choose()
