"""Cost of the stages in a job of two ranks; ``torch_steps.py`` runs it in two processes.

A backward within ``no_sync()`` of a real DistributedDataParallel has all hooks of monitel, but does not wait for the
other rank, whose delays would hide what the hooks cost. For the same reason the wait is for work that has ended.
"""

import sys
from statistics import median
from time import thread_time

import torch
from race import instrumented, race, timed
from torch import distributed

_CALLS = 1000


def main() -> None:
    """Print the costs of a backward and of a wait, in ns, in rank 0."""
    store, rank = sys.argv[1:]
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    above_alone = _cost_of_backward(model) if rank == "0" else 0.0
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=2)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    work = distributed.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    if rank == "0":
        with parallel.no_sync():
            print(_cost_of_backward(parallel) - above_alone)
        # Only a thread that has had a backward is one whose waits count.
        loss = torch.nn.Parameter(torch.ones(1)).sum()
        code = f"loss.backward(retain_graph=True)\nfor _ in range({_CALLS}): work.wait()"
        print(_above_bare(code, {"loss": loss, "work": work}))
    distributed.barrier()
    distributed.destroy_process_group()


def _cost_of_backward(model: torch.nn.Module) -> float:
    """Return the nanoseconds of monitel for a backward of the output of a model."""
    loss = model(torch.ones(1)).sum()
    return _above_bare(f"for _ in range({_CALLS}): backward(retain_graph=True)", {"backward": loss.backward})


def _above_bare(code: str, names: dict[str, object]) -> float:
    """Return the nanoseconds of a call above bare torch: the median of rounds in turns."""
    contenders = {
        what: timed(code, instrumented(options, names), _CALLS, clock=thread_time) for what, options in _OPTIONS.items()
    }
    costs = race(contenders)
    return median(mine - bare for mine, bare in zip(costs["monitel"], costs["bare"], strict=True))


_OPTIONS: dict[str, dict[str, object] | None] = {"bare": None, "monitel": {}}


if __name__ == "__main__":
    main()
