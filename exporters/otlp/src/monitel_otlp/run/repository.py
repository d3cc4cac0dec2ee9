"""The state of the git repository that a command is started in."""

from __future__ import annotations

import os
import re
import subprocess

_TIMEOUT = 2.0  # seconds
_COMMIT = re.compile(r"^# branch\.oid ([0-9a-f]{40,64})$", re.MULTILINE)
_COMMAND = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules"),
)


def describe_repository() -> dict[str, str | bool]:
    """Return the commit of the repository of the working directory, and whether tracked files differ from it.

    It is empty without git, without a commit, or if git takes more than two seconds. No hook of the repository is run,
    and nothing is written.
    """
    try:
        ended = subprocess.run(  # noqa: S603  a fixed command
            _COMMAND,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
            start_new_session=True,  # else signals of the terminal reach it
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    if (commit := _COMMIT.search(ended.stdout)) is None:
        return {}
    changed = any(not line.startswith("#") for line in ended.stdout.splitlines())
    return {"run.git.commit": commit[1], "run.git.dirty": changed}
