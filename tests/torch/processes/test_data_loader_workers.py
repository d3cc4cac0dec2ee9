"""Workers of torch's DataLoader: their items are dropped, or exported on request, and no worker hangs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.support.spools import folders

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

EPOCHS, SAMPLES, WORKERS = 2, 40, 2

SCRIPT = f"""\
import warnings
from torch.utils.data import DataLoader, Dataset
from monitel.profiler import record_function

method, ask = sys.argv[2:]

class Numbers(Dataset):
    def __len__(self):
        return {SAMPLES}

    def __getitem__(self, index):
        monitel.emit("sample", index=index)
        with record_function("sample", {{"index": index}}):
            return index

def configure(worker=None):
    workers = {{"workers": True}} if ask == "workers" else {{}}
    # Requests leave every few milliseconds: forks come in the middle of them.
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.005, step_traces=True, **workers)

def train():
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
    busy = monitel.stat("busy", [COUNT], 0.001)
    for epoch in range({EPOCHS}):
        initialise = configure if ask == "each" else None
        loader = DataLoader(
            Numbers(), 4, num_workers={WORKERS}, multiprocessing_context=method, worker_init_fn=initialise, timeout=30
        )
        seen = []
        monitel.set_step(epoch)
        with record_function("epoch"):
            for batch in loader:
                busy.add(1)
                with record_function("batch"):
                    seen += batch.tolist()
        assert list(range({SAMPLES})) == seen
        monitel.emit("epoch")

if __name__ == "__main__":
    configure()
    train()
"""


def samples(receiver: Receiver) -> Counter[int]:
    """Return the number of arrivals of each sample's event."""
    return Counter(record.attributes["index"] for record in receiver.records("sample"))


def check_spans(receiver: Receiver, epochs_of_samples: int, processes: int) -> None:
    """Check that the spans of the training loop are complete, in how many epochs each sample is one, and all ids."""
    spans = receiver.spans()
    assert len(spans) == len({span.span_id for span in spans})
    expected = {"epoch": EPOCHS, "batch": EPOCHS * SAMPLES // 4, "training.rank": EPOCHS, "training.step": EPOCHS}
    assert expected == Counter(span.name for span in spans if span.name != "sample")
    found = Counter(span.attributes["index"] for span in spans if span.name == "sample")
    assert Counter(dict.fromkeys(range(SAMPLES), epochs_of_samples)) == found
    assert processes == len({span.resource["service.instance.id"] for span in spans})


def test_workers_export_nothing_by_default(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Each worker logs this once, the items of the training loop are complete, and no folder remains."""
    ended = train(SCRIPT, receiver.url, "fork", "nothing")
    assert Counter() == samples(receiver)
    assert EPOCHS * WORKERS == ended.stderr.count("use configure(workers=True) to export it")
    assert EPOCHS == len(receiver.records("epoch"))
    assert EPOCHS * SAMPLES // 4 == receiver.values("busy.count")[-1]
    check_spans(receiver, 0, 1)
    assert [] == folders(tmp_path)


@pytest.mark.parametrize(("method", "ask"), [("fork", "workers"), ("spawn", "each")])
def test_workers_export_on_request(receiver: Receiver, train: Run, tmp_path: Path, method: str, ask: str) -> None:
    """Forked workers export with ``workers=True``, and all workers after their own call of ``configure()``."""
    train(SCRIPT, receiver.url, method, ask, timeout=120)
    assert Counter(dict.fromkeys(range(SAMPLES), EPOCHS)) == samples(receiver)
    instances = {record.resource["service.instance.id"] for record in receiver.records("sample")}
    assert EPOCHS * WORKERS == len(instances)
    assert EPOCHS == len(receiver.records("epoch"))
    check_spans(receiver, EPOCHS, 1 + EPOCHS * WORKERS)
    assert [] == folders(tmp_path)
