"""Cost of ``monitel.torch.instrument()`` per training step and per wait for other ranks, beside nv-one-logger."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

from peers import one_logger_iteration
from race import instrumented, optional, race, timed
from row import Row

_CALLS = 2000
_PEER = "nv-one-logger, an iteration"
_RATES = {"samples_per_step": 32, "tokens_per_step": 4096, "flops_per_step": 1e12, "peak_flops": 1e15}
#: Options of each contender, and the budget for what it costs above bare torch, in ns; None for a sum.
_ASKED: dict[str, tuple[dict[str, Any], float | None]] = {
    "torch: steps and batches": ({"sources": "-stages"}, 3000),
    "torch: the same, and stages": ({}, None),
    "torch: the same, rates and utilisation": (_RATES, None),
}
_WITHOUT, _WITH = list(_ASKED)[:2]
_STAGES = "torch: stages of a step alone"
_STAGES_NS = 15_000
#: Costs in a job of two ranks, above bare torch, and their budgets in ns.
_RANKS: dict[str, float] = {
    "torch: a backward in a job of two ranks, above one in a job of one rank": 25_000,
    "torch: a wait for other ranks": 1000,
}


def main() -> None:
    """Measure a batch of a DataLoader, a backward, and one step of an optimizer that does nothing."""
    torch: Any = optional("torch")
    if torch is None:
        for what, (_, most) in _ASKED.items():
            Row(what, None, most=most).put()
        for what, most in {_STAGES: float(_STAGES_NS), **_RANKS}.items():
            Row(what, None, most=most).put()
        return

    class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None: ...

    class Numbers(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return count()

    weight = torch.nn.Parameter(torch.ones(1))
    names = {
        "batches": iter(torch.utils.data.DataLoader(Numbers(), batch_size=None)),
        "backward": weight.sum().backward,
        "step": Optimizer([weight], {}).step,
    }
    # Long rounds: a class whose method was just replaced is slow for a while.
    code = f"for _ in range({_CALLS}): next(batches); backward(retain_graph=True); step()"
    asked: dict[str, dict[str, Any] | None] = {"bare": None, **{what: options for what, (options, _) in _ASKED.items()}}
    contenders = {
        what: timed(code, instrumented(options, names), _CALLS, clock=thread_time) for what, options in asked.items()
    }
    if (iteration := one_logger_iteration()) is not None:
        code = f"for _ in range({_CALLS}): iteration()"
        contenders[_PEER] = timed(code, lambda: {"iteration": iteration}, _CALLS, clock=thread_time)
    _put(race(contenders))
    _measure_ranks()


def _put(costs: dict[str, list[float]]) -> None:
    for what, (_, most) in _ASKED.items():
        above = [mine - bare for mine, bare in zip(costs[what], costs["bare"], strict=True)]
        row = Row(what, median(above), most=most)
        if _PEER in costs:
            row.peer, row.peer_value = _PEER, median(costs[_PEER])
            row.ratio = median(mine / theirs for mine, theirs in zip(above, costs[_PEER], strict=True))
        row.put()
    more = [mine - others for mine, others in zip(costs[_WITH], costs[_WITHOUT], strict=True)]
    Row(_STAGES, median(more), most=_STAGES_NS).put()


def _measure_ranks() -> None:
    """Run ``two_ranks.py`` in two processes, of which the first one prints its costs."""
    script = Path(__file__).with_name("two_ranks.py")
    with TemporaryDirectory() as folder:
        arguments = [f"file://{folder}/store"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen([sys.executable, script, *arguments, str(rank)], env=environment, stdout=subprocess.PIPE)
            for rank in range(2)
        ]
        try:
            outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{script.name} failed")
    for (what, most), text in zip(_RANKS.items(), outputs[0].split(), strict=True):
        Row(what, float(text), most=most).put()


if __name__ == "__main__":
    main()
