"""add_scalar of the TensorBoard writers: what it costs the caller; the queues are emptied between rounds."""

import tempfile
from pathlib import Path
from typing import Any

from race import Contender, optional, race, timed
from row import Row, report

_CALLS = 500
_PEERS = {
    "torch SummaryWriter": ("torch.utils.tensorboard", "SummaryWriter"),
    "tensorboard summary.Writer": ("tensorboard.summary", "Writer"),
    "tensorboardX SummaryWriter": ("tensorboardX", "SummaryWriter"),
}


def adding(writer: Any) -> Contender:
    """A contender that adds scalars, after what was added before is on disk."""

    def prepare() -> dict[str, Any]:
        writer.flush()
        return {"writer": writer, "range": range(_CALLS)}

    return timed("for step in range: writer.add_scalar('loss', 0.25, step)", prepare, _CALLS)


def main() -> None:
    """Measure monitel_tensorboard beside what is installed."""
    own = optional("monitel_tensorboard")
    if own is None:
        Row("TensorBoard add_scalar", None).put()
        return
    with tempfile.TemporaryDirectory() as folder:
        writers = {"monitel": own.SummaryWriter(f"{folder}/monitel")}
        for number, (peer, (module, name)) in enumerate(_PEERS.items()):
            if found := optional(module):
                writers[peer] = getattr(found, name)(str(Path(folder) / str(number)))
        costs = race({name: adding(writer) for name, writer in writers.items()})
        for writer in writers.values():
            writer.close()
    report("TensorBoard add_scalar", costs, dict.fromkeys(_PEERS))


if __name__ == "__main__":
    main()
