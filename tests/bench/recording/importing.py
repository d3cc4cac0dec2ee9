"""Imports: how long they take."""

import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from race import Contender, optional, race
from row import Row

_MODULES = {"monitel": 30e6, "monitel_otlp": 500e6}  # with the budgets
_ROUNDS = 21


def interpreter(code: str, cache: str) -> Contender:
    """A contender that runs ``code`` in a fresh interpreter; the warm-up fills the cache of compiled modules."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}

    def one_round() -> float:
        begin = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        return time.perf_counter_ns() - begin

    return one_round


def main() -> None:
    codes = {"bare": "pass", **{each: f"import {each}" for each in _MODULES if optional(each)}}
    with tempfile.TemporaryDirectory() as cache:
        costs = race({name: interpreter(code, cache) for name, code in codes.items()}, _ROUNDS)
    for name in codes.keys() - {"bare"}:
        above = median(cost - bare for cost, bare in zip(costs[name], costs["bare"], strict=True))
        Row(f"import {name}", above, most=_MODULES[name]).put()


if __name__ == "__main__":
    main()
