"""The sentence that names the largest loss of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.training_time import DOWN, LOST
from monitel_otlp.ledger.shares import largest_loss, parts_of

if TYPE_CHECKING:
    from monitel_otlp.ledger.run_time import RunTime
    from monitel_otlp.ledger.screen import Screen

_ENOUGH = 95  # percent in steps, above which the loss is not the news

#: The activities as they continue "of the time went into".
_PHRASES = {
    "startup": "starting up",
    "init": "initialization",
    "compile": "compilation",
    "data": "waiting for data",
    "step": "steps",
    "checkpoint.save": "saving checkpoints",
    "checkpoint.load": "loading checkpoints",
    "evaluation": "evaluation",
    "stuck": "waits that were stuck",
    "other": "work that belongs to no activity",
    "shutdown": "shutting down",
    DOWN: "downtime between attempts",
    LOST: "steps that had to be repeated after a restart",
}


def sentence(run: RunTime, screen: Screen) -> str:
    """Return the sentence for a run, in characters that the screen can show."""
    parts = parts_of(run.activities)
    loss = largest_loss(parts)
    named = "" if loss is None else _PHRASES.get(loss.name) or f'the activity "{screen.printable(loss.name)}"'
    if run.goodput is None:
        went = "no time was recorded" if loss is None else f"{loss.share} of the time went into {named}"
        return f"{went}; goodput is undefined without steps"
    steps = next((part for part in parts if part.name == "step"), None)
    if steps is not None and steps.percent >= _ENOUGH:
        more = "no loss reaches 1 %"
        if loss is not None and loss.percent:
            more = f"the largest loss is {named} ({loss.share})"
        return f"{steps.share} of the time went into steps; {more}"
    return "no time was recorded" if loss is None else f"{loss.share} of the time went into {named}"
