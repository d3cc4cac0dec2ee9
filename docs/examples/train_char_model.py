"""Train a small character model on Python's own source text, and record the run. ``make demo`` starts it.

The model and its data are in char_model.py; here are the training loop and its telemetry: Stats, numbers, counters,
activities, events and a wait counter. They are in the report and the TensorBoard files of the run, and are sent to
OTEL_EXPORTER_OTLP_ENDPOINT, or to a spool on disk while that is not set. ``--profile 10`` adds a trace of ten steps
around the end of the first epoch. Ctrl-C ends the run early, with everything written.
"""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
import signal
import sys
import sysconfig
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from char_model import Adam, CharModel, Corpus, draw_batch
from numpy.random import default_rng
from tqdm import tqdm

import monitel
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


def train(model: CharModel, corpus: Corpus, arguments: argparse.Namespace, folder: Path, interrupt: Interrupt) -> None:
    """Take steps until the time is over or Ctrl-C was pressed. The last epoch is then closed like any other."""
    rng = default_rng(arguments.seed)
    held_out = draw_batch(corpus.validation, model.context, VALIDATION_SIZE, default_rng(0))
    optimizer = Adam(model.parameters)
    checkpoint = folder / "checkpoint.npz"
    begin = time.monotonic()
    step = epoch = 0

    def over() -> bool:
        return interrupt.requested or time.monotonic() - begin >= arguments.seconds

    with progress_bar(arguments.seconds) as bar, profiled(arguments, folder) as prof:
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
    with monitel.start("monitel-demo", vars(arguments)) as run:
        with data_loading.guard(), monitel.activity("data"):
            corpus = Corpus.read(STDLIB)
        print(f"{len(corpus.train):,} characters of {STDLIB}/*.py, {len(corpus.vocabulary)} different ones")
        print(f"guessing by how frequent each is would be a loss of {corpus.unigram_entropy():.3f}")
        print(f"training for {arguments.seconds:g} s; Ctrl-C ends it early\n", flush=True)
        rng = default_rng(arguments.seed)
        model = CharModel(corpus.vocabulary, rng, hidden=arguments.hidden)
        train(model, corpus, arguments, run.folder, interrupt)
        print(f"\nwhat it writes now:\n\n{model.generate('def ', 300, rng).expandtabs(4)}\n", flush=True)
    print_places(run.folder)
    return INTERRUPTED if interrupt.requested else 0


def profiled(arguments: argparse.Namespace, folder: Path) -> profile:
    """Return a profile of the steps around the end of the first epoch. With 0 steps it records nothing."""
    steps = arguments.profile
    if not steps:
        return profile(schedule=lambda _step: ProfilerAction.NONE)
    wait = max(arguments.epoch_steps - 1 - steps // 2, 0)
    return profile(
        schedule=schedule(wait=wait, warmup=1, active=steps, repeat=1),
        on_trace_ready=tensorboard_trace_handler(folder),
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


def print_places(folder: Path) -> None:
    """Print the location of all files, and the commands that show them."""
    print(f"\nreport           {(folder / 'report.html').as_uri()}")
    print(f"checkpoint       {folder}/checkpoint.npz")
    print(f"see the curves   {command('tensorboard')} --logdir {shlex.quote(str(folder.parent))}")
    for trace in folder.glob("*.pt.trace.json"):
        print(f"see the trace    {trace} at https://ui.perfetto.dev")


def command(name: str) -> str:
    """Return the command for a program of this environment: its name if it is in PATH, else its path."""
    path = Path(sysconfig.get_path("scripts"), name)
    if shutil.which(name) == str(path):
        return name
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a small model on Python's source, with telemetry.")
    parser.add_argument("--seconds", type=at_least(0.1), default=30.0, help="how long to train (%(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="same seed, same losses (%(default)s)")
    parser.add_argument("--hidden", type=at_least(1), default=256, help="width of the model (%(default)s)")
    parser.add_argument("--batch-size", type=at_least(1), default=512, help="characters a step (%(default)s)")
    parser.add_argument("--profile", type=at_least(0), default=0, help="record a trace of so many steps")
    parser.add_argument("--epoch-steps", type=at_least(1), default=500, help="steps an epoch (%(default)s)")
    return parser.parse_args(argv)


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
