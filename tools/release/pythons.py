"""CPythons on this machine: those of pyenv, the free-threaded one in ../shared, or those in ``MONITEL_PYTHONS``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.release.distributions import ROOT

_OLDEST = 10  # 3.10
_ASK = (
    "import sys, sysconfig; print('%d.%d' % sys.version_info[:2] + "
    "('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''), sys.implementation.name)"
)


class Python(NamedTuple):
    """An interpreter: its version, with ``t`` if it is free-threaded, and its executable."""

    version: str
    executable: Path

    @property
    def free_threaded(self) -> bool:
        """Return True if the interpreter has no GIL."""
        return self.version.endswith("t")


def find() -> list[Python]:
    """Return one interpreter per supported version, the oldest first.

    ``MONITEL_PYTHONS`` is a list of executables, separated as ``PATH`` is. It replaces the search.
    """
    given = os.environ.get("MONITEL_PYTHONS")
    if given:
        candidates = [Path(each) for each in given.split(os.pathsep)]
    else:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        candidates = [Path(sys.executable), *pyenv.glob("3.1[0-5].*/bin/python")]
        unpack = ROOT.parent / "shared/pythons/unpack"
        if unpack.is_file():
            unpacked = subprocess.run([unpack], check=True, capture_output=True, text=True, timeout=120)
            candidates.append(Path(unpacked.stdout.strip()))
    found: dict[str, Python] = {}
    for executable in candidates:
        version = _version(executable)
        if version:
            found.setdefault(version, Python(version, executable))
        elif given:
            raise SystemExit(f"MONITEL_PYTHONS: expected executables of CPython 3.10 or newer, got {executable}")
    return sorted(found.values(), key=lambda each: (int(each.version.rstrip("t").split(".")[1]), each.version))


def _version(executable: Path) -> str | None:
    try:
        answer = subprocess.run([executable, "-c", _ASK], check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.CalledProcessError):
        return None
    version, implementation = answer.stdout.split()
    supported = implementation == "cpython" and int(version.rstrip("t").split(".")[1]) >= _OLDEST
    return version if supported else None
