"""The tracker for accelerate: what a backend receives of the calls of a script."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import CONFIGURE, READY, write_script
from tests.torch.trainers.arrivals import status

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("accelerate") is None, reason="pip install accelerate"),
]

#: Training of a tiny model to the step in the second argument, from a checkpoint if there is one.
LOOP = (
    CONFIGURE
    + """\
import json, threading
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from monitel.integrations.accelerate import MonitelTracker

class Truth(GeneralTracker):
    name = "truth"
    requires_logging_directory = False
    tracker = None

    def log(self, values, step=None, **kwargs):
        with open("truth", "a") as file:
            print(json.dumps([step, values]), file=file)

def train(tracker, last, at_step=lambda step: None):
    accelerator = Accelerator(cpu=True, log_with=[tracker, Truth()])
    accelerator.init_trackers("project", config={"lr": 0.1, "model": {"width": 4, "dropout": None}, "hub_token": "no"})
    torch.manual_seed(accelerator.process_index)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    first = 0
    if os.path.isdir("saved"):
        accelerator.load_state("saved")
        first = int(open("saved/step").read())
        monitel.set_step(first)
    for step in range(first + 1, last + 1):
        loss = model(torch.randn(8, 4)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        monitel.set_step(step)
        accelerator.log({"loss": loss.item(), "norm": {"weight": model.state_dict().popitem()[1].norm().item()}}, step)
        at_step(step)
    accelerator.save_state("saved")
    open("saved/step", "w").write(str(step))
    accelerator.end_training()

"""
)


def truth(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the step and the numbers of each call, as another tracker has received them."""
    lines = (folder / "truth").read_text().splitlines()
    return [
        (step, {"loss": each["loss"], "norm.weight": each["norm"]["weight"]}) for step, each in map(json.loads, lines)
    ]


def numbers(receiver: Receiver, rank: int | None = None) -> list[tuple[int, dict[str, float]]]:
    """Return the step and the numbers of each call of monitel.log, of one rank."""
    records = [each for each in receiver.records("run.log") if each.resource.get("training.rank") == rank]
    return [(each.attributes["training.step"], each.body) for each in records]


def test_numbers_and_configuration(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Everything that the script logs arrives; a run that goes on from a checkpoint has the steps that follow."""
    script = write_script(tmp_path, LOOP + "train(MonitelTracker(), int(sys.argv[2]))\n")
    run(script, receiver.url, 4)
    run(script, receiver.url, 7)
    logged = truth(tmp_path)
    assert [1, 2, 3, 4, 5, 6, 7] == [step for step, _ in logged]
    assert logged == numbers(receiver)
    assert logged[-1][1]["loss"] == receiver.values("loss")[-1]
    configs = [record.body for record in receiver.records("run.config")]
    assert [{"lr": 0.1, "model": {"width": 4, "dropout": None}, "hub_token": "***"}] * 2 == configs
    assert ["completed"] * 2 == status(receiver)
    assert [4, 7] == [record.attributes["run.step"] for record in receiver.records("run.ended")]


DIRECT = """
tracker = MonitelTracker()
train(tracker, 3)
tracker.log({"direct": 1.0})
tracker.main_process_only = False
tracker.log({"direct": 2.0})
"""


def test_two_ranks(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """The main process logs for the job; with ``main_process_only = False`` each process logs its direct calls."""
    script = write_script(tmp_path, LOOP + DIRECT)
    run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, receiver.url)
    assert 3 == len(truth(tmp_path))
    assert [*truth(tmp_path), (3, {"direct": 1.0}), (3, {"direct": 2.0})] == numbers(receiver, 0)
    assert [(3, {"direct": 2.0})] == numbers(receiver, 1)
    assert [0] == [record.resource["training.rank"] for record in receiver.records("run.config")]


WRONG = """
class Unprintable:
    def __str__(self):
        raise ValueError("no text")

def fail(event):
    raise ValueError("this handler fails")

accelerator = Accelerator(cpu=True, log_with=MonitelTracker())
accelerator.init_trackers("project", config={"object": Unprintable(), 3: [1, None, {"x": object}]})
assert accelerator.get_tracker("monitel", unwrap=True) is monitel
accelerator.log({"loss": 0.5, "text": "hello", "none": None, "list": [1, 2], "nested": {"a": {"b": 1}}}, step=1)
accelerator.log({"loss": 0.25}, step=2, log_kwargs={"monitel": {"split": "validation"}, "wandb": {"commit": False}})
accelerator.log({"loss": 9.0}, step=3, log_kwargs={"monitel": {"split": ["a", "list"]}})
accelerator.log({"loss": 9.0}, step="three")
accelerator.log({"loss": 9.0}, step=-1)
accelerator.log(["loss"])
with monitel.register_event_handler(fail):
    accelerator.log({"loss": 0.125}, step=4)
accelerator.log({"loss": 0.0625})
accelerator.end_training()
"""


def test_wrong_values_never_raise(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Numbers of a call are kept where the others are wrong; the first failure is logged."""
    ended = run(write_script(tmp_path, LOOP + WRONG), receiver.url)
    bodies = [{"loss": 0.5, "nested.a.b": 1}, {"loss": 0.25}, {"loss": 0.125}, {"loss": 0.0625}]
    assert bodies == [record.body for record in receiver.records("run.log")]
    assert [None, "validation", None, None] == [
        record.attributes.get("split") for record in receiver.records("run.log")
    ]
    assert {"validation", None} == {point.attributes.get("split") for point in receiver.points("loss")}
    (config,) = receiver.records("run.config")
    assert [1, None, {"x": "<class 'object'>"}] == config.body["3"]
    assert 1 == ended.stderr.count("MonitelTracker.log() failed (further failures are not logged)")


@pytest.mark.parametrize(("raised", "expected"), [("RuntimeError", "failed"), ("KeyboardInterrupt", "interrupted")])
def test_exception_in_training(receiver: Receiver, run: Run, tmp_path: Path, raised: str, expected: str) -> None:
    """The numbers before the exception arrive, and the run has failed or was interrupted."""
    fail = f"def fail(step):\n    if step == 3:\n        raise {raised}\n"
    run(
        write_script(tmp_path, LOOP + fail + "train(MonitelTracker(), 9, fail)\n"),
        receiver.url,
        returncode=1 if expected == "failed" else -2,
    )
    assert truth(tmp_path) == numbers(receiver)
    assert [1, 2, 3] == [step for step, _ in numbers(receiver)]
    assert [expected] == status(receiver)


def test_preemption(receiver: Receiver, terminate: Terminate, tmp_path: Path) -> None:
    """After SIGTERM the run is preempted, and everything before it arrives."""
    wait = f"def wait(step):\n    if step == 3:\n        {READY}        threading.Event().wait(60)\n"
    terminate(LOOP + wait + "train(MonitelTracker(), 9, wait)\n", receiver.url)
    assert truth(tmp_path) == numbers(receiver)
    assert [1, 2, 3] == [step for step, _ in numbers(receiver)]
    assert ["preempted"] == status(receiver)
