"""Workers that torchrun starts again: their ledger continues, and that of another job does not."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.scripts import Run, write_script

from monitel.console.runs import read_runs

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1")
DEFAULT_ID = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")  # the run id is "none"

#: Rank zero fails in its first attempt, at step 8, and the job resumes at step 4. The file has the times of its steps.
JOB = """\
from monitel.runs import ledger
ledger.HEARTBEAT = 0.03
monitel_otlp.configure(spool_dir="spool")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(4 * attempt, 12):
    monitel.set_step(step)
    begin = time.monotonic()
    time.sleep(0.05)
    if os.environ["RANK"] == "0":
        with open(sys.argv[1], "a") as steps:
            print(step, time.monotonic() - begin, file=steps)
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
    steps = []
    for job in ("first", "second"):
        run(*TORCHRUN, *arguments, path, job, timeout=120)
        steps.append([(int(step), float(s)) for step, s in map(str.split, (tmp_path / job).read_text().splitlines())])
    problems: list[str] = []
    times = sorted((each.time for each in read_runs(tmp_path / "spool", problems)), key=lambda time: time.start_ns)
    assert ([], runs) == (problems, [each.attempts for each in times])
    for each, own in zip(times, steps if len(runs) == 2 else [steps[0] + steps[1]], strict=True):
        assert sum(each.activities.values()) == each.elapsed_ns == each.last_ns - each.start_ns
        useful = sum(dict(own).values())  # of each step the last time
        assert useful == pytest.approx(each.activities["step"] / 1e9, rel=0.3)
        assert sum(s for _, s in own) - useful == pytest.approx(each.activities["repeated"] / 1e9, rel=0.3)
        assert each.activities["down"] > 0
