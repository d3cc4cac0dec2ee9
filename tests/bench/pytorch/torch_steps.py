"""Cost of ``monitel.torch.instrument()`` per training step, beside nv-one-logger."""

from __future__ import annotations

from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any

from peers import one_logger_iteration
from race import optional, race, timed
from row import Row

if TYPE_CHECKING:
    from collections.abc import Callable

_BUDGET_NS = 3000
_CALLS = 2000
_PEER = "nv-one-logger, an iteration"
_RATES = {"samples_per_step": 32, "tokens_per_step": 4096, "flops_per_step": 1e12, "peak_flops": 1e15}
_ASKED: dict[str, dict[str, Any]] = {
    "torch: steps and batches": {},
    "torch: the same, rates and utilisation": _RATES,
    "torch: the same, and phases": {"phases": True, **_RATES},
}
_BUDGETED = set(list(_ASKED)[:2])  # phases are extra


def main() -> None:
    """Measure one batch of a DataLoader and one step of an optimizer that does nothing."""
    torch: Any = optional("torch")
    if torch is None:
        for what in _ASKED:
            Row(what, None, most=_BUDGET_NS if what in _BUDGETED else None).put()
        return
    import monitel.torch

    class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None: ...

    class Numbers(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> count[int]:
            return count()

    optimizer = Optimizer([torch.nn.Parameter(torch.ones(1))], {})
    batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=None))

    def prepare(choices: dict[str, Any] | None) -> Callable[[], dict[str, Any]]:
        def instrumented() -> dict[str, Any]:
            running = monitel.torch.instrument(**(choices or {}))
            if choices is None:
                running.uninstrument()
            return {"batches": batches, "step": optimizer.step}

        return instrumented

    # Long rounds: a class whose method was just replaced is slow for a while.
    code = f"for _ in range({_CALLS}): next(batches); step()"
    asked: dict[str, dict[str, Any] | None] = {"bare": None, **_ASKED}
    contenders = {what: timed(code, prepare(choices), calls=_CALLS) for what, choices in asked.items()}
    if (iteration := one_logger_iteration()) is not None:
        contenders[_PEER] = timed(f"for _ in range({_CALLS}): iteration()", lambda: {"iteration": iteration}, _CALLS)
    _put(race(contenders))


def _put(costs: dict[str, list[float]]) -> None:
    for what in _ASKED:
        above = [mine - bare for mine, bare in zip(costs[what], costs["bare"], strict=True)]
        row = Row(what, median(above), most=_BUDGET_NS if what in _BUDGETED else None)
        if _PEER in costs:
            row.peer, row.peer_value = _PEER, median(costs[_PEER])
            row.ratio = median(mine / theirs for mine, theirs in zip(above, costs[_PEER], strict=True))
        row.put()


if __name__ == "__main__":
    main()
