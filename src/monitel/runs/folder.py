"""The folders of runs: which process belongs to which run, and the files of a run.

The folder of a run that :func:`monitel.start` has begun lies in ``monitel-runs``, and has the marker ``run.json``. The
folders of other runs lie below the spool root. A file is replaced as a whole, so a reader always finds a complete one.
The process with the lock of a folder writes its ledger and its curves; each process writes its end.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from monitel.blackbox.folder import Folder, FolderError, make_folder
from monitel.blackbox.process import process_start
from monitel.process.launcher import launch_attributes
from monitel.runs.history import History, decode, encode
from monitel.runs.stored import StoredError
from monitel_run.folder import VARIABLE, is_running
from monitel_run.folder import identify as identify_process

_log = logging.getLogger("monitel.otlp")

#: The variable with the folder of the run of this process, for the ranks that it starts.
STARTED = "MONITEL_RUN_STARTED"
LEDGERS = "ledgers"
FILE, CURVES, MARKER = "ledger.json", "curves.json", "run.json"
RUNS = 100  # runs that are kept

_FOLDERS = _RUN, _AGENT, _PROCESS = "run-", "agent-", "process-"  # how the names of folders begin
_LONGEST = 60  # characters of the name of a run in that of its folder
_UNUSUAL = re.compile(r"[^\w.]+")  # letters of any language are usual
_LOGS = re.compile(r"(.+)/attempt_\d+/\d+/[^/]+", re.DOTALL)  # torchrun's agent has a folder with a unique name


#: The folder of the run that :func:`monitel.start` has begun in this process, None without one; and the id of that run.
started: Path | None = None
started_id = ""


class InUseError(FolderError):
    """Raised for the folder of a run that another process uses."""


class RunIdentity(NamedTuple):
    """The identity of a run: the processes with the same one are attempts of it."""

    run: str  # its id; empty without one
    folder: str  # the name of its folder, which has no character of the run id


def identify(attributes: Mapping[str, Any]) -> RunIdentity:
    """Return the run to which this process belongs.

    A run id is that of one run, however often the run is started. Without one each process is a run, except that
    torchrun's restarts continue the run of their agent.
    """
    given = attributes.get("training.run.id")
    if given is not None and str(given):
        return RunIdentity(str(given), f"{_RUN}{_digest(str(given))}")
    if logs := _LOGS.fullmatch(os.environ.get("TORCHELASTIC_ERROR_FILE", "")):
        return RunIdentity("", f"{_AGENT}{_digest(logs[1])}")
    return RunIdentity("", f"{_PROCESS}{time.time_ns():020d}-{token_hex(4)}")


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def is_started(path: Path) -> bool:
    """Return True for the folder of a run of :func:`monitel.start`, which may be made anew; not for a link to it."""
    is_other = path.name.startswith(".") or path.is_symlink() or path.parent.name == LEDGERS
    return not is_other and any(os.path.isfile(path / each) for each in (MARKER, FILE))  # noqa: PTH113  of another user: no error


def name_of(path: Path) -> str:
    """Return the name with which :func:`monitel.start` has begun the run in a folder; empty for another one."""
    return str(_marked(path).get("name", ""))


def store_of_report(path: Path) -> Path:
    """Return the folder of the run whose report ``monitel run`` has written into a folder; ``/dev/null`` for others."""
    return Path(str(_marked(path).get("store") or os.devnull)).resolve()


def _marked(path: Path) -> dict[str, Any]:
    """Return the content of the marker in a folder."""
    with suppress(OSError, ValueError, FolderError), closing(Folder.open(path, check=False)) as folder:
        found = json.loads(folder.read(MARKER))
        return found if isinstance(found, dict) else {}
    return {}


def of_first_rank(name: str, number: int) -> Path | None:
    """Return the folder of this run in rank zero, if that has started this rank, as Lightning does."""
    of_zero, _, path = os.environ.get(STARTED, "").partition(" ")
    is_lightnings = "LOCAL_RANK" in os.environ and "RANK" not in os.environ
    return Path(path) if is_lightnings and of_zero == str(number) and name_of(Path(path)) == name else None


class SharedKey(NamedTuple):
    """The key that the processes of a run have in common."""

    text: str = ""  # empty for a run of one process
    #: False for a key that the next job may have: only ranks that begin while the first one runs have it in common.
    is_unique: bool = True


def shared_key(name: str, number: int) -> SharedKey:
    """Return the key of a run that has this name, and this number in its process."""
    launch, is_unique = launch_attributes(), True
    key = identify(launch).folder
    if key.startswith(_PROCESS):
        if "training.rank" not in launch or launch.get("training.world_size") == 1:
            return SharedKey()
        if port := os.environ.get("MASTER_PORT"):
            place, is_unique = f"{os.environ.get('MASTER_ADDR')}:{port}", False
        elif is_running(run := os.environ.get(VARIABLE, "")):
            place = run
        else:
            place, is_unique = f"{os.getppid()}-{process_start(os.getppid())}", False
        key = f"{socket.gethostname()} {place}"
    return SharedKey(f"{key} {name} {number}", is_unique)


def make_started(parent: Path, name: str, key: SharedKey = SharedKey(), store: str = "") -> Path:  # noqa: B008  a tuple
    """Make the folder of a run in a folder of runs, and return it: its name has that of the run, the day and a number.

    ``store`` is the folder with the ledger of the run, if the new one is for its report alone.

    With a key, the folder is returned that another process with this key has made: another rank, or an attempt. A
    symbolic link holds its name; it is read, never followed.
    """
    parent.mkdir(parents=True, exist_ok=True)
    parent = parent.resolve()
    link, path = _last_link(parent, key)
    if path is not None:
        return path
    encoding = sys.getfilesystemencoding()  # of the locale, which may not have all letters
    usual = _UNUSUAL.sub("-", name.encode(encoding, "replace").decode(encoding))
    stem = f"{usual[:_LONGEST].strip('-.') or 'run'}-{time.strftime('%Y%m%d')}"
    for number in count(1):
        path = parent / f"{stem}-{number}"
        with suppress(FileExistsError):
            path.mkdir(0o700)
            break
    assert path is not None
    try:
        descriptor = os.open(path / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            values = {"version": 1, "name": name, "key": _digest(key.text), "process": identify_process()}
            json.dump(values | ({"store": store} if store else {}), file)
    except OSError:  # the disk is full
        _unmake(path)
        raise
    try:
        if key.text:
            link.symlink_to(path.name)
    except FileExistsError:  # another rank was faster
        if (found := _last_link(parent, key)[1]) is not None:
            _unmake(path)
            return found
    except OSError as error:
        _log.debug("ranks cannot share %s: %s", path, error)  # the file system has no links
    return path


def _unmake(path: Path) -> None:
    (path / MARKER).unlink(missing_ok=True)
    path.rmdir()


def _last_link(parent: Path, key: SharedKey) -> tuple[Path, Path | None]:
    """Return the link of the present run with a key, and the folder that another process has made for it.

    The name of the link of an earlier run leads to the next link, so that no rank has to remove one.
    """
    text = key.text
    while True:
        link = parent / f".{_digest(text)}"
        try:
            path = link.with_name(link.readlink().name)
        except OSError:
            return link, None
        marker = _marked(path)
        if marker.get("key") == _digest(key.text) and (key.is_unique or _goes_on(path, marker)):
            return link, path
        text += f" {path.name}"


def _goes_on(path: Path, marker: Mapping[str, Any]) -> bool:
    """Return True if the process that has made the folder of a run, or the one with its ledger, runs."""
    pid, _, start = str(marker.get("process", "")).partition("-")
    if start and pid.isdecimal() and process_start(int(pid)) == start:
        return True
    with suppress(OSError, FolderError), closing(Folder.open(path, check=False)) as folder:
        return folder.is_locked()
    return False


def store_of(root: Path, identity: RunIdentity) -> Path:
    """Return the folder of a run: the one that :func:`monitel.start` has made, or one below the folder of spools."""
    return root / LEDGERS / identity.folder if started is None else started


def open_run(path: Path, run: str = "") -> Folder:
    """Return the folder of a run, which may have an id, locked; it is made if it is missing.

    If a new one is made below the folder of spools, the oldest runs there are removed. InUseError is raised if another
    process uses it.
    """
    is_ledger = path.parent.name == LEDGERS
    if is_ledger:
        make_folder(path.parent)
    is_new = make_folder(path)
    folder = Folder.open(path)
    try:
        if not folder.lock():
            words = f"{str(folder.path)!r} is in use by a running process"
            advice = f" with the same run id, {run!r}: two jobs need two ids" if run else ""
            raise InUseError(words + advice)
        if is_new and is_ledger:
            with closing(Folder.open(path.parent)) as ledgers:
                _prune(ledgers, [each for each in ledgers.names() if each.startswith(_FOLDERS) and each != path.name])
    except BaseException:
        folder.close()
        raise
    return folder


def load(folder: Folder) -> History | None:
    """Return the stored history; None if there is none. A file that cannot be used is kept under another name."""
    try:
        return decode(folder.read(FILE))
    except FileNotFoundError:
        pass
    except StoredError as error:
        aside = f"unusable-{time.time_ns()}.json"
        folder.rename(FILE, aside)
        _log.warning("%s %s; it is now %s, and the ledger of the run starts anew", folder.path / FILE, error, aside)
    return None


def store(folder: Folder, history: History) -> None:
    """Replace the history. If that fails, the previous one is still there."""
    folder.replace(FILE, encode(history))


def discard(folder: Folder) -> None:
    """Remove the folder of a run that has only been begun; of one that :func:`monitel.start` has begun its ledger."""
    if is_started(folder.path):
        folder.unlink(FILE)
    else:
        folder.remove()


def _prune(ledgers: Folder, existing: list[str]) -> None:
    """Remove the runs whose last heartbeats are the oldest. A run that is in use stays."""
    surplus = len(existing) + 1 - RUNS
    # Each heartbeat renames a file.
    oldest_first = sorted(existing, key=lambda name: ledgers.status(name).st_mtime_ns) if surplus > 0 else []
    for name in oldest_first:
        with suppress(OSError, FolderError), closing(Folder.open(ledgers.path / name)) as folder:
            if folder.lock():
                folder.remove()
                surplus -= 1
        if not surplus:
            break


def stored_runs(root: Path, problems: list[str]) -> Iterator[tuple[Folder, History]]:
    """Yield the folder and the history of each run below the folder of spools, without locking or changing anything.

    So it does for a folder of runs that :func:`monitel.start` has begun. A message is added to the problems for each
    file that cannot be read, which does not have its content. Folders of other users are not checked: JSON is safe to
    read, and a check would write.
    """
    for parent, is_run in ((root / LEDGERS, lambda path: path.name.startswith(_FOLDERS)), (root, is_started)):
        path = parent
        try:
            with closing(Folder.open(parent, check=False)) as folders:
                for path in sorted(filter(is_run, (parent / each for each in folders.names()))):
                    try:
                        with closing(Folder.open(path, check=False)) as folder:
                            yield folder, decode(folder.read(FILE))
                    except FileNotFoundError:
                        continue  # nothing is written yet, or the run was removed
                    except (StoredError, FolderError, OSError) as error:
                        problems.append(_describe(path, error))
        except FileNotFoundError:
            continue
        except (FolderError, OSError) as error:
            problems.append(_describe(path, error))


def _describe(path: Path, error: Exception) -> str:
    if isinstance(error, FolderError):
        return str(error)
    reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
    return f"the ledger in {str(path)!r} {reason}"


def correct_status(path: Path, pid: int, began_ns: int, status: str) -> None:
    """Store the status with which the attempt of a process id has ended, as its parent has seen it. Never raises."""
    with suppress(OSError, FolderError, StoredError), closing(Folder.open(path)) as folder:
        found = decode(folder.read(FILE))
        attempt = found.attempt
        if attempt.last_ns >= began_ns and attempt.name.endswith(f"-{pid}") and folder.lock():
            store(folder, replace(found, attempt=replace(attempt, status=status)))
