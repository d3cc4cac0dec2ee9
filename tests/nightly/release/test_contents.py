"""The checks of ``make dist`` find faults: wrong files, missing files, folders of the build machine, wrong metadata."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
from tools.release.contents import PYTHONS, faults, main
from tools.release.distributions import CORE, EXPORTERS, ROOT, Distribution
from tools.version import current

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION = current()
LINUX = "cp311-cp311-manylinux_2_34_x86_64"
OTEL = EXPORTERS[0]


def metadata(distribution: Distribution) -> bytes:
    """Return the metadata that a distribution must have."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {distribution.name}",
        f"Version: {VERSION}",
        *(f"Classifier: Programming Language :: Python :: {each}" for each in PYTHONS),
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        "Description-Content-Type: text/markdown",
        "License-File: LICENSE",
    ]
    return "\n".join([*lines, "", "text"]).encode()


def right_wheel(distribution: Distribution, tag: str) -> dict[str, bytes]:
    """Return the files of a wheel without a fault."""
    information = f"{distribution.file_name}-{VERSION}.dist-info"
    files = dict.fromkeys([*distribution.modules(), f"{distribution.package}/py.typed"], b"")
    if not tag.endswith("any"):
        files |= {f"{each}.cpython-311-x86_64-linux-gnu.so": b"ELF" for each in distribution.extensions()}
    files |= {f"{information}/RECORD": b"", f"{information}/licenses/LICENSE": b"", f"{information}/METADATA": b""}
    return files | {f"{information}/METADATA": metadata(distribution), f"{information}/WHEEL": f"Tag: {tag}\n".encode()}


def right_sdist(distribution: Distribution) -> dict[str, bytes]:
    """Return the files of an sdist without a fault."""
    folder = ROOT / distribution.folder
    sources = [each for each in (folder / "src").rglob("*") if each.suffix in {".py", ".c", ".h", ".typed"}]
    files = dict.fromkeys([str(each.relative_to(folder)) for each in sources], b"")
    return files | dict.fromkeys(["pyproject.toml", "README.md", "LICENSE"], b"") | {"PKG-INFO": metadata(distribution)}


def write_wheel(folder: Path, distribution: Distribution, tag: str, files: Mapping[str, bytes]) -> Path:
    """Write a wheel."""
    path = folder / f"{distribution.file_name}-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return path


def write_sdist(folder: Path, distribution: Distribution, files: Mapping[str, bytes]) -> Path:
    """Write an sdist."""
    name = f"{distribution.file_name}-{VERSION}"
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as sdist:
        for member, content in files.items():
            information = tarfile.TarInfo(f"{name}/{member}")
            information.size = len(content)
            sdist.addfile(information, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("distribution", "tag"), [(CORE, LINUX), (CORE, "py3-none-any"), *((each, "py3-none-any") for each in EXPORTERS)]
)
def test_right_wheel_has_no_fault(tmp_path: Path, distribution: Distribution, tag: str) -> None:
    """A wheel with everything and nothing else passes."""
    assert [] == faults(write_wheel(tmp_path, distribution, tag, right_wheel(distribution, tag)))


@pytest.mark.parametrize("distribution", [CORE, *EXPORTERS], ids=lambda each: each.name)
def test_right_sdist_has_no_fault(tmp_path: Path, distribution: Distribution) -> None:
    """An sdist with everything and nothing else passes."""
    assert [] == faults(write_sdist(tmp_path, distribution, right_sdist(distribution)))


INFORMATION = f"{CORE.file_name}-{VERSION}.dist-info"
WINDOW = "monitel/_window_c.cpython-311-x86_64-linux-gnu.so"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("tests/test_stat.py", b"", "tests/test_stat.py: does not belong into a distribution"),
        ("monitel/_window_c.c", b"", "monitel/_window_c.c: C sources belong into the sdist"),
        (WINDOW, b"\0/tmp/build-x/src\0", f"{WINDOW}: contains /tmp/build-x, a folder of the machine that built it"),
        (WINDOW, b".debug_info", f"{WINDOW}: contains debug information"),
        ("monitel/x.py", f"{ROOT}/".encode(), f"monitel/x.py: contains {ROOT}, a folder of the machine that built it"),
        (f"{INFORMATION}/WHEEL", b"Tag: cp310-cp310-any\n", f"the name has the tag {LINUX}, WHEEL has cp310-cp310-any"),
        (f"{INFORMATION}/METADATA", metadata(OTEL), "metadata: Name is monitel-otel, expected monitel"),
    ],
)  # fmt: skip
def test_fault_in_a_wheel_is_found(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    """Each addition or change is exactly one fault."""
    files = right_wheel(CORE, LINUX) | {name: content}
    path = write_wheel(tmp_path, CORE, LINUX, files)
    assert [f"{path.name}: {expected}"] == faults(path)


def test_faults_of_an_sdist_are_found(tmp_path: Path) -> None:
    """An sdist without a header cannot build the extension that includes it; tests and binaries are not sources."""
    files = right_sdist(CORE) | {"tests/conftest.py": b"", "src/monitel/_window_c.so": b""}
    del files["src/monitel/_recorder.h"]
    path = write_sdist(tmp_path, CORE, files)
    assert [
        f"{path.name}: tests/conftest.py: does not belong into a distribution",
        f"{path.name}: src/monitel/_recorder.h: missing",
        f"{path.name}: contains a compiled extension",
    ] == faults(path)


def test_status_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints faults and fails, so that a workflow stops."""
    right = write_sdist(tmp_path, OTEL, right_sdist(OTEL))
    assert 0 == main([str(right)])
    wrong = write_wheel(tmp_path, OTEL, "py3-none-any", right_wheel(OTEL, "py3-none-any") | {"tests/x.py": b""})
    assert 1 == main([str(right), str(wrong)])
    assert "tests/x.py: does not belong" in capsys.readouterr().out
    assert 2 == main([])
