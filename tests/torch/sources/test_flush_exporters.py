"""Events that torch code logs just before a flush of an exporter, or the exit, are exported."""

from tests.support.receiver import Receiver
from tests.support.scripts import Run

EXIT = """\
import sys
from datetime import datetime
import torch, monitel.torch, monitel_otlp
monitel.torch.instrument(sources="-waits,-compilation", stuck_after=None)
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
torch.monitor.log_event(torch.monitor.Event("checkpoint", datetime.now(), {"bytes": 5}))
"""


def test_exit(receiver: Receiver, run: Run) -> None:
    """Even if the pipeline was configured last."""
    run("-c", EXIT, receiver.url)
    assert ["checkpoint"] == receiver.record_names()
