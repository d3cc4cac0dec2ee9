"""``monitel runs``: the runs on this machine, as text and as JSON."""

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Program
from tests.unit.console.made_processes import START, S, ended, store_run

from monitel.console.runs import Run, outcome_of
from monitel.console.summary import print_summary
from monitel.runs.ended import write_end
from monitel.runs.history import Attempt, RunTime
from monitel.runs.process import JobName, Process, State, Total
from monitel.runs.values import RunValues, Value

pytestmark = pytest.mark.usefixtures("utc")

UUID = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"


def store(
    run: str,
    *,
    start_ns: int = START,
    seconds: int = 9,
    step: int | None = 3,
    status: str = "completed",
    service: str = "llm",
    **losses: float,
) -> None:
    last_ns = start_ns + seconds * S
    marks = () if step is None else ((step, 0),)
    activities = {"startup": S, "step": (seconds - 1) * S}
    values = tuple(Value(name.replace("_", "."), (), "", each, last_ns) for name, each in losses.items())
    attempt = Attempt("one-7", activities, last_ns, status=status, marks=marks)
    store_run(Path("runs"), run, attempt, RunValues({"service.name": service}, values=values))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five runs in different states, not in the order of their times."""
    monkeypatch.chdir(tmp_path)
    now = time.time_ns() // S * S
    store("base-line", seconds=7980, step=1_234_567, train_loss_mean=0.25, lossy_mean=9.0)
    store("live", start_ns=now - 41 * S, seconds=41, status="", eval_loss=2.0, loss_min=1.0, loss_value=1.5)
    store(UUID, start_ns=START + 10 * S, seconds=9000, status="", service="llm-7b", loss_mean=float("nan"))
    store("", start_ns=START + 20 * S, seconds=9020, step=None, status="failed", service="unknown_service:python")
    store("run\x1b[2J", start_ns=START - 9 * S, status="preempted", loss_sum=4.0)


ROWS = """\
NAME        STARTED              STATE             DURATION       STEP  LOSS  ID
live        NOW                  running               41 s          3   1.5
-           2026-01-02 03:04:25  failed          2 h 30 min          -     -
llm-7b      2026-01-02 03:04:15  killed or hung  2 h 30 min          3   nan  6f9619ff-8b86-d011-b42d-00cf4fc964ff
base-line   2026-01-02 03:04:05  completed       2 h 13 min  1,234,567  0.25
run\\x1b[2J  2026-01-02 03:03:56  preempted              9 s          3     -
"""


@pytest.mark.usefixtures("runs")
def test_newest_run_is_first(program: Program) -> None:
    """A run with random digits as its id has the name of its service. The other commands take it, and the start."""
    printed = program("runs", "--spool-dir", "runs").stdout.splitlines()
    (started,) = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", printed[1])
    assert ROWS.replace("NOW                ", started).splitlines() == printed
    start = "2026-01-02 03:04:25"
    for name in (UUID, "llm-7b"):
        compared = program("compare", name, start, "--spool-dir", "runs", env={"MONITEL_BLACK_BOX_DIR": "boxes"}).stdout
        assert [["outcome", "killed", "or", "hung", "failed"]] == [
            line.split() for line in compared.splitlines() if line.startswith("outcome")
        ]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("columns", [30, 60, 90, 0])
def test_rows_fit_the_terminal(program: Program, columns: int) -> None:
    """Long names have separate lines, then columns are left out from the right.

    Names have 60 characters at most; without a terminal they are whole.
    """
    store("a very long name " * 9, seconds=7980, loss_mean=0.25)
    lines = program("runs", "--spool-dir", "runs", env={"COLUMNS": str(columns)}).stdout.splitlines()
    assert max(map(len, lines)) < (columns or 300)
    names = "".join(line for line in lines if line.startswith("a very") or "long name" in line)
    assert "a very long name " * (3 if columns else 9) in names
    assert columns == 0 or "a very long name " * 4 not in names


@pytest.mark.usefixtures("runs")
def test_report_has_the_fields_of_the_latest_run(program: Program) -> None:
    (latest, *_) = json.loads(program("runs", "--spool-dir", "runs", "--json").stdout)["runs"]
    reported = json.loads(program("report", "--spool-dir", "runs", "--json").stdout)
    assert latest == {name: reported[name] for name in latest}


@pytest.mark.usefixtures("runs")
def test_json_has_a_run_for_each_ledger(program: Program) -> None:
    """Unknown values are null, and numbers that JSON does not have are strings."""
    found: dict[str, Any] = json.loads(program("runs", "--spool-dir", "runs", "--json").stdout)
    assert (1, [], ["live", None, UUID, "base-line", "run\x1b[2J"]) == (
        *(found["version"], found["problems"]),
        [each["run"] for each in found["runs"]],
    )
    assert {
        "run": UUID,
        "name": "llm-7b",
        "state": "killed or hung",
        "started": "2026-01-02T03:04:15.000000Z",
        "last_seen": "2026-01-02T05:34:15.000000Z",
        "duration_seconds": 9000.0,
        "attempts": 1,
        "goodput": pytest.approx(8999 / 9000),
        "activities": {"startup": 1.0, "step": 8999.0},
        "waiting": {},
        "steps": None,
        "last_step": 3,
        "steps_per_second": None,
        "loss_name": "loss.mean",
        "loss": "NaN",
    } == found["runs"][2]
    assert (None, None, None) == tuple(found["runs"][1][name] for name in ("name", "last_step", "loss"))


def test_loss_in_the_ledger_is_part_of_the_verdict_of_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONITEL_REPORT", "false")
    store("run-7", loss=float("nan"))
    (ends := tmp_path / "ends").mkdir(0o700)
    write_end(ends, ended(0, made=300, step_time=Total(300, 60.0), store=str(*Path("runs").glob("ledgers/*"))))
    print_summary(ends, stream := io.StringIO())
    assert "  verdict   diverged: loss is nan; 5 steps/s" in stream.getvalue()


def test_damaged_ledgers_are_named(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong where there is no run; a ledger that cannot be read or used hides no other one."""
    monkeypatch.chdir(tmp_path)
    assert "there is no ledger of a run below" in program("runs").stdout
    store("run-7")
    store("run-8")
    path = min(Path("runs").glob("ledgers/*/ledger.json"))
    content = path.read_bytes()
    for damaged in (b"{", content.replace(b'"completed"', b"5"), content.replace(b'"step":', b'"step":-1e400,"a":')):
        assert damaged != content
        path.write_bytes(damaged)
        for command in (["runs"], ["ledger"]):
            printed = program(*command, "--spool-dir", "runs", status=1)
            assert (1, 1) == (printed.stderr.count("is damaged"), len(re.findall(r"run-\d", printed.stdout)))


NOW_NS = START


def restarted(now_ns: int = NOW_NS) -> Run:
    """Return a run whose second attempt has run for 60 s with the process id 1, up to step 30."""
    return Run(RunTime("run-a", {"step": 100 * S}, 2, now_ns), Attempt("second-1", {"step": 60 * S}, now_ns))


def process(seen_ns: int, rank: int | None = None, death: str = "") -> Process:
    """Return a process with the id 1, without the content of its record."""
    state = State.DEAD if death else State.ALIVE
    return Process(JobName(run="run-a"), pid=1, rank=rank, state=state, death=death, seen_ns=seen_ns)


def test_death_with_the_same_process_id_may_be_of_another_process() -> None:
    """In containers every process may have the id 1: that of an earlier attempt did not live in the last one.

    The deaths of other ranks are named beside the state of rank zero, the first one with its cause.
    """
    ages_ms = 70_000, 59_994, 5_000  # the second is seen 6 ms after the begin of the attempt, which is rounded down
    *early, late = (process(NOW_NS - age_ms * S // 1000, 0, "killed by SIGKILL") for age_ms in ages_ms)
    assert "running" == outcome_of(restarted(), early, NOW_NS)
    assert "rank 0 killed by SIGKILL" == outcome_of(replace(restarted(), held=False), [*early, late], NOW_NS)
    first, second = process(NOW_NS - 9, 2, "killed by SIGKILL"), process(NOW_NS - 8, 1, "died")
    outcome = outcome_of(restarted(), [second, process(NOW_NS, 0), first], NOW_NS)
    assert "running; rank 2 killed by SIGKILL, and 1 more" == outcome


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        ({"state": State.DEAD, "death": "killed by SIGKILL"}, "failed; rank 1 killed by SIGKILL"),
        ({"state": State.ENDED, "status": "failed"}, "failed on rank 1"),
        ({"state": State.ENDED, "status": "completed"}, "completed"),
        ({"state": State.ENDED, "death": "ended with exit code 0 without a shutdown"}, "completed"),
        ({"state": State.DEAD, "death": "killed by SIGTERM", "rank": None, "parent": "1-1"}, "completed"),
    ],
)
def test_outcome_of_a_run_is_that_of_all_its_ranks(other: dict[str, Any], outcome: str) -> None:
    """Rank zero has completed, and another rank has not; helpers and ``os._exit(0)`` do not count."""
    run, zero = restarted(), replace(process(NOW_NS, 0), state=State.ENDED, status="completed")
    run = replace(run, time=replace(run.time, status="completed"))
    assert outcome == outcome_of(run, [zero, replace(process(NOW_NS, 1), **other)], NOW_NS)


def test_run_that_hangs_has_the_verdict_beside_its_state() -> None:
    """Its heartbeats go on."""
    for age, outcome in ((0, "running"), (125, "running; no steps")):
        trains = process(NOW_NS, 0).but(step=30, step_age_ns=age * S, step_p50=0.5, time_ns=NOW_NS)
        assert outcome == outcome_of(restarted(), [trains], NOW_NS)


def test_state_is_known_from_the_lock_of_a_process_of_this_boot() -> None:
    """A heartbeat alone leaves open for ten seconds whether the process runs, and then whether it was killed."""
    for held, states in {
        True: ["running", "hung"],
        False: ["killed", "killed"],
        None: ["running", "killed or hung"],
    }.items():
        runs = [replace(restarted(NOW_NS - age * S), held=held) for age in (9, 11)]
        assert states == [each.state(NOW_NS) for each in runs], held
