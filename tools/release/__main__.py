"""Build and check everything that a release has: ``make dist``, or ``python -m tools.release``.

The files are in ``dist/``, or in the folder of ``--out``. With ``--without-extensions`` they are those that do not
depend on the system: the sdists, the exporters' wheels, and the pure wheel of the core.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from tools.release import build, installed, pythons
from tools.release.contents import faults
from tools.release.distributions import CORE, DISTRIBUTIONS, ROOT, Distribution
from tools.version import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_STARTED = monotonic()


def _print(text: str) -> None:
    print(f"[{monotonic() - _STARTED:4.0f} s] {text}", flush=True)


def _at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Make calls in two threads; the first that fails ends everything."""
    with ThreadPoolExecutor(2) as executor:
        for each in [executor.submit(call) for call in calls]:
            each.result()


def _sources_and_pure_wheel(distribution: Distribution, scratch: Path, out: Path) -> None:
    tree = build.copy_tree(distribution, scratch / "trees")
    of_tree = shutil.copytree(tree, scratch / "trees-of-wheels" / tree.name)
    archive = build.sdist(tree, scratch, out)
    made = build.pure_wheel(archive, scratch, out)
    compared = build.wheel(of_tree, scratch / f"wheel-of-tree-{tree.name}", Path(sys.executable), pure=True)
    if compared.read_bytes() != made.read_bytes():
        raise SystemExit(f"{archive.name}: the wheel that it builds differs from the wheel of the tree")
    _print(f"{archive.name}, {made.name}: built, and the same from the tree")


def _check_contents(files: list[Path]) -> None:
    found = [fault for file in files for fault in faults(file)]
    if found:
        raise SystemExit("\n".join(found))
    build.run(sys.executable, "-m", "twine", "check", "--strict", *files)
    _print(f"{len(files)} files contain what they must, and nothing else; twine accepts them")


def _check_wheel(python: pythons.Python, out: Path, scratch: Path) -> None:
    installed.check_wheels(python, out, scratch)
    _print(f"CPython {python.version}: installed with extensions, all four distributions work")


def _check_without_compiler(python: pythons.Python, out: Path, scratch: Path) -> None:
    installed.check_without_compiler(python, out, scratch)
    _print(f"CPython {python.version}: the pure wheel and the sdist work without a compiler")


def _build_wheel(python: pythons.Python, archive: Path, out: Path, scratch: Path) -> None:
    made = build.wheel_of_core(archive, scratch, out, python)
    _print(f"{made.name}: built from the sdist")


def main(arguments: list[str] | None = None) -> None:
    """Build, look inside, install and run."""
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--without-extensions", action="store_true")
    options = parser.parse_args(arguments)
    if wrong := differences():
        raise SystemExit("\n".join(["versions differ; run python3 tools/version.py VERSION:", *wrong]))
    out: Path = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    found = [] if options.without_extensions else pythons.find()
    own = pythons.Python(f"3.{sys.version_info.minor}", Path(sys.executable))
    with tempfile.TemporaryDirectory(prefix="monitel-dist-") as folder:
        scratch = Path(folder)
        _at_once(partial(_sources_and_pure_wheel, each, scratch, out) for each in DISTRIBUTIONS)
        (archive,) = out.glob(f"{CORE.file_name}-*.tar.gz")
        _at_once(partial(_build_wheel, each, archive, out, scratch) for each in found)
        _check_contents(sorted(out.iterdir()))
        checks = [partial(_check_wheel, each, out, scratch) for each in found]
        _at_once([partial(_check_without_compiler, own, out, scratch), *checks])
    for file in sorted(out.iterdir()):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")


if __name__ == "__main__":
    main()
