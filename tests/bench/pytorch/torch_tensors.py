"""Cost of ``stat.add(loss)`` for the loop where the loss is on a device.

Without an accelerator a stand-in is measured, a device in Python whose operations only go into a queue: then what torch
itself is called for (detach, one copy, record_stream) is taken off.
"""

import math
import sys
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from race import Contender, race, timed
from row import Row

import monitel
import monitel.torch

_BUDGET_NS = 10_000
_CALLS = 400
_TORCHS = "kept.append(loss.detach().reshape(1).to(float64, non_blocking=True, copy=True)); loss.record_stream(stream)"


def main() -> None:
    """Measure one add, and beside it a wait for the device, or else torch's own part."""
    real = torch.accelerator.is_available()
    if real:
        loss, finish = torch.ones((), device=torch.accelerator.current_accelerator()), torch.accelerator.synchronize
        stream = torch.accelerator.current_stream()
    else:
        sys.path.append(str(Path(__file__).parents[2] / "torch"))
        tests: Any = import_module("later_device")
        tests.start()
        later, on_later = tests.later, tests.on_later

        loss, finish, stream = on_later(1.0), later.run, later.current
    stat = monitel.Stat("loss", [monitel.MEAN], math.inf)

    def prepare() -> dict[str, Any]:
        finish()
        stat.flush()
        return {"loss": loss, "add": stat.add, "kept": [], "float64": torch.float64, "stream": stream}

    def repeated(code: str) -> Contender:
        return timed(f"for _ in range({_CALLS}): {code}", prepare, calls=_CALLS)

    with monitel.torch.instrument(sources="-compilation,-failures"):
        costs = race({name: repeated(name) for name in ("add(loss)", "add(loss.item())", _TORCHS)})
    ours = costs["add(loss)"]
    if real:
        waits = costs["add(loss.item())"]
        ratio = median(mine / theirs for mine, theirs in zip(ours, waits, strict=True))
        what, peer = "torch: add(loss) of a device", "add(loss.item())"
        Row(what, median(ours), most=_BUDGET_NS, peer=peer, peer_value=median(waits), ratio=ratio).put()
    else:
        above = median(mine - theirs for mine, theirs in zip(ours, costs[_TORCHS], strict=True))
        Row("torch: add(loss) of a device, torch's part taken off", above, most=_BUDGET_NS).put()


if __name__ == "__main__":
    main()
