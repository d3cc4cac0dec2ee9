"""Train a small character model on Python's own source text, and record the run. ``make demo`` starts it.

The model and its data are in char_model.py; here are the training loop and its telemetry: Stats, numbers, counters,
activities, events and a wait counter. They go to TensorBoard files, and by OTLP to the Collector, or to a spool on disk
while OTEL_EXPORTER_OTLP_ENDPOINT is not set. ``--profile 10`` adds a trace of ten steps around the end of the first
epoch. Ctrl-C ends the run early, with everything written.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import sys
import sysconfig
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from char_model import Adam, CharModel, Corpus, draw_batch
from numpy.random import default_rng
from tqdm import tqdm

import monitel
import monitel_otlp
import monitel_tensorboard
from monitel.profiler import ProfilerAction, profile, record_function, schedule, tensorboard_trace_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

Number = TypeVar("Number", int, float)

STDLIB = Path(sysconfig.get_path("stdlib"))
VALIDATION_SIZE = 4096
INTERRUPTED = 128 + signal.SIGINT  # exit status that a shell reports

# One window per second: a step takes some milliseconds, so a window has a few hundred steps.
WINDOW = timedelta(seconds=1)
MEAN_AND_MAX = [monitel.MEAN, monitel.MAX]
train_loss = monitel.stat("loss", MEAN_AND_MAX, WINDOW, attributes={"split": "train"})
gradient_norm = monitel.stat("model.gradient.norm", MEAN_AND_MAX, WINDOW)  # TensorBoard sorts by name: below the loss
step_time = monitel.stat(
    "step.time",
    list(monitel.Aggregation),  # the distribution too: percentiles, and a histogram for a heat map
    WINDOW,
    unit="s",
    description="Computing one step",
)
steps_taken = monitel.counter("training.steps", unit="{step}")
samples_seen = monitel.counter("training.samples", unit="{sample}", description="Characters to predict")
data_loading = monitel.WaitCounter("data.loading")


def train(model: CharModel, corpus: Corpus, arguments: argparse.Namespace, interrupt: Interrupt) -> None:
    """Take steps until the time is over or Ctrl-C was pressed. The last epoch is then closed like any other."""
    rng = default_rng(arguments.seed)
    held_out = draw_batch(corpus.validation, model.context, VALIDATION_SIZE, default_rng(0))
    optimizer = Adam(model.parameters)
    checkpoint = arguments.run_dir / "checkpoint.npz"
    begin = time.monotonic()
    step = epoch = 0

    def over() -> bool:
        return interrupt.requested or time.monotonic() - begin >= arguments.seconds

    with progress_bar(arguments.seconds) as bar, profiled(arguments) as prof:
        while not (epoch and over()):
            epoch += 1
            bar.set_description(f"epoch {epoch}")
            for _ in range(arguments.epoch_steps):
                step += 1
                monitel.set_step(step)
                with data_loading.guard(), monitel.activity("data"), record_function("data"):
                    contexts, targets = draw_batch(corpus.train, model.context, arguments.batch_size, rng)
                with step_time.time():
                    with record_function("gradients"):
                        loss, gradients = model.loss_and_gradients(contexts, targets)
                    with record_function("optimizer"):
                        norm = optimizer.step(gradients)

                train_loss.add(loss)
                gradient_norm.add(norm)
                steps_taken.add()
                samples_seen.add(len(targets))
                bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                bar.update(min(time.monotonic() - begin, arguments.seconds) - bar.n)
                prof.step()
                if over():
                    break

            with monitel.activity("evaluation"), record_function("validation"):
                validation = model.loss(*held_out)
            monitel.log({"loss": validation}, split="val")
            with monitel.activity("checkpoint.save"), record_function("checkpoint", {"path": str(checkpoint)}):
                model.save(checkpoint, step=step)
            monitel.emit("checkpoint", epoch=epoch, path=str(checkpoint), size=checkpoint.stat().st_size)
            waited = monitel.wait_counters()["data.loading"].total
            monitel.emit("epoch", epoch=epoch, step=step, loss=loss, waited=waited)
            bar.write(f"epoch {epoch:2}  step {step:6,}  loss {loss:.3f}  validation loss {validation:.3f}")
            sys.stdout.flush()
    if interrupt.requested:
        monitel.emit("interrupted", step=step, severity=monitel.Severity.WARN)
        print(f"ended by Ctrl-C after step {step:,}")


def main(argv: Sequence[str] | None = None) -> int:
    """Set up the telemetry, train, and print the recorded data and its location."""
    arguments = parse_arguments(argv)
    interrupt = Interrupt()
    recorded: list[monitel.Event] = []  # list.append is atomic: as a handler it needs no lock
    with (
        monitel.register_event_handler(recorded.append),
        monitel_tensorboard.install(arguments.run_dir / "tensorboard"),
        monitel_otlp.configure(
            service_name="monitel-demo",
            spool_dir=arguments.run_dir / "spool",
            distributions=arguments.distributions,
        ) as pipeline,
    ):
        monitel.config(vars(arguments))
        with data_loading.guard(), monitel.activity("data"):
            corpus = Corpus.read(STDLIB)
        print(f"{len(corpus.train):,} characters of {STDLIB}/*.py, {len(corpus.vocabulary)} different ones")
        print(f"guessing by how frequent each is would be a loss of {corpus.unigram_entropy():.3f}")
        print(f"training for {arguments.seconds:g} s; Ctrl-C ends it early\n", flush=True)
        rng = default_rng(arguments.seed)
        model = CharModel(corpus.vocabulary, rng, hidden=arguments.hidden)
        try:
            train(model, corpus, arguments, interrupt)
        finally:
            monitel.flush()  # close the open windows while the handlers are registered
    print(f"\nwhat it writes now:\n\n{model.generate('def ', 300, rng).expandtabs(4)}\n")
    print_recorded(recorded)
    print_places(arguments.run_dir, complete=pipeline.shutdown())
    return INTERRUPTED if interrupt.requested else 0


def profiled(arguments: argparse.Namespace) -> profile:
    """Return a profile of the steps around the end of the first epoch. With 0 steps it records nothing."""
    steps = arguments.profile
    if not steps:
        return profile(schedule=lambda _step: ProfilerAction.NONE)
    wait = max(arguments.epoch_steps - 1 - steps // 2, 0)
    return profile(
        schedule=schedule(wait=wait, warmup=1, active=steps, repeat=1),
        on_trace_ready=tensorboard_trace_handler(arguments.run_dir / "tensorboard"),
    )


class Interrupt:
    """Turns the first Ctrl-C into a request to stop after the current step. The second one ends the run immediately."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGINT, self._request)

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def progress_bar(seconds: float) -> tqdm[NoReturn]:
    """Return a progress bar of the elapsed time. It is shown on a terminal only."""
    form = "{desc}{percentage:3.0f}% |{bar}| {n:.0f} of {total:.0f} s{postfix}"
    return tqdm(total=seconds, bar_format=form, disable=None)


