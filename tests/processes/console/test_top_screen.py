"""``monitel top`` without the packages of the extra ``monitel-otlp[top]``: only the screen is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripts import Run

#: Read by every Python below it: the packages cannot be found.
_SITE = """\
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {"textual", "rich"} else found(name, path, target)
PathFinder.find_spec = find_spec
"""


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a process in which the packages cannot be found, and no box either."""
    for name in ("site", "boxes"):
        (tmp_path / name).mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    return {"PYTHONPATH": str(tmp_path / "site"), "MONITEL_BLACK_BOX_DIR": str(tmp_path / "boxes")}


def test_screen_names_the_command_that_installs_it(run: Run, site: dict[str, str]) -> None:
    """Without the extra the command ends with one line, which names the extra and the options that do without."""
    ended = run("-m", "monitel_otlp", "top", env=site, returncode=1)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("monitel: ")
    for words in ("pip install 'monitel-otlp[top]'", "--once", "--json"):
        assert words in line


@pytest.mark.parametrize(("options", "expected"), [([], "no black boxes"), (["--json"], "[]")])
def test_other_forms_work(run: Run, site: dict[str, str], options: list[str], expected: str) -> None:
    """The table and JSON need no package."""
    assert run("-m", "monitel_otlp", "top", "--once", *options, env=site).stdout.startswith(expected)
