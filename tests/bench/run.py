"""Measure monitel beside its peers and print a table; ``make bench`` runs this.

Each subject runs in a separate process. Times are medians of rounds in which all contenders take turns, and a
ratio is the median of the rounds' ratios, monitel's cost in the peer's: less is better. Peers that are not
installed are left out.
"""

import argparse
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from row import HEADER, Row

_HERE = Path(__file__).parent
_SWITCH = "MONITEL_NO_EXTENSIONS"
#: The subjects, and the package without which a subject is left out.
_SUBJECTS: dict[str, str] = {
    **dict.fromkeys(("adding", "importing"), "monitel"),
    **dict.fromkeys(("steps", "parity"), "torch"),
    **dict.fromkeys(("pipeline", "exporting", "spans", "black_box", "ending", "outage"), "monitel_otlp"),
    "top": "textual",
}
_BOTH_TWINS = {"adding"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="subject", help=f"all by default: {' '.join(_SUBJECTS)}")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a budget is missed")
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(_SUBJECTS):
        parser.error(f"no such subject: {' '.join(unknown)}; there are {' '.join(_SUBJECTS)}")
    if find_spec("monitel.stats._window_c") is None:
        print("monitel.stats._window_c is not built here: the Python twin is measured alone")
    rows = [row for subject in arguments.subjects or _SUBJECTS for row in _rows(subject)]
    _print(rows)
    missed = sum(row.kept is False for row in rows)
    print(f"\n{missed} of {sum(row.kept is not None for row in rows)} budgets missed")
    return 1 if arguments.check and missed else 0


def _rows(subject: str) -> list[Row]:
    compiled = find_spec("monitel.stats._window_c") is not None
    switches = ("0", "1") if compiled and subject in _BOTH_TWINS else ("0",)
    return [row for switch in switches for row in _measure(subject, switch)]


def _measure(subject: str, switch: str) -> list[Row]:
    if find_spec(_SUBJECTS[subject]) is None:
        return [Row(f"{subject}: {_SUBJECTS[subject]} is missing", None)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    print(f"{subject} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, next(_HERE.glob(f"*/{subject}.py"))],
        env={**kept, _SWITCH: switch, "PYTHONPATH": str(_HERE)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{subject}.py failed:\n{done.stderr}")
    return [Row(**json.loads(line)) for line in done.stdout.splitlines()]


def _print(rows: list[Row]) -> None:
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    for line in lines:
        print(" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    raise SystemExit(main())
