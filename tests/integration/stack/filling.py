"""Ranks of a training job that fill a Prometheus by the real pipeline, in good health or with a fault each.

Time runs sixty times as fast as in a real job: windows of a second stand for windows of a minute, and whatever reads
the data shortens its durations as well (:func:`sixty_times_faster`), Prometheus' own five minutes among them.
"""

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.conftest import COMPOSE, NATIVE_HISTOGRAMS, Prometheus, prometheus_program
from tests.integration.services import launched, sixty_times_faster, start_python
from tests.support.inbox import DEADLINE

#: The names of the rule files that the Prometheus of the stack loads.
RULE_FILES = re.findall(r"\w+\.yml", re.findall(r"(?m)^rule_files: (.*)", (COMPOSE / "prometheus.yml").read_text())[0])

RATE = 1e-3  # by which the learning rate rises with each step

# The metrics of docs/examples/train_char_model.py, a histogram, a second wait counter, and the rest of a PyTorch job.
RANK = """\
import json, random, sys, threading
import monitel, monitel_otlp

RATE = float(sys.argv[2])
faults = set(sys.argv[1].split(","))
over, triggered = threading.Event(), threading.Event()
pipeline = monitel_otlp.configure(
    service_name="train", export_interval=0.25, spool_dir="spool", distributions="histogram", system=True
)
gpu = pipeline.meter_provider.get_meter("gpu")
for name, unit, value in (
    ("hw.gpu.utilization", "1", 0.9), ("hw.gpu.memory.usage", "By", 3e9), ("hw.gpu.memory.limit", "By", 4e9),
    ("hw.temperature", "Cel", 60.0),
):
    gpu.create_gauge(name, unit=unit).set(value, {"hw.id": "GPU-1"})

def stat(name, *more, **options):
    return monitel.Stat(name, {*monitel.stats.definition.TORCHS, *more}, 1.0, **options)

train_loss = stat("loss", attributes={"split": "train"})
val_loss = stat("loss", attributes={"split": "val"})
gradient_norm = stat("gradient.norm", max_samples=5)  # some are discarded, and counted
step_time = stat("step.time", monitel.HISTOGRAM, unit="s")
stages = {"optimizer": 0.002, "other": 0.001, "data": 0.005, "forward": 0.01, "backward": 0.015, "sync": 0.062}
if "late" in faults:  # the others wait
    stages.update(data=0.065, sync=0.002)
stages = {
    monitel.Stat(
        "training.stage.duration", {monitel.MEAN}, 1.0, unit="s",
        attributes={"training.stage": stage, "training.group": "all"},
    ): seconds
    for stage, seconds in stages.items()
}
steps, skipped, samples, tokens = map(
    monitel.counter, ("training.steps", "training.steps.skipped", "training.samples", "training.tokens")
)
data_loading, all_reduce = monitel.WaitCounter("data.loading"), monitel.WaitCounter("all.reduce")

def listen():
    for line in sys.stdin:
        triggered.set()
    over.set()

threading.Thread(target=listen, daemon=True).start()
step = 0
while not over.is_set():
    if "hang" in faults and triggered.is_set():
        over.wait(0.05)
        continue
    step += 1
    monitel.set_step(step)
    with data_loading.guard(), monitel.activity("data"):
        over.wait(0.15 if "starved" in faults else 0.005)
    with step_time.time():
        over.wait(0.09 if "slow" in faults else 0.03)
    with all_reduce.guard(), monitel.activity("stuck"):
        over.wait(0.002)
    with monitel.activity("checkpoint.save"):
        over.wait(0.001)
    for stat, seconds in stages.items():
        stat.add(seconds)
    loss = 2.0 / step + random.random()
    reported = float("nan") if "nan" in faults and triggered.is_set() else loss
    train_loss.add(reported)
    val_loss.add(loss + 0.1)
    gradient_norm.add(random.random())
    (skipped if step % 10 == 0 else steps).add()
    samples.add(8)
    tokens.add(4096)
    if "event" not in faults:  # which has a single log record
        numbers = {"train.loss": reported, "learning.rate": RATE * step}
        monitel.log({**numbers, "training.samples.rate": 8 / 0.035, "training.mfu": 0.4})
    if "events" in faults or ("event" in faults and step == 1):
        monitel.emit("checkpoint", step=step, path="x" * 500)
pipeline.shutdown()
"""


def filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with its variables put in, as Grafana does it; one that is unknown stays."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: variables.get(found[1] or found[2], found[0]), text)


@dataclass
class Job:
    """Ranks that run until the end of the ``with`` block, or to their own ends."""

    ranks: list[subprocess.Popen[str]] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)  # time at which each rank was started, Unix seconds

    def trigger(self) -> None:
        """Let the faults begin that a rank is to have later: ``nan`` and ``hang``."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write("now\n")
            rank.stdin.flush()

    def kill(self, rank: int) -> None:
        self.ranks[rank].send_signal(signal.SIGKILL)
        self.ranks[rank].wait(10)

    def end(self) -> None:
        """Close stdin, which is the end of a run, and wait."""
        for rank in self.ranks:
            with suppress(BrokenPipeError):
                rank.stdin.close()  # type: ignore[union-attr]
        for rank in self.ranks:
            try:
                rank.wait(DEADLINE)
            finally:
                rank.kill()
                rank.wait(10)


class Store(Prometheus):
    """A Prometheus as the stack configures it, which ranks fill."""

    @contextmanager
    def training(
        self, folder: Path, run: str, faults: Mapping[int, str], variables: Mapping[str, str] | None = None
    ) -> Iterator[Job]:
        """Run a rank for each of ``faults``: words of ``late slow starved nan hang event events``, parted by commas."""
        arguments = {rank: [words, str(RATE)] for rank, words in faults.items()}
        with self.ranks(folder, run, RANK, arguments, GROUP_RANK="0", **(variables or {})) as job:
            yield job

    @contextmanager
    def ranks(
        self, folder: Path, run: str, script: str, arguments: Mapping[int, Sequence[str]], **variables: str
    ) -> Iterator[Job]:
        """Run a script for each rank, with its arguments, stdin, and its output in ``<rank>.log``."""
        folder.mkdir(exist_ok=True)
        path, job = folder / "rank.py", Job()
        path.write_text(script)
        with ExitStack() as stack:
            stack.callback(job.end)
            for rank, words in arguments.items():
                output = stack.enter_context((folder / f"{rank}.log").open("w"))
                environment = launched(run, rank, len(arguments), **self.variables, **variables)
                job.begins.append(time.time())
                streams = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output}
                job.ranks.append(start_python(folder, path, *words, env=environment, **streams))
            yield job


@contextmanager
def store(backends: Path, folder: Path) -> Iterator[Store]:
    """Run a Prometheus as compose/ configures it, with its alerts, all of it sixty times as fast."""
    for name in ("prometheus.yml", *RULE_FILES):
        (folder / name).write_text(sixty_times_faster((COMPOSE / name).read_text()))
    rejects = "--web.enable-remote-write-receiver"  # where requests of OTLP are sent that are to be rejected
    options = (NATIVE_HISTOGRAMS, rejects, "--query.lookback-delta=5s")
    url, program = prometheus_program(backends, folder, folder / "prometheus.yml", *options)
    with program:
        yield Store(url)
