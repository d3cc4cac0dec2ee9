"""``monitel compare``: the numbers of real runs side by side, as text and as JSON, with its exit status."""

from pathlib import Path

import pytest
from tests.processes.console.jobs import Console
from tests.processes.promises.recorded_runs import END, HOLD, JOB, compared, environment, held, run_of, truth
from tests.support.checks import wait_until
from tests.support.receiver import Receiver
from tests.support.scripts import Run, finish, started, write_script

pytestmark = pytest.mark.usefixtures("run_events")


def spools() -> list[Path]:
    return sorted(each for each in Path("spool").iterdir() if each.name != "ledgers")


def test_runs_have_the_numbers_of_their_jobs_after_the_delivery(
    train: Run, console: Console, receiver: Receiver
) -> None:
    """Steps, rates, times, last values, totals, configuration and outcome stay when the telemetry is delivered."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    jobs = {"run-a": (20, 0.02, 0.5, {}), "run-b": (30, 0.04, 0.25, {"training.world_size": 2})}
    measured = {
        run: truth(train(JOB + END, 0, steps, seconds, rate, env=env | environment(run, attributes)).stdout)
        for run, (steps, seconds, rate, attributes) in jobs.items()
    }
    assert [] == spools()
    losses = [1 / (step + 1) for step in range(30)]
    runs = compared(console, "run-a", "run-b", "--spool-dir", "spool")
    for found, (run, (steps, seconds, rate, _)) in zip(runs, jobs.items(), strict=True):
        assert (run, "completed", 1, steps, steps - 1) == tuple(
            found[name] for name in ("run", "state", "attempts", "steps", "last_step")
        )
        times = found["activities"]
        assert {name: measured[run][name] for name in ("startup", "data")} == pytest.approx(
            {name: times[name] for name in ("startup", "data")}, abs=1e-6
        )
        assert steps * 0.75 * seconds < times["step"] <= measured[run]["step"]
        assert steps / (times["step"] + times["data"]) == pytest.approx(found["steps_per_second"])
        assert sum(times.values()) == pytest.approx(found["duration_seconds"])
        assert times["step"] / sum(times.values()) == pytest.approx(found["goodput"])
        assert losses[steps - 1] <= found["values"].pop("loss.mean") < 1
        assert {
            "loss.count": steps,
            "loss.sum": pytest.approx(sum(losses[:steps])),
            "training.samples": 8 * steps,
            "eval.accuracy": 1 - rate,
        } == found["values"]
        assert {"rate": rate, "model.layers": "[2, 2]", "model.width": 64} == found["config"]
    assert "2" == runs[1]["attributes"]["training.world_size"]


def test_run_is_named_by_its_id(console: Console, tmp_path: Path) -> None:
    """While it runs, and in a folder that was copied, which has everything."""
    script = write_script(tmp_path, JOB + HOLD).rename(tmp_path / "held.py")
    with started(tmp_path, script, 0, 5, 0.02, 0.5, env=environment("run-a")) as process:
        held(process)

        def known() -> bool:
            found = run_of(console, "run-a")
            return ("running", 4) == (found["state"], found["last_step"])

        wait_until(known)
        finish(process, "\n")
    Path("spool").rename("copied")
    for each in compared(console, "run-a", "run-a", "--spool-dir", "copied"):
        assert ("run-a", "completed", 4, 0.5, 40) == (
            *(each["run"], each["state"], each["last_step"]),
            *(each["values"]["eval.accuracy"], each["values"]["training.samples"]),
        )


def test_wrong_numbers_of_runs_are_refused(console: Console) -> None:
    """Two to sixteen runs can be compared."""
    assert "at least two runs to compare, got one" in console("compare", "run-a", status=1).errors
    assert "at most 16 runs to compare, got 17" in console("compare", *["run-a"] * 17, status=1).errors
