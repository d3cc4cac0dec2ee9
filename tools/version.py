"""Set or print the version of the four distributions: ``python3 tools/version.py [VERSION]``.

``monitel.__version__`` is the version of the core. The exporters repeat it in their packages, because each sdist builds
from itself, and in their requirements. ``CITATION.cff`` has it too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"(\d+)\.(\d+)\.\d+")


class Place(NamedTuple):
    """A file that contains the version, and the pattern whose first group is it."""

    path: str
    pattern: re.Pattern[str]
    form: str = "{version}"


def _places() -> list[Place]:
    package = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
    requirement = re.compile(r'^    "monitel(?:-\w+)?(>=[^"]+)",$', re.MULTILINE)
    places = [Place("src/monitel/__init__.py", package)]
    for name in ("otel", "otlp", "tensorboard"):
        places.append(Place(f"exporters/{name}/src/monitel_{name}/__init__.py", package))
        places.append(Place(f"exporters/{name}/pyproject.toml", requirement, ">={major}.{minor},<{major}.{next_minor}"))
    return [*places, Place("CITATION.cff", re.compile(r"^version: (\S+)$", re.MULTILINE))]


def expected(form: str, version: str) -> str:
    """Return what a place with this form contains for a version."""
    matched = VERSION.fullmatch(version)
    if not matched:
        raise SystemExit(f"expected a version such as 0.2.0, got {version!r}")
    major, minor = map(int, matched.groups())
    return form.format(version=version, major=major, minor=minor, next_minor=minor + 1)


def current(root: Path = ROOT) -> str:
    """Return the version of the core."""
    place = _places()[0]
    found = place.pattern.search((root / place.path).read_text("utf-8"))
    if not found:
        raise SystemExit(f"{place.path} has no line __version__ = ...")
    return found[1]


def differences(root: Path = ROOT) -> list[str]:
    """Return a line for each place that disagrees with the version of the core, or has none."""
    version = current(root)
    found = []
    for place in _places():
        values = place.pattern.findall((root / place.path).read_text("utf-8"))
        wanted = expected(place.form, version)
        if not values or set(values) != {wanted}:
            found.append(f"{place.path}: expected {wanted}, found {', '.join(values) or 'none'}")
    return found


def set_everywhere(version: str, root: Path = ROOT) -> None:
    """Write a version to all places."""
    for place in _places():
        text = (root / place.path).read_text("utf-8")
        for found in reversed([*place.pattern.finditer(text)]):
            text = text[: found.start(1)] + expected(place.form, version) + text[found.end(1) :]
        (root / place.path).write_text(text, "utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        set_everywhere(sys.argv[1])
    print(current())
    if wrong := differences():
        raise SystemExit("\n".join(wrong))
