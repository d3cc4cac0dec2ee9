"""The context page: what it adds to a step and to a wait while it is open, beside the same code without one."""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from race import race, timed
from row import Row

import monitel
from monitel.blackbox.context_page import PAGE, close_page, open_page
from monitel.blackbox.folder import Folder

_CASES = (("set_step", "set_step(next(steps))", 1500.0), ("guard()", "with counter.guard(): pass", 2500.0))


def main() -> None:
    """Race each case with the page open against the same with the page closed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        folder = Folder.open(Path(path))
        names: dict[str, Any] = {
            "counter": monitel.WaitCounter("loading"),
            "set_step": monitel.set_step,
            "steps": count(),
        }
        for what, code, most in _CASES:
            kinds = {"open": True, "closed": False}
            costs = race({each: timed(code, _prepared(folder, names, opened=kinds[each])) for each in kinds}, 201)
            Row(f"{what} without a context page", median(costs["closed"])).put()
            added = median(mine - others for mine, others in zip(costs["open"], costs["closed"], strict=True))
            Row(f"an open context page adds to {what}", added, most=most).put()
        close_page()


def _prepared(folder: Folder, names: dict[str, Any], *, opened: bool) -> Callable[[], dict[str, Any]]:
    def prepare() -> dict[str, Any]:
        folder.unlink(PAGE)
        if opened:
            open_page(folder)
        else:
            close_page()
        return names

    return prepare


if __name__ == "__main__":
    main()
