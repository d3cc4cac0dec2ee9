"""Stat.add() on a free-threaded CPython, beside the build with a GIL of the same version.

monitel and its C window are installed in both: in the environments ``.venv-3.13t`` and ``.venv-3.13`` of this clone, or
those of the interpreters that ``MONITEL_FREE_THREADED`` and ``MONITEL_WITH_GIL`` name.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from timeit import repeat

from race import twin
from row import Row

import monitel

_ROOT = Path(__file__).parents[3]
_FREE = os.environ.get("MONITEL_FREE_THREADED", str(_ROOT / ".venv-3.13t/bin/python"))
_LOCKED = os.environ.get("MONITEL_WITH_GIL", str(_ROOT / ".venv-3.13/bin/python"))
_SAMPLES, _ROUNDS = 50_000, 100
_PROCESSES = 3  # with each interpreter, in turns


def measured(python: str) -> float:
    environment = {**os.environ, "PYTHON_GIL": "0"} if python == _FREE else os.environ
    return float(subprocess.check_output([python, __file__, "measure"], env=environment, timeout=300))


def main() -> None:
    """Measure with both interpreters in turns, and compare the least costs."""
    if shutil.which(_FREE) is None or shutil.which(_LOCKED) is None:
        Row("Stat.add without the GIL: no two interpreters (see the subject)", None).put()
        return
    own, peer = map(min, zip(*((measured(_FREE), measured(_LOCKED)) for _ in range(_PROCESSES)), strict=True))
    Row("Stat.add without the GIL", own, peer="with it", peer_value=peer, ratio=own / peer, most_ratio=1.6).put()


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        assert twin() == "C"
        add = monitel.Stat("loss", [monitel.MEAN], 1e9).add
        times = repeat("add(0.25)", number=_SAMPLES, repeat=_ROUNDS, globals={"add": add})
        print(1e9 * min(times) / _SAMPLES)
    else:
        main()
