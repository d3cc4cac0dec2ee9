"""Search for black boxes: each entry of the folder is in one list or is a problem, and nothing raises."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.blackbox.boxes.holders import holding, kill_with_box, needs_root

from monitel_otlp.boxes import place
from monitel_otlp.boxes.discovery import Boxes, find_boxes, holds_boxes, process_of
from monitel_otlp.boxes.place import remove_box
from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable


def make(path: Path, *, lock: bool = True, age: float = 0.0) -> Path:
    """Make a box without content, of no process."""
    path.mkdir(0o700)
    if lock:
        (path / "lock").touch(0o600)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


@pytest.fixture
def root(own_boxes: Path) -> Path:
    """A folder for boxes, which only this user can read."""
    own_boxes.mkdir(0o700)
    return own_boxes


def test_each_box_is_in_one_list(root: Path) -> None:
    """By its name, and by its lock."""
    dead = kill_with_box(root)
    expected: dict[str, Any] = {
        "dead": sorted([dead, make(root / "7-1-0000aa"), make(root / "7-1-0000ab", lock=False)]),
        "collected": [make(root / "7-1-0000ac.collected")],
        "corrupt": [make(root / "7-1-0000ad.corrupt")],
        "unfinished": sorted(
            [
                make(root / ".7-1-0000ae", age=61),
                make(root / ".7-1-0000af", lock=False, age=3600),
                make(root / ".7-1-0000b0.collected", age=61),
                make(root / ".7-1-0000b1", age=-3600),  # the clock was set back
            ]
        ),
    }
    make(root / ".7-1-0000b2")  # perhaps in the making
    with holding(root) as holder:
        found = find_boxes(root)
        assert Boxes(**expected, live=[holder.path]) == found
        assert [*expected["dead"], holder.path] == found.readable


def test_name_of_a_box_has_its_process() -> None:
    """Any other folder has none, and neither has a name that only begins like that of a box."""
    names = ["71-2-0000aa", ".71-2-0000aa", "71-2-0000aa.collected", "71-2-0000aa.old", "spool", "71"]
    assert [71, 71, 71, 0, 0, 0] == [process_of(Path("boxes") / name) for name in names]


def test_folder_without_boxes_has_none(root: Path) -> None:
    """The folder is empty, or missing."""
    assert Boxes() == find_boxes(root) == find_boxes(root / "missing")


def plant_link(path: Path) -> None:
    """Plant a link to a folder that looks like a box."""
    (path.parent / ".elsewhere").mkdir(exist_ok=True)
    path.symlink_to(path.parent / ".elsewhere")


def plant_fifo(path: Path) -> None:
    """Plant a FIFO, which blocks whoever opens it."""
    os.mkfifo(path)


def plant_open_folder(path: Path) -> None:
    """Plant a folder to which others can write."""
    path.mkdir()
    path.chmod(0o777)


def plant_unreadable_folder(path: Path) -> None:
    """Plant a folder whose lock cannot be looked at."""
    path.mkdir()
    (path / "lock").mkdir()


PLANTED = {
    plant_link: "is not a folder, or a symbolic link",
    plant_fifo: "is not a folder, or a symbolic link",
    Path.touch: "is not a folder, or a symbolic link",
    plant_open_folder: "other users can write to",
    plant_unreadable_folder: "lock",
}


@pytest.mark.parametrize(("plant", "words"), PLANTED.items())
@pytest.mark.parametrize("name", ["7-1-0000aa", ".7-1-0000aa", "7-1-0000aa.collected"])
def test_planted_entry_is_a_problem(root: Path, plant: Callable[[Path], object], words: str, name: str) -> None:
    """The other boxes are found."""
    plant(root / name)
    box = make(root / "8-1-0000aa")
    found = find_boxes(root)
    assert [box] == found.dead
    assert [] == found.unfinished == found.collected == found.live
    assert 1 == len([each for each in found.problems if f"/{name}" in each and words in each])


@needs_root
@pytest.mark.parametrize("files", [False, True])
def test_box_of_another_user_is_not_opened(root: Path, monkeypatch: pytest.MonkeyPatch, files: bool) -> None:
    """Even root leaves it alone; nor is a lock file of another user opened in an own box."""
    box = make(root / "7-1-0000aa")
    os.chown(box / "lock" if files else box, 12345, 12345)
    opened: list[object] = []
    monkeypatch.setattr(Folder, "subfolder", watch(opened, Folder.subfolder))
    found = find_boxes(root)
    assert [] == found.dead == found.live
    assert "belongs to another user" in found.problems[0]
    assert len(opened) == int(files)


def watch(calls: list[object], function: Callable[..., Folder]) -> Callable[..., Folder]:
    """Return the function, whose calls are noted."""

    def call(*arguments: object, **options: object) -> Folder:
        calls.append(arguments)
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize(
    "name",
    [
        *("x", "7-1-00", "7-1-0000ag", "7-1-0000aa.old", "7-1-0000aa.collected.collected", "..7-1-0000aa"),
        *("-1-0000aa", "7--0000aa", "7-1-0000aa\n", "\udcff", "\u0667-1-0000aa", "99999999999-1-0000aa"),
    ],
)
def test_other_names_are_not_boxes(root: Path, name: str) -> None:
    """Entries with such names are reported together, and never opened."""
    make(root / name)
    found = find_boxes(root)
    problem = f"{str(root)!r} holds entries that are not black boxes (1), e.g. {name!r}"
    assert Boxes(problems=[problem]) == found
    assert not holds_boxes(root)


def test_thousand_entries_are_one_problem(root: Path) -> None:
    """A thousand boxes are found beside them."""
    boxes = [make(root / f"7-1-{number:06x}", lock=False) for number in range(1000)]
    for number in range(1000):
        (root / f"file-{number}").touch()
    found = find_boxes(root)
    assert boxes == found.dead
    assert [f"{str(root)!r} holds entries that are not black boxes (1000), e.g. 'file-0'"] == found.problems


def test_all_automatic_folders_are_searched(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process finds boxes that others have made in the second folder, because the first was not usable."""
    name = f"monitel-{os.geteuid()}"
    for each in ("shm", "runtime"):
        (root / each / name).mkdir(parents=True, mode=0o700)
        (root / each / name).chmod(0o700)
    monkeypatch.setattr(place, "_SHARED_MEMORY", root / "shm")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root / "runtime"))
    boxes = [make(root / each / name / f"{number}-1-0000aa") for number, each in enumerate(("runtime", "shm"))]
    found = find_boxes()
    if any("not in memory" in each for each in found.problems):
        pytest.skip("there is no file system in memory")
    assert boxes == found.dead


