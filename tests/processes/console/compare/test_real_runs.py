"""``compare`` of real runs: their numbers are those of the jobs, whether delivered, offline, restarted or killed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import READY, finish, started, wait_until_ready, write_script
from tests.support.spools import names
from tests.unit.console.compare.jobs import END, JOB, KILL, WRITTEN, environment, truth

from monitel_otlp.boxes.discovery import process_of
from monitel_otlp.compare.targets import label_of
from monitel_otlp.ledger.reading import read_stored
from monitel_otlp.ledger.run_folder import LEDGERS
from monitel_otlp.values.file import VALUES

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run
    from tests.unit.console.compare.jobs import Compare, Compared


def spools(root: Path) -> list[Path]:
    """Return the spools below a folder."""
    return [root / name for name in sorted(names(root)) if name != LEDGERS]


def test_two_runs_whose_telemetry_is_delivered(
    train: Run, compared: Compared, receiver: Receiver, tmp_path: Path
) -> None:
    """Everything comes from the files beside the ledger: steps, rates, times, last values, configuration, outcome."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    first = truth(train(JOB + END, 0, 20, 0.02, 0.5, env=env | environment("run-a")).stdout)
    second = truth(
        train(JOB + END, 0, 30, 0.06, 0.25, env=env | environment("run-b", {"training.world_size": 2})).stdout
    )
    assert [] == spools(tmp_path / "spool")
    a, b = compared("run-a", "run-b", "--spool-dir", "spool")
    assert [("run-a", "completed", 1, 20, 19), ("run-b", "completed", 1, 30, 29)] == [
        tuple(each[name] for name in ("run", "outcome", "attempts", "steps", "last_step")) for each in (a, b)
    ]
    for measured, each, seconds in ((first, a, 0.02), (second, b, 0.06)):
        time_of = each["activities"]
        assert measured.keys() == time_of.keys()
        for name in ("startup", "data"):
            assert measured[name] == pytest.approx(time_of[name], abs=1e-6), name
        assert each["steps"] * 0.75 * seconds < time_of["step"] <= measured["step"]
        assert time_of["shutdown"] <= measured["shutdown"]
        assert each["steps"] / (time_of["step"] + time_of["data"]) == pytest.approx(each["steps_per_second"])
        assert sum(time_of.values()) == pytest.approx(each["duration_seconds"])
        assert time_of["step"] / sum(time_of.values()) == pytest.approx(each["goodput"])
    losses = [1 / (step + 1) for step in range(30)]
    for each, steps, accuracy in ((a, 20, 0.5), (b, 30, 0.75)):
        mean = each["values"].pop("loss.mean")
        assert losses[steps - 1] <= mean < losses[steps - 6]
        assert {
            "loss.count": steps,
            "loss.sum": pytest.approx(sum(losses[:steps])),
            "training.samples": 8 * steps,
            "eval.accuracy": accuracy,
        } == each["values"]
    assert {"rate": 0.5, "model.layers": "[2, 2]", "model.width": 64} == a["config"]
    assert "2" == b["attributes"]["training.world_size"]


def test_text_has_columns_differences_and_settings_that_differ(train: Run, compare: Compare) -> None:
    """The text names what differs and leaves out what is the same."""
    train(JOB + END, 0, 20, 0.01, 0.5, env=environment("run-a", {"training.world_size": 1}))
    train(JOB + END, 0, 25, 0.01, 0.25, env=environment("run-b", {"training.world_size": 2}))
    lines = compare("run-a", "run-b", "--spool-dir", "spool").stdout.splitlines()
    rows = {line.split("  ")[0]: line.split()[-3:] for line in lines if line}
    assert ["run-a", "run-b"] == lines[0].split()
    assert ["25", "(+25", "%)"] == rows["steps"]
    assert ["200", "(+25", "%)"] == rows["training.samples"]
    assert ["0.75", "(+50", "%)"] == rows["eval.accuracy{split=validation}"]
    differing = lines[lines.index("configuration that differs") + 1 :]
    assert ["rate", "0.5", "0.25"] == differing[0].split()
    assert ["", "attributes that differ"] == differing[1:3]
    assert ["training.world_size", "1", "2"] == differing[3].split()
    assert "2 other settings of the configuration are the same" in lines
    assert not any("\x1b" in line for line in lines)