def print_recorded(recorded: Sequence[monitel.Event]) -> None:
    """Print a line for each Stat, then the counters, the events and the wait counters."""
    series: dict[str, list[monitel.Window]] = {}
    for window in filter(None, (event.window for event in recorded)):
        split = window.attributes.get("split")
        series.setdefault(f"{window.name} ({split})" if split else window.name, []).append(window)
    row = "{:<20}{:>8}{:>9}{:>14}{:>14}  {}"
    print(row.format("stat", "windows", "samples", "first mean", "last mean", "unit"))
    for label, windows in series.items():
        samples = sum(window.count for window in windows)
        first, last = (f"{window.mean:,.4g}" for window in (windows[0], windows[-1]))
        print(row.format(label, len(windows), samples, first, last, windows[0].unit))
    counted = (steps_taken, samples_seen)
    print(f"\n{'counters':<16}", ", ".join(f"{each.total:,} {each.name}" for each in counted))
    events = Counter(event.name for event in recorded if event.window is None)
    print(f"{'events':<16}", ", ".join(f"{count} {name}" for name, count in events.items()))
    for key, wait in monitel.wait_counters().items():
        print(f"{key:<16} {wait.count:,} waits, {wait.total:.2f} s together, the longest {wait.max:.2f} s")


def print_places(run_dir: Path, *, complete: bool) -> None:
    """Print the location of all files, and the commands that show them."""
    folder = shlex.quote(str(run_dir))
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    print(f"\ncheckpoint       {folder}/checkpoint.npz")
    if endpoint and complete:
        print(f"sent to          {endpoint}")
    else:
        replay = f"{command(Path(sys.executable).name)} -m monitel replay {folder}/spool"
        print(f"send it by       {replay} --endpoint {endpoint or 'http://localhost:4318'}")
    print(f"see the curves   {command('tensorboard')} --logdir {folder}")
    for trace in run_dir.glob("tensorboard/*.pt.trace.json"):
        print(f"see the trace    {trace} at https://ui.perfetto.dev")


def command(name: str) -> str:
    """Return the command for a program of this environment: its name if it is in PATH, else its path."""
    path = Path(sysconfig.get_path("scripts"), name)
    if shutil.which(name) == str(path):
        return name
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line and create the run's folder."""
    parser = argparse.ArgumentParser(description="Train a small model on Python's source, with telemetry.")
    parser.add_argument("--seconds", type=at_least(0.1), default=30.0, help="how long to train (%(default)s)")
    parser.add_argument("--run-dir", type=Path, help="folder to write to (monitel-runs/<date>-<time>)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="same seed, same losses (%(default)s)")
    parser.add_argument("--hidden", type=at_least(1), default=256, help="width of the model (%(default)s)")
    parser.add_argument("--batch-size", type=at_least(1), default=512, help="characters a step (%(default)s)")
    parser.add_argument("--profile", type=at_least(0), default=0, help="record a trace of so many steps")
    kinds = ("percentiles", "histogram", "both")  # not every backend accepts histograms
    parser.add_argument("--distributions", choices=kinds, default=kinds[0], help="of step times (%(default)s)")
    parser.add_argument("--epoch-steps", type=at_least(1), default=500, help="steps an epoch (%(default)s)")
    arguments = parser.parse_args(argv)
    arguments.run_dir = arguments.run_dir or Path("monitel-runs", time.strftime("%Y%m%d-%H%M%S"))
    try:
        arguments.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --run-dir: cannot make {arguments.run_dir}: {error.strerror}")
    return arguments


def at_least(minimum: Number) -> Callable[[str], Number]:
    """Return an argparse type: a finite number of the type of ``minimum``, at least ``minimum``."""

    def convert(text: str) -> Number:
        value = type(minimum)(text)
        if not minimum <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, got {text}")
        return value

    convert.__name__ = type(minimum).__name__  # argparse names it: invalid int value: 'x'
    return convert


if __name__ == "__main__":
    sys.exit(main())
