"""Files that outlive a process are its owner's alone, and a reader survives whatever is in them."""

import json
import os
import pickle
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.checks import SetEnv, wait_until
from tests.support.commands import Printed
from tests.support.commands import command as run_command
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, delivered_by
from tests.support.receiver import Receiver

import monitel

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to change owners")
_SEED = 7
_EVENTS = 4


def command(*arguments: object) -> Printed:
    """Run ``monitel`` with these arguments; it prints text, and never a traceback."""
    printed = run_command(*arguments)
    assert printed.status in {0, 1}, printed
    assert "Traceback" not in printed.stderr
    assert all(each.isprintable() for each in (printed.stdout + printed.stderr).replace("\n", ""))
    return printed


class Remains(NamedTuple):
    """Files that a process leaves: those of its box, as a kill would leave them, and of its spool, by relative path."""

    box: dict[str, bytes]
    spool: dict[str, bytes]

    def write(self, folder: Path, *, box: bool = True) -> Path:
        """Write the box or the spool below a folder, as private files, and return the folder of the process."""
        files = self.box if box else self.spool
        for name, content in files.items():
            path = folder / name
            for parent in [*reversed(path.relative_to(folder).parents)][1:]:
                (folder / parent).mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o600)
        (first,) = {Path(name).parts[0] for name in files if "ledgers" not in name}
        return folder / first


_made: list[Remains] = []


@pytest.fixture
def remains(start: Start, own_boxes: Path, tmp_path: Path) -> Remains:
    """Files of a process with four events and three samples, made once."""
    if not _made:
        spool_dir = tmp_path / "made"
        pipeline = start(endpoint="http://127.0.0.1:9", spool_dir=spool_dir, service_name="llm", spans=True)
        loss = monitel.Stat("loss", [monitel.COUNT, monitel.SUM], 3600.0)
        monitel.set_step(7)
        with monitel.WaitCounter("rendezvous").guard(), monitel.profiler.record_function("forward"):
            for number in range(_EVENTS):
                monitel.emit("left", number=number)
                loss.add(1)
            wait_until(lambda: "loss" in command("autopsy", own_boxes).stdout, "a record of the window")
            box = files_of(own_boxes)
        pipeline.shutdown()
        _made.append(Remains(box, files_of(spool_dir)))
    return _made[0]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "stacks" not in path.name
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "private"
    path.mkdir(mode=0o700)
    return path


def test_folders_are_0700_and_files_0600(start: Start, own_boxes: Path, tmp_path: Path) -> None:
    """Whatever the umask is: of the box, of the spool, and of the run's ledger."""
    for umask in (0o000, 0o077):
        previous = os.umask(umask)
        try:
            pipeline = start(endpoint="http://127.0.0.1:9", spool_dir=tmp_path / f"spool{umask}")
            monitel.set_step(1)
            monitel.emit("left", number=1)
            check_modes(own_boxes, *own_boxes.rglob("*"))
            pipeline.shutdown()
        finally:
            os.umask(previous)
        paths = [*(tmp_path / f"spool{umask}").rglob("*")]
        assert any(path.suffix == ".json" for path in paths), paths
        check_modes(*paths)


def check_modes(*paths: Path) -> None:
    """Check that nobody but the owner can read or write the paths, of which some are files."""
    assert any(path.is_file() for path in paths)
    for path in paths:
        assert (0o700 if path.is_dir() else 0o600) == stat.S_IMODE(path.stat().st_mode), path
        assert os.geteuid() == path.stat().st_uid


@needs_root
@pytest.mark.parametrize("box", [True, False], ids=["box", "spool"])
def test_records_of_others_are_left_alone(remains: Remains, own_boxes: Path, receiver: Receiver, box: bool) -> None:
    """Neither shown, nor delivered, nor removed, whether they are found or named; the problem is named."""
    own_boxes.mkdir(mode=0o700, exist_ok=True)
    record = remains.write(own_boxes, box=box)
    os.chown(record, 12345, 12345)
    for arguments in ((), (own_boxes,), (record,)) if box else ((own_boxes,),):
        printed = command("autopsy" if box else "cat", *arguments)
        assert "left" not in printed.stdout, arguments
        assert ("belongs to another user" if box else record.name) in printed.stderr, arguments
        assert box or 1 == printed.status
        command("replay", *arguments, "--endpoint", receiver.url)
        assert ([], True) == (receiver.requests, record.exists()), arguments


@needs_root
def test_folder_of_another_user_gets_no_box(start: Start, folder: Path, setenv: SetEnv) -> None:
    """A job records nothing into a folder that somebody else can replace; it goes on without a box."""
    os.chown(folder, 12345, 12345)
    setenv(MONITEL_BLACK_BOX_DIR=str(folder))
    with delivered_by(start()):
        monitel.emit("event")
    assert [] == [*folder.iterdir()]