def test_attempts_are_one_run(train: Run, compared: Compared) -> None:
    """Steps and totals of all attempts are added up, and the last values are those of the last one that has them."""
    first = truth(train(JOB + END, 0, 10, 0.02, 0.5, env=environment("run-a")).stdout)
    later = JOB.replace('monitel.log({"eval.accuracy"', 'monitel.log({"test.accuracy"') + END
    second = truth(train(later, 5, 10, 0.02, 0.25, env=environment("run-a")).stdout)
    train(JOB + END, 0, 5, 0.02, 0.5, env=environment("run-b"))
    a, b = compared("run-a", "run-b", "--spool-dir", "spool")
    assert (2, 20, 14) == (a["attempts"], a["steps"], a["last_step"])
    assert (1, 5, 4) == (b["attempts"], b["steps"], b["last_step"])
    assert (160, 20) == (a["values"]["training.samples"], a["values"]["loss.count"])
    assert (0.5, 0.75) == (a["values"]["eval.accuracy"], a["values"]["test.accuracy"])
    assert 0.25 == a["config"]["rate"]
    stepping = a["activities"]["step"] + a["activities"]["lost"]
    assert 20 * 0.75 * 0.02 < stepping <= first["step"] + second["step"]
    assert a["activities"]["down"] > 0


def test_killed_run_has_its_last_step_and_numbers(train: Run, compared: Compared) -> None:
    """The black box has what the files miss: the last steps, the number that was logged, and the death."""
    train(JOB + KILL, 0, 20, 0.02, 0.5, env=environment("run-a"), returncode=-signal.SIGKILL)
    train(JOB + END, 0, 5, 0.02, 0.5, env=environment("run-b"))
    a, _ = compared("run-a", "run-b", "--spool-dir", "spool")
    assert ("died", 20, 19) == (a["outcome"], a["steps"], a["last_step"])
    assert 0.5 == a["values"]["eval.accuracy"]
    assert 0.5 == a["config"]["rate"]
    assert 15 <= a["values"]["loss.count"] <= 20


def test_run_that_continues_after_a_kill_counts_the_steps_up_to_the_kill(train: Run, compared: Compared) -> None:
    """The next attempt takes the last step from the ledger, which is newer than the stored values."""
    train(JOB + KILL, 0, 20, 0.02, 0.5, env=environment("run-a"), returncode=-signal.SIGKILL)
    train(JOB + END, 20, 10, 0.02, 0.5, env=environment("run-a"))
    train(JOB + END, 0, 5, 0.02, 0.5, env=environment("run-b"))
    a, _ = compared("run-a", "run-b", "--spool-dir", "spool")
    assert (2, 30, 29, "completed") == (a["attempts"], a["steps"], a["last_step"], a["outcome"])


@pytest.mark.parametrize("run_events", ["0", "1"])
def test_failed_run_names_its_status(run_events: str, train: Run, compared: Compared) -> None:
    """A run that ends with an exception has failed, with run events and without."""
    env = environment("run-a") | {"MONITEL_RUN_EVENTS": run_events}
    train(JOB + "raise ValueError('no')\n", 0, 5, 0.02, 0.5, env=env, returncode=1)
    train(JOB + END, 0, 5, 0.02, 0.5, env=environment("run-b"))
    assert ["failed", "completed"] == [each["outcome"] for each in compared("run-a", "run-b", "--spool-dir", "spool")]


def test_running_process_is_named_by_its_id(tmp_path: Path, compared: Compared) -> None:
    """A process without run id, while it runs; and nothing in its box or its spool changes."""
    script = write_script(tmp_path, JOB + WRITTEN + READY + "sys.stdin.readline()\n" + END)
    with started(tmp_path, script, 0, 10, 0.05, 0.5) as process:
        wait_until_ready(process)
        (box,) = Path(os.environ["MONITEL_BLACK_BOX_DIR"]).iterdir()
        before = names(box), names(tmp_path / "spool")
        a, b = compared(process.pid, box, "--spool-dir", "spool")
        assert (names(box), names(tmp_path / "spool")) == before
        ended = finish(process, "\n")
    for each in (a, b):
        assert ("running", 9, 0.5) == (each["outcome"], each["last_step"], each["values"]["eval.accuracy"])
        assert truth(ended.stdout)["data"] == pytest.approx(each["activities"]["data"], abs=1e-6)


