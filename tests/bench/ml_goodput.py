"""One run through monitel and through ml-goodput-measurement 0.2.3: the same steps, waits, kill and resume.

ml-goodput writes to Google's Cloud Logging; its entries go to a local file here, and its calculator reads them there.

Usage: python tests/bench/ml_goodput.py, in an environment with monitel-otlp and ml-goodput-measurement.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from race import optional

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = "compared"
STEPS, KILLED_IN, SAVED_AFTER = 60, 46, 40  # the second attempt begins with the step after the last checkpoint
ENTRIES = Path("entries")

_theirs: Any = optional("ml_goodput_measurement.src.goodput")


class LocalLogger:
    """Takes the place of Cloud Logging: a JSON line for each entry."""

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        """Append an entry."""
        with ENTRIES.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def read_cloud_logging_entries(self, *_: object, **__: object) -> tuple[list[Any], tuple[dt.datetime, str]]:
        """Return all entries."""
        entries = [json.loads(line) for line in ENTRIES.read_text().splitlines()]
        return entries, (dt.datetime.now(dt.timezone.utc), "last")


def sleep(seconds: float) -> None:
    """Take the place of work."""
    time.sleep(seconds)  # noqa: TID251  a job of known durations


def train() -> None:
    """Train, as MaxText records it: a step's start is after its batch."""
    import monitel
    import monitel_otlp

    logger = LocalLogger()
    recorder = _theirs.GoodputRecorder(RUN, RUN, logging_enabled=True, cloud_logger=logger)

    @contextmanager
    def record(name: str, activity: str, **options: str) -> Iterator[None]:
        getattr(recorder, f"record_{name}_start_time")(**options)
        with monitel.activity(activity):
            yield
        getattr(recorder, f"record_{name}_end_time")(**options)

    def checkpoint(kind: str, step: int, seconds: float, *keys: str) -> None:
        """Take the place of Orbax, which logs an entry for each checkpoint."""
        with monitel.activity({"save": "checkpoint.save", "restore": "checkpoint.load"}[kind]):
            sleep(seconds)
        entry = {"job_name": RUN, "event_type": kind, "step": step, "directory": "gs://bucket/run"}
        others = dict.fromkeys(("wait_for_prev_duration_secs", "get_old_steps_duration_secs"), 0.0)
        logger.write_cloud_logging_entry({**entry, **others, **dict.fromkeys(keys, seconds)})

    recorder.record_job_start_time()
    monitel_otlp.configure(spool_dir="spool", resource_attributes={"training.run.id": RUN})
    first = SAVED_AFTER + 1 if ENTRIES.with_name("attempt").exists() else 1
    ENTRIES.with_name("attempt").touch()
    with record("tpu_init", "init"):
        sleep(0.5)
    with record("training_preparation", "startup"):
        sleep(0.5)
    if first > 1:
        checkpoint("restore", SAVED_AFTER, 0.7, "checkpointer_duration_secs", "checkpoint_manager_duration_secs")
    for step in range(first, STEPS + 1):
        with record("data_loading", "data"):
            sleep(0.15)
        monitel.set_step(step)
        recorder.record_step_start_time(step)
        if step == first:
            with monitel.activity("compile"):
                sleep(1.5)
        sleep(0.25)
        if step == KILLED_IN and first == 1:
            os.kill(os.getpid(), 9)
        if step % 20 == 0:
            blocking = (f"{each}_blocking_duration_secs" for each in ("checkpointer", "checkpoint_manager"))
            checkpoint("save", step, 0.6, *blocking)
            with record("custom_badput_event", "evaluation", custom_badput_event_type="evaluation"):
                sleep(0.8)
    recorder.record_job_end_time()


def compare() -> None:
    """Print both results, in seconds."""
    from monitel.console.runs import read_runs

    calculator = _theirs.GoodputCalculator(
        RUN, RUN, cloud_logger=LocalLogger(), cache_dir=str(Path("cache").absolute())
    )
    goodput, _, _ = calculator.get_job_goodput()
    details = calculator.get_job_goodput_details()
    print(f"ml-goodput: {details['total_elapsed_time']:.2f} s, goodput {goodput:.1f} %")
    for kind, seconds in details["badput_time"].items():
        print(f"  {kind.name:40} {seconds if isinstance(seconds, dict) else round(seconds, 2)}")
    run = read_runs(Path("spool"), [])[0].time
    print(f"monitel: {run.elapsed_ns / 1e9:.2f} s, goodput {100 * (run.goodput or 0):.1f} %")
    for name, ns in sorted(run.activities.items(), key=lambda each: -each[1]):
        print(f"  {name:40} {ns / 1e9:.2f}")


def main() -> None:
    """Run the job twice, and compare; as a child, be the job."""
    if sys.argv[1:] == ["train"]:
        train()
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        command = [sys.executable, str(Path(__file__).resolve()), "train"]
        assert subprocess.run(command, check=False).returncode == -9
        sleep(2)  # until the scheduler starts it again
        subprocess.run(command, check=True)
        compare()


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)
    main()
