"""``import monitel``: how long it takes."""

import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from race import Contender, optional, race
from row import Row

_BUDGET_NS = 30e6
_ROUNDS = 21
_PEERS = ("prometheus_client", "opentelemetry.sdk.metrics")


def interpreter(code: str, cache: str) -> Contender:
    """A contender that runs ``code`` in a fresh interpreter; the warm-up fills the cache of compiled modules."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}

    def one_round() -> float:
        begin = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        return time.perf_counter_ns() - begin

    return one_round


def main() -> None:
    """Measure above a bare interpreter."""
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


if __name__ == "__main__":
    main()