@pytest.mark.parametrize("kept", ["with its ledger", "without ledger"])
def test_folder_is_a_run(kept: str, train: Run, compared: Compared, tmp_path: Path) -> None:
    """A folder of spools, and one spool, which a user has copied from another machine, with or without the ledger."""
    measured = truth(train(JOB + END, 0, 20, 0.02, 0.5, env=environment("run-a")).stdout)
    (tmp_path / "spool").rename(tmp_path / "copied")
    if kept == "without ledger":
        shutil.rmtree(tmp_path / "copied" / LEDGERS)
    (spool,) = spools(tmp_path / "copied")
    for each in compared("copied", spool):
        assert ("run-a", "completed", 1, 19) == tuple(
            each[name] for name in ("run", "outcome", "attempts", "last_step")
        )
        assert measured["data"] == pytest.approx(each["activities"]["data"], abs=1e-6)
        assert (20, 160, 0.5) == tuple(
            each["values"][name] for name in ("loss.count", "training.samples", "eval.accuracy")
        )
        assert {"rate": 0.5, "model.layers": "[2, 2]", "model.width": 64} == each["config"]


def test_run_of_an_earlier_version_has_the_numbers_of_its_spool(train: Run, compared: Compared, tmp_path: Path) -> None:
    """A ledger without stored values is completed by telemetry that is not delivered."""
    train(JOB + END, 0, 20, 0.02, 0.5, env=environment("run-a"))
    train(JOB + END, 0, 5, 0.02, 0.25, env=environment("run-b"))
    for path in (tmp_path / "spool" / LEDGERS).glob(f"*/{VALUES}"):
        path.unlink()
    a, b = compared("run-a", "run-b", "--spool-dir", "spool")
    assert ("completed", 19, 160, 0.5) == (
        *(a["outcome"], a["last_step"]),
        *(a["values"]["training.samples"], a["config"]["rate"]),
    )
    assert (4, 40, 0.75) == (b["last_step"], b["values"]["training.samples"], b["values"]["eval.accuracy"])


def test_damaged_files_are_problems(train: Run, compare: Compare, tmp_path: Path) -> None:
    """Damaged values and spools are named, without what they contain, and the other files are read."""
    for run in ("run-a", "run-b"):
        train(JOB + END, 0, 5, 0.02, 0.5, env=environment(run))
    for path in (tmp_path / "spool" / LEDGERS).glob(f"*/{VALUES}"):
        path.write_bytes(b'{"version": 1, "\x1b[2J": ')
    damaged = [next(each.glob("metrics-*")) for each in spools(tmp_path / "spool")]
    damaged[0].write_bytes(os.urandom(5000))
    printed = compare("run-a", "run-b", "--spool-dir", "spool")
    assert 2 == printed.stderr.count("are not JSON")
    rows = [line.split() for line in printed.stdout.splitlines()]
    assert ["outcome", "completed", "completed"] in rows
    assert ["last", "step", "4", "4"] in rows or ["last", "step", "-", "4"] in rows
    assert all(each.isprintable() for each in (printed.stdout + printed.stderr).replace("\n", ""))


def test_run_that_was_restarted_is_running(train: Run, compared: Compared, tmp_path: Path) -> None:
    """The death of an earlier attempt, whose black box is still there, is not the outcome of a run that runs."""
    env = environment("run-a") | {"MONITEL_RUN_EVENTS": "1"}
    train(JOB + KILL, 0, 5, 0.02, 0.5, env=env, returncode=-signal.SIGKILL)
    script = write_script(tmp_path, JOB + WRITTEN + READY + "sys.stdin.readline()\n" + END)
    with started(tmp_path, script, 5, 5, 0.02, 0.5, env=env) as process:
        wait_until_ready(process)
        a, _ = compared("run-a", "run-a", "--spool-dir", "spool")
        finish(process, "\n")
    assert ("running", 2, 9, 10) == (a["outcome"], a["attempts"], a["last_step"], a["steps"])


def test_earlier_process_with_the_same_id_is_not_a_run_without_run_id(
    train: Run, compared: Compared, tmp_path: Path
) -> None:
    """In containers two trainings have one process id: the death of the first one is not that of the second one."""
    boxes, spool = Path(os.environ["MONITEL_BLACK_BOX_DIR"]), tmp_path / "spool"
    processes = []
    for _ in range(2):
        shutil.rmtree(spool / LEDGERS, ignore_errors=True)
        train(JOB + KILL, 0, 5, 0.02, 0.5, returncode=-signal.SIGKILL)
        (box,) = boxes.iterdir()
        processes.append(process_of(box))
    shutil.rmtree(box)
    for path in (spool / LEDGERS).glob("*/*.json"):
        path.write_text(path.read_text().replace(f'-{processes[1]}"', f'-{processes[0]}"'))
    ((second,), _) = read_stored(spool)
    assert second.last.name.endswith(f"-{processes[0]}")
    run, _ = compared(label_of(second), label_of(second), "--spool-dir", "spool")
    assert ("the ledger", 4) == (run["source"], run["last_step"])