def test_removal_meanwhile_is_no_problem(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector or the process itself removes boxes at any time."""
    boxes = [make(root / f"7-1-0000a{number}") for number in range(3)]
    subfolder = Folder.subfolder

    def remove_before(self: Folder, name: str, *, create: bool) -> Folder:
        if name == boxes[1].name:
            (boxes[1] / "lock").unlink()
            boxes[1].rmdir()
        return subfolder(self, name, create=create)

    monkeypatch.setattr(Folder, "subfolder", remove_before)
    found = find_boxes(root)
    assert Boxes(dead=[boxes[0], boxes[2]]) == found


def test_unfinished_boxes_can_be_removed(root: Path) -> None:
    """As a collector does."""
    make(root / ".7-1-0000ae", age=61)
    folder = Folder.open(root)
    for path in find_boxes(root).unfinished:
        assert remove_box(folder, path.name)
    assert [] == folder.names()
    folder.close()


@pytest.mark.parametrize("plant", [plant_link, plant_fifo, Path.touch, plant_open_folder])
def test_planted_root_is_a_problem(root: Path, plant: Callable[[Path], object]) -> None:
    """Nothing in it is looked at."""
    plant(root / "boxes")
    if (root / "boxes").is_dir():
        make(root / "boxes" / "7-1-0000aa")
    found = find_boxes(root / "boxes")
    assert (1, []) == (len(found.problems), found.dead)
