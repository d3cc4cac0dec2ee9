"""``opentelemetry-instrument`` with an unchanged PyTorch script: monitel's instrumentor, and MONITEL_* variables."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.receiver import Receiver
from tests.support.scripts import Ended, Run

pytestmark = pytest.mark.invalid_output("the resource belongs to the application", "resource.distro")


WORKERS = """import monitel
from torch.utils.data import DataLoader

class Emitting(list):
    def __getitem__(self, index):
        monitel.emit("loaded")
        return index

if __name__ == "__main__":
    list(DataLoader(Emitting(range(4)), num_workers=2, multiprocessing_context="fork"))
"""


@pytest.mark.parametrize(("workers", "names"), [("true", 4 * ["loaded"]), ("false", [])])
def test_events_of_workers_are_exported_on_request(
    receiver: Receiver, instrument: Callable[..., Ended], tmp_path: Path, workers: str, names: list[str]
) -> None:
    """MONITEL_WORKERS has its effect; a process without a rank is not instrumented."""
    (tmp_path / "train.py").write_text(WORKERS)
    instrument("train.py", MONITEL_WORKERS=workers)
    assert names == receiver.record_names()
    assert [] == receiver.points("training.steps")


ONLY_RANKS = """\
import os, subprocess, sys
from monitel_otel.torch_instrumentor import TorchInstrumentor
TorchInstrumentor().instrument(skip_dep_check=True)
print('torch' in sys.modules, flush=True)
if sys.argv[1:]:
    subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)
TorchInstrumentor().uninstrument()
"""


def test_only_ranks_are_instrumented(run: Run) -> None:
    """A process that a rank starts is not instrumented, and does not import torch."""
    assert "True\nFalse\n" == run("-c", ONLY_RANKS, ONLY_RANKS, env={"RANK": "0"}).stdout
