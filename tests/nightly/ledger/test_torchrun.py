"""Workers that torchrun starts again: their ledger continues, and that of another job does not."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.scripts import Run, write_script

from monitel.console.runs import read_runs

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1")
DEFAULT_ID = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")  # the run id is "none"

#: Rank zero fails in its first attempt, at step 8, and the job resumes at step 4.
JOB = """\
from monitel.runs import ledger
ledger.HEARTBEAT = 0.03
monitel_otlp.configure(spool_dir="spool")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(4 * attempt, 12):
    monitel.set_step(step)
    time.sleep(0.05)
    if (step, attempt, os.environ["RANK"]) == (8, 0, "0"):
        sys.exit(7)
"""


@pytest.mark.parametrize(
    ("arguments", "runs"), [(DEFAULT_ID, [2, 2]), (("--rdzv-id", "run-7", *DEFAULT_ID), [4])], ids=["default id", "id"]
)
def test_restarted_workers_continue_the_run(
    arguments: tuple[str, ...], runs: list[int], run: Run, tmp_path: Path
) -> None:
    """Restarts by one agent are attempts of one run. Two jobs are two runs, unless they have the same id."""
    for _ in range(2):
        run(*TORCHRUN, *arguments, write_script(tmp_path, JOB), timeout=120)
    problems: list[str] = []
    times = [each.time for each in read_runs(tmp_path / "spool", problems)]
    assert ([], runs) == (problems, [each.attempts for each in times])
    assert all(each.activities["repeated"] > 0 < each.activities["down"] for each in times)
