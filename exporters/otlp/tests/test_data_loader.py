"""Real workers of torch's DataLoader: what they record is dropped or exported as was asked, and none hangs."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from .spools import folders

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Run
    from .receiver import Receiver

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

EPOCHS, SAMPLES, WORKERS = 2, 40, 2

SCRIPT = f"""\
import warnings
from torch.utils.data import DataLoader, Dataset

method, ask = sys.argv[2:]

class Numbers(Dataset):
    def __len__(self):
        return {SAMPLES}

    def __getitem__(self, index):
        monitel.emit("sample", index=index)
        return index

def configure(worker=None):
    workers = {{"workers": True}} if ask == "workers" else {{}}
    # Requests leave every few milliseconds: forks come in the middle of them.
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.005, **workers)

def train():
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
    busy = monitel.stat("busy", [COUNT], 0.001)
    for epoch in range({EPOCHS}):
        initialise = configure if ask == "each" else None
        loader = DataLoader(
            Numbers(), 4, num_workers={WORKERS}, multiprocessing_context=method, worker_init_fn=initialise, timeout=30
        )
        seen = []
        for batch in loader:
            busy.add(1)
            seen += batch.tolist()
        assert list(range({SAMPLES})) == seen
        monitel.emit("epoch")

if __name__ == "__main__":
    configure()
    train()
"""


def samples(receiver: Receiver) -> Counter[int]:
    """How often each sample's event has arrived."""
    return Counter(record.attributes["index"] for record in receiver.records("sample"))


def test_workers_are_silent_by_default(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Each says so once, the loop's own telemetry is complete, and no folder is left."""
    ended = train(SCRIPT, receiver.url, "fork", "nothing")
    assert Counter() == samples(receiver)
    assert EPOCHS * WORKERS == ended.stderr.count("configure(workers=True) exports it")
    assert EPOCHS == len(receiver.records("epoch"))
    assert EPOCHS * SAMPLES // 4 == receiver.values("busy.count")[-1]
    assert [] == folders(tmp_path)


@pytest.mark.parametrize(
    ("method", "ask"), [("fork", "workers"), ("fork", "each"), ("spawn", "each"), ("forkserver", "each")]
)
def test_workers_export_when_asked(receiver: Receiver, train: Run, tmp_path: Path, method: str, ask: str) -> None:
    """Forked ones by ``workers=True``, any by a ``configure()`` of their own: each sample once an epoch."""
    train(SCRIPT, receiver.url, method, ask, timeout=120)
    assert Counter(dict.fromkeys(range(SAMPLES), EPOCHS)) == samples(receiver)
    instances = {record.resource["service.instance.id"] for record in receiver.records("sample")}
    assert EPOCHS * WORKERS == len(instances)
    assert EPOCHS == len(receiver.records("epoch"))
    assert [] == folders(tmp_path)


def test_spawned_workers_that_do_not_configure_have_no_pipeline(receiver: Receiver, train: Run) -> None:
    """They are processes of their own: nothing is sent, nothing said."""
    ended = train(SCRIPT, receiver.url, "spawn", "nothing", timeout=120)
    assert Counter() == samples(receiver)
    assert EPOCHS == len(receiver.records("epoch"))
    assert 1 == len([line for line in ended.stderr.splitlines() if "monitel" in line])
