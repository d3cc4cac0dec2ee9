"""The ledger: what an activity costs, and what the ledger takes of a training step."""

from itertools import count
from typing import Any

from race import race, timed
from row import report

import monitel

_PAIR_NS = 2500.0  # with the activity made, in Python
_STEP_NS = 0.0001 * 100e6  # 0.01 % of a step of 100 ms
_STEP = """\
with activity("data"):
    pass
set_step(next(steps))
"""


def main() -> None:
    """Measure activities of the training thread, and a read with as many as a training has."""
    names: dict[str, Any] = {"activity": monitel.activity, "set_step": monitel.set_step, "ledger": monitel.ledger}
    names["steps"] = count(2)
    monitel.set_step(1)
    for name in ("init", "compile", "data", "checkpoint.save", "evaluation"):
        with monitel.activity(name):
            pass
    entered = monitel.activity("data")
    for what, code, most in (
        ("enter and leave an activity", 'with activity("data"): pass', _PAIR_NS),
        ("the same object again", "with entered: pass", _PAIR_NS),
        ("a step and its data in the ledger", _STEP, _STEP_NS),
        ("monitel.ledger()", "ledger()", None),
    ):
        cost = race({"monitel": timed(code, lambda: {**names, "entered": entered})}, 201)
        report(what, cost, {}, most)


if __name__ == "__main__":
    main()
