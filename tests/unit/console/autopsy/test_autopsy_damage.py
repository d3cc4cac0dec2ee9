"""Damaged, hostile and vanishing boxes: there is a report or a problem, never a traceback."""

from __future__ import annotations

import io
import json
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scripts import finish, started

from monitel_otlp.__main__ import main
from monitel_otlp.autopsy import examination
from monitel_otlp.black_box.contents import read_box
from monitel_otlp.boxes.layout import CUTS, HEADER, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel_otlp.spool.folder import Folder

#: Kills itself when a complete cut is in the box.
KILLED = """
import glob, os, time
import monitel, monitel_otlp
monitel_otlp.configure(service_name="llm", spool_dir="spool")
train = monitel.Stat("train.loss", [monitel.MEAN], 60.0, attributes={"split": "train"})
train.add(0.5)
monitel.set_step(7)
monitel.emit("begin", epoch=1)
loss = monitel.Stat("train.loss", [monitel.MEAN, monitel.HISTOGRAM], 60.0)
loss.add(0.25)
monitel.counter("train.samples").add(8)
with monitel.WaitCounter("all_reduce").guard():
    while not all(os.path.getsize(name) for kind in ("cut-a", "cut-b") for name in glob.glob(f"boxes/*/{kind}")):
        time.sleep(0.01)
    while not glob.glob("boxes/*/cut-b"):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The box of a killed process."""
    folder = tmp_path_factory.mktemp("killed")
    script = folder / "train.py"
    script.write_text(KILLED, encoding="utf-8")
    with started(folder, script, env={"MONITEL_BLACK_BOX_DIR": str(folder / "boxes")}) as process:
        finish(process)
    (found,) = (folder / "boxes").iterdir()
    return found


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder for the boxes of many examples."""
    with TemporaryDirectory() as path:
        yield Path(path)


def copy_of(box: Path, memory: Path) -> Path:
    """Return a copy of the box in a new root."""
    root = Path(memory, os.urandom(6).hex())
    root.mkdir(mode=0o700)
    shutil.copytree(box, root / box.name)
    return root / box.name


def autopsy(*arguments: str) -> tuple[int, str, str]:
    """Return status, stdout and stderr of the command."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        status = main(["autopsy", *arguments])
    return status, stdout.getvalue(), stderr.getvalue()


def check(box: Path) -> list[dict[str, Any]]:
    """Run the command for a box and for its root, as text and as JSON; return the processes of the root."""
    processes: list[dict[str, Any]] = []
    for target in (str(box), str(box.parent)):
        for options in ([], ["--all"], ["--json"]):
            status, stdout, stderr = autopsy(target, *options)
            assert "Traceback" not in stderr
            assert status in {0, 1}
            assert (status == 0) == bool(stdout)
            assert all(each.isprintable() for each in (stdout + stderr).replace("\n", ""))
            assert stderr.count("\n") <= 5
            if stdout and options == ["--json"]:
                report = json.loads(stdout)
                processes = report["processes"]
                assert processes or report["problems"]
    return processes


def test_copy_of_a_whole_box_is_read(box: Path, memory: Path) -> None:
    """The premise of the other tests."""
    (found,) = check(copy_of(box, memory))
    assert ("llm", 7, ["all_reduce"]) == (found["service"], found["step"], [each["key"] for each in found["waits"]])
    assert ["train.loss", "train.loss"] == [each["name"] for each in found["windows"]]
    assert [] == found["problems"]


@settings(max_examples=30)
@given(st.data())
def test_damaged_file_never_gives_a_traceback(box: Path, memory: Path, data: st.DataObject) -> None:
    """Truncated, overwritten, extended, or replaced by other bytes."""
    copy = copy_of(box, memory)
    names = sorted(each.name for each in copy.iterdir())
    for name in data.draw(st.lists(st.sampled_from([*names, "stacks", "request-1-logs"]), min_size=1, max_size=3)):
        content = (copy / name).read_bytes() if (copy / name).exists() else b""
        offset = data.draw(st.integers(0, len(content)))
        noise = data.draw(st.binary(max_size=64))
        damaged = data.draw(
            st.sampled_from([content[:offset], content[:offset] + noise + content[offset + len(noise) :], noise])
        )
        (copy / name).write_bytes(damaged)
    check(copy)
    shutil.rmtree(copy.parent)


plain: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=30)
@given(st.data())
def test_hostile_values_with_right_checksums_never_give_a_traceback(
    box: Path, memory: Path, data: st.DataObject
) -> None:
    """Any plain value in the place of a field of the header or of the cuts."""
    copy = copy_of(box, memory)
    header = unpack((copy / HEADER).read_bytes(), HEADER)
    if data.draw(st.booleans()):
        field = data.draw(st.sampled_from(sorted(header)))
        (copy / HEADER).write_bytes(pack({**header, field: data.draw(plain)}))
    for name in CUTS:
        cut = list(unpack((copy / name).read_bytes(), name))
        cut[data.draw(st.integers(0, len(cut) - 1))] = data.draw(plain)
        (copy / name).write_bytes(pack(tuple(cut)))
    check(copy)
    shutil.rmtree(copy.parent)


@pytest.mark.parametrize("name", [HEADER, "lock", *CUTS, "events-a", "context", "stacks", "request-1-logs"])
@pytest.mark.parametrize("kind", ["missing", "folder", "link", "fifo"])
def test_other_things_than_files_are_not_followed(box: Path, memory: Path, name: str, kind: str) -> None:
    """A FIFO does not block, a link is not followed."""
    copy = copy_of(box, memory)
    with suppress(FileNotFoundError):
        (copy / name).unlink()
    if kind == "folder":
        (copy / name).mkdir()
    elif kind == "link":
        (copy / name).symlink_to(box / "header")
    elif kind == "fifo":
        os.mkfifo(copy / name)
    check(copy)


def test_damaged_box_does_not_hide_the_others(box: Path, memory: Path) -> None:
    """Report it on stderr, and in the object, with the status 0."""
    copy = copy_of(box, memory)
    other = copy.with_name("4711-123-abcdef")
    shutil.copytree(copy, other)
    (other / HEADER).write_bytes(b"")
    status, stdout, stderr = autopsy(str(copy.parent))
    assert 0 == status
    assert "1 process: 1 dead" in stdout
    assert str(other) in stderr
    assert [str(copy)] == [found["source"] for found in json.loads(autopsy(str(copy.parent), "--json")[1])["processes"]]
    (problem,) = json.loads(autopsy(str(copy.parent), "--json")[1])["problems"]
    assert str(other) in problem


def test_box_that_vanishes_while_it_is_read_is_left_out(
    box: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector or the process itself removes it."""
    copy = copy_of(box, memory)

    def read_late(folder: Folder) -> Any:
        shutil.rmtree(copy)
        return read_box(folder)

    monkeypatch.setattr(examination, "read_box", read_late)
    problems: list[str] = []
    assert [] == examination.examine([copy, copy.with_name("1-1-abcdef")], problems)
    assert [] == problems


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_box_of_another_user_is_not_opened(box: Path, memory: Path) -> None:
    """The message says whose it is, and what to do."""
    copy = copy_of(box, memory)
    os.chown(copy, 12345, 12345)
    for target in (copy, copy.parent):
        status, _, stderr = autopsy(str(target))
        assert 1 == status
        assert "belongs to another user (id 12345)" in stderr
        assert "--foreign" not in stderr
