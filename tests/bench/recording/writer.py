"""add_scalar of a TensorBoard writer: what it costs the caller; the queues are emptied between rounds."""

import tempfile
from typing import Any

from race import Contender, race, timed
from row import report
from tensorboard.summary import Writer  # type: ignore[import-untyped]

import monitel_tensorboard

_CALLS = 500
_PEER = "tensorboard summary.Writer"


def adding(writer: Any) -> Contender:
    """A contender that adds scalars, after what was added before is on disk."""

    def prepare() -> dict[str, Any]:
        writer.flush()
        return {"writer": writer, "range": range(_CALLS)}

    return timed("for step in range: writer.add_scalar('loss', 0.25, step)", prepare, _CALLS)


def main() -> None:
    """Measure monitel_tensorboard beside tensorboard's own writer."""
    with tempfile.TemporaryDirectory() as folder:
        writers = {"monitel": monitel_tensorboard.SummaryWriter(f"{folder}/monitel"), _PEER: Writer(f"{folder}/peer")}
        costs = race({name: adding(writer) for name, writer in writers.items()})
        for writer in writers.values():
            writer.close()
    report("TensorBoard add_scalar", costs, {_PEER: None})


if __name__ == "__main__":
    main()
