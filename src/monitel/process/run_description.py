"""Description of a run: command, git commit, host, number of ranks, and versions."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from contextlib import suppress
from pathlib import Path
from platform import python_version

from monitel.attributes import escape_surrogates
from monitel.process.launcher import launch_attributes
from monitel.process.masking import mask_arguments

_LONGEST = 2000  # characters of a command
_PACKAGES = (
    *("monitel", "torch", "jax", "tensorflow", "numpy"),
    *("transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed"),
)
_HASH_LENGTHS = {40, 64}


def describe_run() -> dict[str, str | int]:
    """Return what is known about the run of this process, as the details of an event. Never raises."""
    found: dict[str, str | int] = {}
    with suppress(Exception):
        found["run.command"] = escape_surrogates(shlex.join(mask_arguments(sys.orig_argv, os.environ))[:_LONGEST])
    with suppress(Exception):
        if (commit := git_commit(Path.cwd())) is not None:
            found["run.git.commit"] = commit
    with suppress(Exception):
        found["host.name"] = escape_surrogates(socket.gethostname())
    if (world_size := launch_attributes().get("training.world_size")) is not None:
        found["run.world_size"] = world_size
    found["run.version.python"] = python_version()
    for package in _PACKAGES:
        version = getattr(sys.modules.get(package), "__version__", None)
        if isinstance(version, str):
            found[f"run.version.{package}"] = escape_surrogates(version)
    return found


def git_commit(folder: Path) -> str | None:
    """Return the hash of the current commit of the repository that a folder is in, without running git.

    Raises:
        OSError: A file of the repository cannot be read.
    """
    for parent in (folder, *folder.parents):
        if (found := parent / ".git").exists():
            return _commit_of(found if found.is_dir() else _linked(parent, found))
    return None


def _linked(parent: Path, file: Path) -> Path:
    """Return the folder that the ``.git`` file of a worktree or a submodule names."""
    return parent / _text(file).removeprefix("gitdir:").strip()


def _commit_of(folder: Path) -> str | None:
    head = _text(folder / "HEAD")
    if not head.startswith("ref:"):
        return _hash(head)
    reference = head.removeprefix("ref:").strip()
    common = folder / _text(folder / "commondir") if (folder / "commondir").exists() else folder
    for root in (folder, common):
        if (root / reference).is_file():
            return _hash(_text(root / reference))
    if (common / "packed-refs").is_file():
        for line in _text(common / "packed-refs").splitlines():
            value, _, name = line.partition(" ")
            if name == reference:
                return _hash(value)
    return None  # without a commit


def _text(file: Path) -> str:
    if not file.is_file():  # to open a FIFO may wait forever
        raise FileNotFoundError(file)
    return file.read_text("utf-8").strip()


def _hash(text: str) -> str | None:
    return text if len(text) in _HASH_LENGTHS and text.isalnum() else None
