"""Workers that torchrun starts again: their ledger continues, and that of another job does not."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.scripts import Run, write_script

from monitel.console.runs import read_runs

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1")
DEFAULT_ID = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")  # the run id is "none"

#: Both ranks fail in their first attempt, at step 8, and resume at step 4.
JOB = """\
from monitel.runs import ledger
ledger.HEARTBEAT = 0.03
monitel_otlp.configure(spool_dir="spool")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(4 * attempt, 12):
    monitel.set_step(step)
    time.sleep(0.05)
    if step == 8 and not attempt:
        sys.exit(7)
"""


@pytest.mark.parametrize(
    ("arguments", "runs"), [(DEFAULT_ID, [2, 2]), (("--rdzv-id", "run-7", *DEFAULT_ID), [4])], ids=["default id", "id"]
)
def test_restarted_workers_continue_the_run(
    arguments: tuple[str, ...], runs: list[int], run: Run, tmp_path: Path
) -> None:
    """Restarts by one agent are attempts of one run. Two jobs are two runs, unless they have the same id."""
    path = write_script(tmp_path, JOB)
    run(*TORCHRUN, *arguments, path, timeout=120)
    run(*TORCHRUN, *arguments, path, timeout=120)
    problems: list[str] = []
    times = [each.time for each in read_runs(tmp_path / "spool", problems)]
    assert ([], runs) == (problems, [each.attempts for each in times])
    for each in times:
        assert sum(each.activities.values()) == each.elapsed_ns == each.last_ns - each.start_ns
        jobs = each.attempts // 2
        # Steps 4 to 8 of the first attempt; with one id also all steps of the first job, at the restart from step 0.
        assert (0.25 if jobs == 1 else 0.25 + 0.6 + 0.25) == pytest.approx(each.activities["repeated"] / 1e9, rel=0.3)
        assert 0.6 == pytest.approx(each.activities["step"] / 1e9, rel=0.3)
        assert each.activities["down"] > 0
