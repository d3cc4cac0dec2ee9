"""Look inside sdists and wheels: ``python -m tools.release.contents FILE...`` prints faults, and fails at any."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

from tools.release.distributions import ROOT, Distribution, of_file
from tools.version import current

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from email.message import Message

#: Folders that files of a release must not mention. /usr and /lib occur in sources for good reasons.
BUILD_FOLDER = re.compile(rb"/(?:home|root|tmp|work|builds?|Users|private|var/folders|opt/hostedtoolcache)/[\w.+-]+")
UNWANTED = re.compile(r"(?:^|/)(?:tests?|conftest\.py|__pycache__|\.git\w*|\.venv[^/]*|build|[^/]*\.(?:pyc|o))(?:/|$)")
PYTHONS = tuple(f"3.{minor}" for minor in range(10, 16))


def members(path: Path) -> dict[str, bytes]:
    """Return the files of an sdist or wheel, by name; in an sdist without the first folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(path) as sdist:
        files = ((each, sdist.extractfile(each)) for each in sdist.getmembers() if each.isfile())
        return {each.name.partition("/")[2]: file.read() for each, file in files if file}


def faults(path: Path) -> list[str]:
    """Return a line for each fault of an sdist or wheel."""
    distribution = of_file(path)
    files = members(path)
    found = [f"{name}: does not belong into a distribution" for name in files if UNWANTED.search(name)]
    found += _named_folders(files)
    if path.suffix == ".whl":
        found += _of_wheel(path, distribution, files)
    else:
        found += _of_sdist(distribution, files)
    return [f"{path.name}: {each}" for each in found]


def _named_folders(files: dict[str, bytes]) -> Iterator[str]:
    """Find folders of the machine that built: in C extensions any home or temporary folder, elsewhere those in use."""
    ours = {os.fsencode(each) for each in (ROOT, Path.home(), Path(sys.prefix), Path(sys.base_prefix))}
    ours -= {b"/", b"/usr", b"/usr/local"}
    for name, content in files.items():
        if name.endswith((".so", ".pyd")):
            mentioned = {match[0] for match in BUILD_FOLDER.finditer(content)}
        else:
            mentioned = {folder for folder in ours if folder + b"/" in content}
        for folder in sorted(mentioned):
            yield f"{name}: contains {os.fsdecode(folder)}, a folder of the machine that built it"


def _of_sdist(distribution: Distribution, files: dict[str, bytes]) -> Iterator[str]:
    sources = ROOT / distribution.folder / "src"
    wanted = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"}
    suffixes = {".py", ".c", ".h", ".typed"}
    wanted |= {f"src/{each.relative_to(sources)}" for each in sources.rglob("*") if each.suffix in suffixes}
    yield from _missing(wanted, files)
    if any(name.endswith((".so", ".pyd")) for name in files):
        yield "contains a compiled extension"
    yield from _metadata(distribution, files.get("PKG-INFO", b""))


def _of_wheel(path: Path, distribution: Distribution, files: dict[str, bytes]) -> Iterator[str]:
    tags = path.name[: -len(".whl")].split("-")[-3:]
    information = f"{distribution.file_name}-{current()}.dist-info"
    wanted = {*distribution.modules(), f"{distribution.package}/py.typed"}
    wanted |= {f"{information}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}
    yield from _missing(wanted, files)
    built = {re.sub(r"\.[^/]*$", "", name) for name in files if name.endswith((".so", ".pyd"))}
    expected = set(distribution.extensions()) if tags[-1] != "any" else set()
    if "linux" in tags[-1]:  # elsewhere, what is specific to Linux is left out
        yield from (f"{name}: the compiled extension is missing" for name in sorted(expected - built))
    elif expected and not built:
        yield "no compiled extension: a wheel without one must be the pure one"
    yield from (f"{name}: a compiled extension is not expected" for name in sorted(built - expected))
    for name in sorted(files):
        if name.endswith((".c", ".h")):
            yield f"{name}: C sources belong into the sdist"
        if name.endswith((".so", ".pyd")) and b".debug_info" in files[name]:
            yield f"{name}: contains debug information"
    marked = _fields(files.get(f"{information}/WHEEL", b"")).get_all("Tag", [])
    if "-".join(tags[:2]) not in {each.rsplit("-", 1)[0] for each in marked}:
        yield f"the name has the tag {'-'.join(tags)}, WHEEL has {', '.join(marked) or 'none'}"
    yield from _metadata(distribution, files.get(f"{information}/METADATA", b""))


def _missing(wanted: Iterable[str], files: dict[str, bytes]) -> Iterator[str]:
    return (f"{name}: missing" for name in sorted(set(wanted) - set(files)))


def _fields(content: bytes) -> Message:
    return message_from_bytes(content)


def _metadata(distribution: Distribution, content: bytes) -> Iterator[str]:
    fields = _fields(content)
    expected = {
        "Name": distribution.name,
        "Version": current(),
        "Requires-Python": ">=3.10",
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
    }
    for name, value in expected.items():
        if fields[name] != value:
            yield f"metadata: {name} is {fields[name]}, expected {value}"
    declared = set(fields.get_all("Classifier", []))
    for version in PYTHONS:
        if f"Programming Language :: Python :: {version}" not in declared:
            yield f"metadata: no classifier for Python {version}"
    yield from (f"metadata: unknown classifier {each!r}" for each in sorted(declared - _known_classifiers(declared)))


def _known_classifiers(declared: set[str]) -> set[str]:
    try:
        from trove_classifiers import classifiers  # in the environment of make dist
    except ImportError:
        return declared
    return set(classifiers)


def main(arguments: list[str]) -> int:
    """Print the faults of the files, and return the exit status."""
    if not arguments:
        print("usage: python -m tools.release.contents FILE...", file=sys.stderr)
        return 2
    found = [fault for each in arguments for fault in faults(Path(each))]
    print("\n".join(found) or f"{len(arguments)} files have what they must have, and nothing else")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
