"""The last values that the ledger keeps of a run."""

import math
from pathlib import Path

import pytest
from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE
from tests.support.receiver import Receiver
from tests.support.scripts import Run, finish, started, write_script

from monitel.console.runs import read_runs

RUN = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=run-7"}
HANGING = """\
from monitel.runs import folder, ledger
def hang(*_): time.sleep(3600)
{} = hang
pipeline = monitel_otlp.configure(spool_dir="spool")
for step in range(20):
    begin = time.monotonic()
    monitel.set_step(step)
    time.sleep(0.01)
    print(time.monotonic() - begin)
print(time.monotonic())
"""


@pytest.mark.parametrize("function", ["folder.encode", "ledger.open_run"])
def test_disk_that_hangs_delays_neither_steps_nor_the_exit(train: Run, function: str) -> None:
    """Only the thread of the ledger waits."""
    ended = train(HANGING.format(function), env=RUN)
    *steps, end = map(float, ended.stdout.split())
    assert max(steps) < DEADLINE
    assert ended.at - end < DEADLINE


AGGREGATIONS = """\
with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, series_limit=3):
    with monitel.testing.ManualClock() as clock:
        every = Stat("every", list(monitel.Aggregation), 60.0, unit="s", attributes={"split": "train"})
        for number in range(5):
            monitel.Stat("many", [monitel.VALUE], 60.0, attributes={"layer": number}).add(number)
        for sample in (4.0, 1.0, 3.0, 2.0):
            every.add(100)
            clock.advance(60)
            every.add(sample)
            every.add(sample + 1)
            clock.advance(60)
    monitel.log({"accuracy": 0.5}, split="val")
    monitel.log({"accuracy": 0.75}, split="val")
    monitel.config({"a": {"b": [1, {"c": 2}], "d": None}})
    monitel.config({"a": {"e": True}, "rate": 0.5})
    monitel.set_step(7)
    time.sleep(0.01)
"""


def test_values_are_those_that_are_exported(train: Run, receiver: Receiver, tmp_path: Path) -> None:
    """The last point of each series, as a backend has it, is in the file; internal metrics and overflows are not."""
    train(AGGREGATIONS, receiver.url, env=RUN)
    (run,) = read_runs(tmp_path / "spool", [])
    values = run.values
    found = {(each.name, each.attributes): each.value for each in values.values}
    points = [each for each in receiver.all_points() if each.scope == "monitel" and each.kind in {"gauge", "sum"}]
    sent = {(each.metric, tuple(sorted(each.attributes.items()))): each.value for each in points}
    assert {key: sent[key] for key in found} == found
    missing = {name for name, _ in sent.keys() - found.keys()}
    assert {"many.value"} == {name for name in missing if not name.startswith(("monitel.", "training."))}
    assert 0.75 == found["accuracy", (("split", "val"),)]
    assert {"a.b": '[1, {"c": 2}]', "a.d": None, "a.e": True, "rate": 0.5} == values.config


FIRST_MINUTE = """\
pipeline = monitel_otlp.configure(spool_dir="spool")
loss, diverged = Stat("loss", [MEAN, SUM], 1e7), Stat("diverged", [SUM], 0.01)
monitel.set_step(1)
loss.add(0.5)
diverged.add(float("nan"))
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""


def test_first_minute_of_a_killed_run_has_its_values(tmp_path: Path) -> None:
    """The open window is stored, too: its values are there without the record of the process. A sum of NaN is NaN."""
    script = write_script(tmp_path, FIRST_MINUTE)

    def values() -> dict[str, float]:
        return {each.name: each.value for run in read_runs(tmp_path / "spool", []) for each in run.values.values}

    with started(tmp_path, script, env=RUN) as process:
        wait_until(lambda: {"loss.mean", "diverged.sum"} <= values().keys())
        finish(process, "\n")
    assert (0.5, False) == (values()["loss.mean"], "loss.sum" in values())
    assert math.isnan(values()["diverged.sum"])