def test_folder_with_several_runs_lists_them(train: Run, compare: Compare) -> None:
    """A folder stands for its only run; the message names the runs, without control characters."""
    train(JOB + END, 0, 3, 0.02, 0.5, env=environment("run-a"))
    train(JOB + END, 0, 3, 0.02, 0.5, env=environment("run-%1b[2J"))
    printed = compare("spool", "run-a", "--spool-dir", "spool", returncode=1)
    assert "monitel: 'spool' holds 2 runs; give one of them by its name:\n" in printed.stderr
    assert {"  run-a", "  run-\\x1b[2J"} == set(printed.stderr.splitlines()[1:])


def test_unknown_run_lists_the_runs(train: Run, compare: Compare, tmp_path: Path) -> None:
    """The message has what was given and what there is."""
    nothing = compare("run-a", "run-b", "--spool-dir", "spool", returncode=1).stderr
    assert "there is no run, folder or process 'run-a', and no ledger of a run below 'spool'" in nothing
    train(JOB + END, 0, 3, 0.02, 0.5, env=environment("run-a"))
    unknown = compare("run-a", "run-b", "--spool-dir", "spool", returncode=1).stderr
    assert "there is no run, folder or process 'run-b'; the runs below 'spool' are\n  run-a\n" in unknown
    pid = compare("run-a", 4194303, "--spool-dir", "spool", returncode=1).stderr
    assert "there is neither a run '4194303' nor a black box of process 4194303" in pid
    (tmp_path / "empty").mkdir()
    empty = compare("run-a", "empty", "--spool-dir", "spool", returncode=1).stderr
    assert "nothing is known from 'empty': it holds no ledger, no spool and no black box" in empty


def test_one_run_is_not_compared(compare: Compare) -> None:
    """The message names the command for one run."""
    assert "expected at least two runs to compare, got one; monitel ledger" in compare("run-a", returncode=1).stderr
    assert "at most 16 runs to compare, got 17" in compare(*["run-a"] * 17, returncode=1).stderr
    assert "expected the names of runs, got an empty one" in compare("run-a", "", returncode=1).stderr


def test_death_of_another_rank_is_named(train: Run, compared: Compared, tmp_path: Path) -> None:
    """The outcome of a job is that of rank zero, with the death of the rank that has ended it."""
    env = environment("run-a") | {"MONITEL_RUN_EVENTS": "1", "WORLD_SIZE": "2"}
    script = write_script(tmp_path, JOB + READY + "sys.exit(len(sys.stdin.readline()))\n")
    with started(tmp_path, script, 0, 10, 0.02, 0.5, env=env | {"RANK": "0"}) as process:
        wait_until_ready(process)
        other = tmp_path / "other.py"
        other.write_text(script.read_text().replace(READY, "os.kill(os.getpid(), 9)\n"))
        with started(tmp_path, other, 0, 10, 0.02, 0.5, env=env | {"RANK": "1"}) as killed:
            assert -signal.SIGKILL == finish(killed).status
        assert 3 == finish(process, "no\n").status
    train(JOB + END, 0, 5, 0.02, 0.5, env=environment("run-b"))
    a, b = compared("run-a", "run-b", "--spool-dir", "spool")
    assert ("failed; rank 1 died", "completed") == (a["outcome"], b["outcome"])
    assert 10 == a["steps"]


def test_rank_without_rank_zero_has_its_numbers(train: Run, compared: Compared) -> None:
    """On a machine that has only another rank, the numbers are those of that rank."""
    ranks = [environment("run-a") | {"RANK": rank, "WORLD_SIZE": "3"} for rank in ("1", "2")]
    for env, steps in zip(ranks, (5, 9), strict=True):
        train(JOB + END, 0, steps, 0.02, 0.5, env=env)
    train(JOB + END, 0, 5, 0.02, 0.5, env=environment("run-b"))
    a, _ = compared("run-a", "run-b", "--spool-dir", "spool")
    assert ("completed", 4, 40) == (a["outcome"], a["last_step"], a["values"]["training.samples"])
