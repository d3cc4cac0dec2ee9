"""``import monitel``: how long it takes, and what it pulls in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING

from race import optional, race
from row import Row

if TYPE_CHECKING:
    from race import Contender

_BUDGET_NS = 30e6
_ROUNDS = 21
_PEERS = ("prometheus_client", "opentelemetry.sdk.metrics")
_LIST_THIRD_PARTY = """
import sys
before = set(sys.modules)
import monitel
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(tops - sys.stdlib_module_names - {"monitel"}))
"""


def interpreter(code: str, cache: str) -> Contender:
    """A contender that runs ``code`` in a fresh interpreter; the warm-up fills the cache of compiled modules."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}

    def one_round() -> float:
        begin = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        return time.perf_counter_ns() - begin

    return one_round


def main() -> None:
    """Measure above a bare interpreter, and look at what is loaded."""
    peers = [peer for peer in _PEERS if optional(peer)]
    codes = {"bare": "pass", "monitel": "import monitel", **{peer: f"import {peer}" for peer in peers}}
    with tempfile.TemporaryDirectory() as cache:
        costs = race({name: interpreter(code, cache) for name, code in codes.items()}, _ROUNDS)
    above = {name: median(cost - bare for cost, bare in zip(costs[name], costs["bare"], strict=True)) for name in codes}
    for peer in _PEERS:
        row = Row("import monitel", above["monitel"], peer=f"import {peer}", most=_BUDGET_NS)
        if peer in above:
            row.peer_value, row.ratio = above[peer], above["monitel"] / above[peer]
        row.put()
    listed = subprocess.run([sys.executable, "-c", _LIST_THIRD_PARTY], check=True, capture_output=True, text=True)
    names = listed.stdout.split()
    what = "third-party modules that it loads"
    Row(f"{what}: {' '.join(names)}" if names else what, len(names), unit="", most=0).put()


if __name__ == "__main__":
    main()
