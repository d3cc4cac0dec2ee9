"""Warnings on stderr: Python's last-resort handler works beside the handler of a pipeline."""

import pytest
from tests.support.receiver import Receiver
from tests.support.scripts import Ended, Run

LOG = """\
import logging

def configure(level):
    return monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", logging_level=level)

def log(phase):
    for name in ("root", "train", "train.data", "monitel.otlp"):
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(level, "%s: %d of %s", phase, level, name)

"""
PHASES = """
log("before")
with configure("ERROR"):
    log("error")
with configure("INFO"):
    log("info")
log("after")
"""
SETUPS = {
    "nothing": "",
    "basic": "logging.basicConfig(level=logging.INFO)",
    "child alone": 'logging.getLogger("train").addHandler(logging.StreamHandler())\n'
    'logging.getLogger("train").propagate = False',
    "null": 'logging.getLogger("train").addHandler(logging.NullHandler())',
}
#: Number of printed messages, as Python's documentation of the last resort and of the handlers implies it.
PRINTED = {"nothing": 8, "basic": 12, "child alone": 8, "null": 4}


def printed(ended: Ended, phase: str) -> list[str]:
    """Return the lines of a phase on stderr, without its name."""
    return [line.replace(phase, "...") for line in ended.stderr.splitlines() if f"{phase}: " in line]


@pytest.mark.parametrize("setup", SETUPS)
def test_stderr_is_the_same_with_and_without_a_logging_level(train: Run, receiver: Receiver, setup: str) -> None:
    """Each message is printed as often, and in the same format, as without a pipeline, whatever the level is."""
    ended = train(f"{LOG}{SETUPS[setup]}{PHASES}", receiver.url)
    before, *others = (printed(ended, phase) for phase in ("before", "error", "info", "after"))
    assert PRINTED[setup] == len(before)
    assert [before] * 3 == others
    names = ("root",) if setup == "child alone" else ("root", "train", "train.data")
    exported = [record.body for record in receiver.records() if str(record.body).startswith("error: ")]
    assert [f"error: 40 of {name}" for name in names] == exported
