"""Builds of CPython without the GIL: no extension switches it on."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[3] / "src" / "monitel").rglob("*.c"))

SCRIPT = """
import importlib.util
import sys
from pathlib import Path

import monitel
import monitel.profiler

loaded = []
for path in sorted(Path(monitel.__file__).parent.rglob("*_c.*")):
    if path.name.endswith(sys.argv[1]):
        spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)  # its package may import torch
        module = importlib.util.module_from_spec(spec)  # this switches the GIL on, with a warning, or not
        loaded.append(module)
print(len(loaded), sys._is_gil_enabled())
"""


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has the GIL")
def test_import_leaves_the_gil_off() -> None:
    """A fresh interpreter without the GIL imports everything, with each extension that was built, and stays without."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, suffix],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    count, gil = done.stdout.split()
    assert "False" == gil
    if os.environ.get("MONITEL_REQUIRE_EXTENSIONS") == "1":
        assert len(SOURCES) == int(count)
