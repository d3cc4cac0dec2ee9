"""The command that sets the version of the four distributions."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tools.version import ROOT, _places, current, differences, set_everywhere

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the files that contain the version."""
    for place in _places():
        (tmp_path / place.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place.path, tmp_path / place.path)
    return tmp_path


def test_version_is_set_in_all_places(copy: Path) -> None:
    """Packages, requirements and the citation have the new version, and nothing else changes."""
    before = {place.path: (copy / place.path).read_text("utf-8") for place in _places()}
    old = current(copy)
    set_everywhere("7.8.9", copy)
    assert "7.8.9" == current(copy)
    assert [] == differences(copy)
    assert '"monitel-otel>=7.8,<7.9"' in (copy / "exporters/otlp/pyproject.toml").read_text("utf-8")
    set_everywhere(old, copy)
    assert before == {place.path: (copy / place.path).read_text("utf-8") for place in _places()}


def test_place_that_differs_is_named(copy: Path) -> None:
    """A version that was edited by hand in one place is found."""
    path = copy / "CITATION.cff"
    path.write_text(path.read_text("utf-8").replace(f"version: {current(copy)}", "version: 0.0.1"), "utf-8")
    assert [f"CITATION.cff: expected {current(copy)}, found 0.0.1"] == differences(copy)


def test_invalid_version_is_refused(copy: Path) -> None:
    """A version that is not three numbers changes nothing."""
    old = current(copy)
    with pytest.raises(SystemExit, match=r"expected a version such as 0\.2\.0, got '1\.0'"):
        set_everywhere("1.0", copy)
    assert old == current(copy)


def test_licences_are_the_same() -> None:
    """Each distribution has the licence in its folder, because its sdist builds from itself."""
    licence = (ROOT / "LICENSE").read_bytes()
    assert [licence] * 3 == [path.read_bytes() for path in sorted(ROOT.glob("exporters/*/LICENSE"))]