@pytest.mark.parametrize(("box", "kind"), [(True, "folder"), (True, "file"), (False, "folder")])
def test_links_are_not_followed(remains: Remains, folder: Path, receiver: Receiver, kind: str, box: bool) -> None:
    """Neither to a folder nor to a file: nothing behind a link is read, delivered, changed or removed."""
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    made = remains.write(elsewhere, box=box)
    if kind == "folder":
        (folder / made.name).symlink_to(made if box else elsewhere)
    else:
        (folder / made.name).mkdir(mode=0o700)
        for path in made.iterdir():
            (folder / made.name / path.name).symlink_to(path)
    before = files_of(elsewhere)
    for words in (["cat"], ["autopsy"], ["replay", "--endpoint", receiver.url]):
        printed = command(*words, folder)
        assert (1, False) == (printed.status, "number" in printed.stdout)
    assert [] == receiver.requests
    assert before == files_of(elsewhere)


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("exploded",)


def damages(content: bytes, rng: random.Random) -> Iterator[bytes | None]:
    """Yield damaged forms of a file: missing, cut, with another bit, another word of the same length, or a pickle."""
    at = rng.randrange(len(content) or 1)
    yield None
    yield content[: len(content) // 2]
    yield content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :] if content else b"\1"
    if b"left" in content:
        yield content.replace(b"left", b"lost", 1)
    for begin in (0, 8):
        yield content[:begin] + pickle.dumps(Bomb())


@pytest.mark.invalid_output("one record is replayed once for each damage", "series.order", "series.duplicate")
@pytest.mark.parametrize("box", [True, False], ids=["box", "spool"])
def test_damaged_files_never_stop_a_reader(remains: Remains, tmp_path: Path, receiver: Receiver, box: bool) -> None:
    """Everything that arrives was recorded, once; a loss is reported, and nothing is unpickled."""
    rng = random.Random(_SEED)
    files = remains.box if box else remains.spool
    arrived = []
    for number, (name, content) in enumerate(files.items()):
        for kind, damaged in enumerate(damages(content, rng)):
            receiver.requests.clear()
            folder = tmp_path / f"{number}-{kind}"
            folder.mkdir(mode=0o700)
            remains.write(folder, box=box)
            (folder / name).unlink() if damaged is None else (folder / name).write_bytes(damaged)
            if "ledgers" in name:
                command("ledger", "--spool-dir", folder)
            else:
                shown = command("autopsy", folder, "--json") if box else command("cat", folder)
                for text in [shown.stdout or "{}"] if box else shown.stdout.splitlines():
                    json.loads(text)
            replayed = command("replay", folder, "--endpoint", receiver.url)
            found = [record.attributes["number"] for record in receiver.records("left")]
            assert {*receiver.record_names()} <= {"left", "process.died"}, (name, kind)
            assert len({*found}) == len(found), (name, kind)
            assert {*found} <= {*range(_EVENTS)}, (name, kind)
            counts = receiver.values("loss.count")
            assert {*counts} <= {0, _EVENTS}, (name, kind)
            arrived.append(len(found) == _EVENTS and _EVENTS in counts)
            # Missing and empty files are like those that were never made; two copies of a record may differ by a write.
            if not (box or arrived[-1]) and damaged:
                assert 1 == replayed.status, (name, kind, replayed)
                words = "cannot be used" if name.endswith("names") else "unreadable"
                assert words in replayed.stdout, (name, kind, replayed)
    assert {True, False} == {*arrived}
    assert not Path("exploded").exists()


@pytest.mark.parametrize("by", ["command", "job"])
def test_damaged_box_is_set_aside_and_reported_once(
    *, remains: Remains, own_boxes: Path, start: Start, receiver: Receiver, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    """The next reader does not stumble over it again, and other telemetry is delivered meanwhile."""
    own_boxes.mkdir(mode=0o700, exist_ok=True)
    path = remains.write(own_boxes)
    for each in path.iterdir():
        each.write_bytes(b"\1" * 100)
    if by == "command":
        first = command("replay", own_boxes, "--endpoint", receiver.url)
        assert (1, 1) == (first.status, first.stderr.count(f"{path.name}'"))
        assert "set aside" in first.stderr
    else:
        pipeline = start()
        wait_until(lambda: any(path.name in each.getMessage() for each in caplog.records), "a warning")
        monitel.emit("left", number=-1)
        assert pipeline.force_flush(DEADLINE)
        pipeline.shutdown()
    assert not path.exists()
    remains.write(own_boxes)
    second = command("replay", own_boxes, "--endpoint", receiver.url)
    assert "set aside" not in second.stderr
    left = [*range(_EVENTS)] if by == "command" else [-1, *range(_EVENTS)]
    assert left == [record.attributes["number"] for record in receiver.records("left")]
