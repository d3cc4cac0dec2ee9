"""The PyTorch example: its model learns, and telemetry does not change the training."""

from collections import Counter
from pathlib import Path

from tests.support.inbox import points_of, records_of
from tests.support.paths import EXAMPLES
from tests.support.scripts import Run
from tests.support.spools import cat

PLAIN, WITH_TELEMETRY = EXAMPLES / "torch_char_model.py", EXAMPLES / "train_torch.py"
SMALL = ("--batch-size", "8")
TIMEOUT = 240


def spooled(folder: Path) -> Counter[str]:
    """Return the number of points of each metric, and of records of each event, in the spool."""
    found: Counter[str] = Counter()
    for signal_name, message in cat(folder / "state/monitel").requests:
        if signal_name == "metrics":
            found.update(point.metric for point in points_of(message))
        elif signal_name == "logs":
            found.update(record.name for record in records_of(message))
    return found


def test_telemetry_changes_nothing(run: Run, tmp_path: Path) -> None:
    """The scripts with and without telemetry print the same losses."""
    plain, observed = (run(script, *SMALL, "--steps", "50", timeout=TIMEOUT) for script in (PLAIN, WITH_TELEMETRY))
    assert plain.stdout == observed.stdout
    assert ["step", "held-out"] == [line.split()[0] for line in plain.stdout.splitlines()]
    found = spooled(tmp_path)
    metrics = {"train.loss.mean", "training.steps", "training.tokens", "training.tokens.rate", "training.mfu"}
    assert metrics < found.keys()
    assert 1 == found["evaluation"]
