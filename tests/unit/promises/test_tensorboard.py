"""TensorBoard's own reader finds in the files what was recorded: steps, tags, texts, hyperparameters, several runs."""

import datetime as dt
import math
import re
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import markdown  # type: ignore[import-untyped]  # as TensorBoard renders texts
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # type: ignore[import-untyped]
from tensorboard.util import tensor_util  # type: ignore[import-untyped]
from tests.support.checks import wait_until
from tests.support.producers import record_window, run_together
from tests.unit.tensorboard.files import LEDGER, read, reader_of, shown

import monitel
from monitel.testing import ManualClock
from monitel_tensorboard import SummaryWriter, install


def test_window_is_a_scalar_for_each_aggregation(tmp_path: Path, clock: ManualClock) -> None:
    """At the step of its last sample and the time of its end; attributes are part of the tag, sorted by name."""
    with install(tmp_path):
        loss = monitel.Stat("loss", [monitel.MEAN, monitel.MAX], 60.0, attributes={"split": "val", "ema": True})
        for step, value in ((10, 0.5), (11, 0.25)):
            monitel.set_step(step)
            loss.add(value)
        end_ns = clock.time_ns() + 60 * 10**9
        clock.advance(1000)
        monitel.set_step(99)
        monitel.close_expired_windows()
    assert {"loss/mean{ema=true,split=val}": [(11, 0.375)], "loss/max{ema=true,split=val}": [(11, 0.5)]} == read(
        tmp_path
    )
    assert end_ns / 1e9 == reader_of(tmp_path).Scalars("loss/mean{ema=true,split=val}")[0].wall_time


@pytest.mark.parametrize("samples", [[-2.0, 0.0, 1.0, 1.5, 3.0], [3.0] * 4, [0.0, 0.0], [-5.0, -4.0], [1.0, 2.0, 1e9]])
def test_distribution_is_percentiles_and_a_histogram_with_every_sample(tmp_path: Path, samples: list[float]) -> None:
    """The buckets have all finite samples, from the smallest to the largest, in TensorBoard's form for browsers too."""
    with install(tmp_path):
        stat = monitel.Stat("step.time", [monitel.HISTOGRAM], 60.0)
        for step, sample in enumerate([*samples, math.nan]):
            monitel.set_step(step)
            stat.add(sample)
    reader = reader_of(tmp_path)
    assert {f"step.time/{each}" for each in ("p50", "p90", "p95", "p99")} == {
        tag for tag in reader.Tags()["scalars"] if not tag.startswith(LEDGER)
    }
    (point,) = reader.Histograms("step.time/histogram")
    value, edges = point.histogram_value, [point.histogram_value.min, *point.histogram_value.bucket_limit]
    number, total = len(samples), pytest.approx(sum(samples))
    found = point.step, value.num, value.sum, value.min, value.max
    assert (number, number, total, min(samples), max(samples)) == found
    counted = [(low, high) for low, high, count in zip(edges, edges[1:], value.bucket, strict=False) if count]
    assert number == sum(value.bucket)
    for low, high in counted:
        assert any(low <= sample <= high for sample in samples)
        assert high - low < 0.2 * max(1.0, high), "a bucket does not reach over the gap before it"
    every = [value for event in EventFileLoader(str(max(tmp_path.iterdir()))).Load() for value in event.summary.value]
    (buckets,) = [tensor_util.make_ndarray(each.tensor) for each in every if each.tag == "step.time/histogram"]
    assert number == buckets[:, 2].sum()
    assert (min(samples), max(samples)) == pytest.approx((buckets[0, 0], buckets[-1, 1]))


def test_windows_at_one_step_are_merged_and_steps_that_go_back_are_real(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The point that is shown has all samples of its step; points that replace earlier ones are counted."""
    with install(tmp_path) as installed:
        for value, step in enumerate([5, 5, 5, 5, 5, 5, 7, 15, 7, 8]):
            monitel.set_step(step)
            record_window("loss", [monitel.MEAN, monitel.COUNT, monitel.HISTOGRAM], value)
        epoch = monitel.Stat("loss", [monitel.MEAN, monitel.COUNT, monitel.HISTOGRAM], 3600.0)
        for step in (0, 8):
            monitel.set_step(step)
            epoch.add(10.0)
        epoch.flush()
        assert installed.writer.flush(60)
        assert 3 * 7 == installed.writer.replaced  # three windows, each of six scalars and a distribution
    every = [*((5, each / 2) for each in range(6)), (7, 6.0), (15, 7.0), (7, 8.0), (8, 9.0), (8, 10.0)]
    points, histograms = shown(tmp_path)["."], reader_of(tmp_path).Histograms("loss/histogram")
    assert [(5, 2.5), (7, 8.0), (8, 10.0)] == points["loss/mean"]
    assert [(5, 6.0), (7, 1.0), (8, 2.0)] == points["loss/count"]
    assert (every, [step for step, _ in every]) == (read(tmp_path)["loss/mean"], [each.step for each in histograms])
    assert 1 == caplog.text.count("has step 7 after 15: TensorBoard hides points from it on")


def test_point_is_at_its_step_or_numbered(tmp_path: Path) -> None:
    """Each tag counts from 0 until there is a training step; until then events share 0, as they do with any step.

    Behind a long text they count, too. log() has exactly its step; another number is counted.
    """
    with install(tmp_path) as installed:
        for text in ("x" * 10_000, "a", "b"):
            monitel.emit("long", text=text)
        for value in range(3):
            if value == 2:
                monitel.set_step(7)
            record_window("loss", [monitel.SUM], value)
            monitel.emit("epoch")
            monitel.log({"acc": value / 8})
        for step in (20, 15, 15):
            monitel.log({"loss": step / 2, "val": {"loss": step}}, step=step, split="val")
        monitel.log({"loss": 8.0}, step=15, split="val")
    assert (0, 3) == (installed.writer.dropped, installed.writer.replaced)
    found = read(tmp_path)
    assert [0, 1, 2] == [step for step, _ in found.pop("events/long")]
    epochs = found.pop("events/epoch")
    assert [(0, 1), (0, 2), (7, 1)] == [(step, str(text).count("epoch")) for step, text in epochs]
    assert {
        "loss/sum": [(0, 0), (1, 1), (7, 2)],
        "acc": [(0, 0.0), (1, 0.125), (7, 0.25)],
        "loss{split=val}": [(20, 10.0), (15, 7.5), (15, 7.5), (15, 8.0)],
        "val.loss{split=val}": [(20, 20.0), (15, 15.0), (15, 15.0)],
    } == found
    assert [(15, 8.0)] == shown(tmp_path)["."]["loss{split=val}"]


def test_event_is_a_text_and_no_chart(tmp_path: Path) -> None:
    """A table of its data, at the current step and the time of the event; events of a name at one step share it.

    Text is shown as it is, with its lines: a stack is not taken for markup.
    """
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    with install(tmp_path) as installed:
        for step, final in ((5, False), (6, True)):
            monitel.set_step(step)
            monitel.emit("loss", timestamp=moment, path=f"/tmp/{step}.pt", seconds=1.5, final=final)
        monitel.emit("loss", {"a|b": "later"}, severity=monitel.Severity.WARN)
        monitel.emit("nothing")
        monitel.emit("failed", stack='"x/__init__.py", in <module>\n    run(*args)')
        monitel.log({"loss": 1.0})  # a chart beside the text
    rows = "|---|---|\n| path | /tmp/{}.pt |\n| seconds | 1.5 |\n| final | {} |"
    first = f"| loss | INFO |\n{rows.format(6, 'true')}"
    points = shown(tmp_path)["."]
    ((_, stack),) = points.pop("events/failed")
    cell = '<td>"x/__init__.py", in &lt;module&gt;<br>run(*args)</td>'
    assert cell in markdown.markdown(stack, extensions=["tables"])
    assert {
        "events/loss": [
            (5, f"| loss | INFO |\n{rows.format(5, 'false')}"),
            (6, f"{first}\n\n| loss | WARN |\n|---|---|\n| a\\|b | later |"),
        ],
        "events/nothing": [(6, "| nothing | INFO |\n|---|---|")],
        "loss": [(6, 1.0)],
    } == points
    assert moment.timestamp() == reader_of(tmp_path).Tensors("events/loss")[0].wall_time
    assert (0, 0) == (installed.writer.dropped, installed.writer.replaced)


def test_many_events_at_one_step_are_shown_up_to_a_length_and_counted(tmp_path: Path) -> None:
    with install(tmp_path) as installed:
        monitel.set_step(5)
        for number in range(300):
            monitel.emit("e", n=number)
    ((_, text),) = shown(tmp_path)["."]["events/e"]
    assert "| n | 299 |" in str(text)
    assert len(str(text)) < 11_000
    assert 0 < installed.writer.replaced < 5


def test_late_event_does_not_replace_a_later_one(tmp_path: Path) -> None:
    """An event with an earlier step and time is dropped and counted; steps alone may go back."""
    early = monitel.LoggedNumbers({"loss": 1.0}, step=1)
    with install(tmp_path) as installed:
        monitel.log({"loss": 2.0}, step=2)
        monitel.log_event(early)
        monitel.log({"loss": 3.0}, step=3)
        monitel.log({"other": 3.0}, step=3)
        monitel.log({"other": 2.0}, step=2)
        assert installed.writer.flush(60)
        assert 1 == installed.writer.dropped
    points = shown(tmp_path)["."]
    assert ([(2, 2.0), (3, 3.0)], [(2, 2.0)]) == (points["loss"], points["other"])


def test_configurations_are_one_table_and_one_set_of_hyperparameters(tmp_path: Path) -> None:
    """A row for each value in Markdown, in the order of the calls, and values with the types by which HPARAMS sorts."""
    with install(tmp_path, flush_secs=0.01) as installed:
        monitel.config({"lr": 0.5, "model": {"layers": [1, None], "name": "café"}, "amp": True, "text": "a|b\nc"})
        assert installed.writer.flush(60)
        monitel.config({"lr": 0.25, "heads": 8})
    table = (
        "| name | value |\n|---|---|\n| lr | 0.25 |\n| model.layers | [1, null] |\n"
        "| model.name | café |\n| amp | true |\n| text | a\\|b<br>c |\n| heads | 8 |"
    )
    values = {"amp": True, "heads": 8, "lr": 0.25, "model.layers": "[1, null]", "model.name": "café", "text": "a|b\nc"}
    found: Any = {"run.config": [(0, table)], "hparams": [*enumerate(values.items())]}
    assert found == shown(tmp_path)["."]
    assert found == {tag: points[-len(found[tag]) :] for tag, points in read(tmp_path).items()}


def test_tag_has_one_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first point decides; others are dropped and counted, and the first one is logged."""
    with SummaryWriter(tmp_path) as writer:
        writer.add_text("a", "text", 1)
        writer.add_scalar("a", 1.0, 2)
        writer.add_scalar("b", 1.0, 1)
        writer.add_text("b", "text", 2)
    assert {"a": [(1, "text")], "b": [(1, 1.0)]} == shown(tmp_path)["."] == read(tmp_path)
    assert 2 == writer.dropped
    assert 1 == caplog.text.count("'a' has a str, and is given a float: dropped (further ones are only counted)")


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK"])
def test_each_rank_and_each_run_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A writer of the same process may be there. A run that is resumed has the folder of the run."""

    def log(value: float) -> None:
        with install(tmp_path):
            monitel.log({"loss": value}, step=1)

    SummaryWriter(tmp_path).close()
    log(0)
    for attempt in (0, 10):
        for rank in (2, 0, 1):
            with monkeypatch.context() as patch:
                patch.setenv(variable, str(rank))
                patch.setenv("WORLD_SIZE", "3")
                log(attempt + rank)
    (tmp_path / "run-4").mkdir()
    foreign = tmp_path / "run-4" / "events.out.tfevents.1700000000.another.1.0"
    foreign.touch()
    log(20)
    with install(tmp_path, purge_step=2):
        monitel.log({"loss": 0.5})  # without a step, before the loop: a smaller one would hide the earlier points
    others = {"run-2": 0, "run-2/rank-1": 1, "run-2/rank-2": 2, "run-3": 10, "run-3/rank-1": 11, "run-3/rank-2": 12}
    expected = {folder: [(1, float(value))] for folder, value in {".": 0, **others, "run-5": 20}.items()}
    expected["."] += [(2, 0.5)]
    foreign.unlink()
    assert expected == {run: points["loss"] for run, points in shown(tmp_path).items()}


def test_run_without_a_folder_has_that_of_torch(tmp_path: Path) -> None:
    """Named by date, host and comment. The constructor makes the folder."""
    with SummaryWriter(comment="-lr") as writer, install() as installed:
        (Path(writer.log_dir) / "note.txt").touch()
    found = sorted(path.name for path in (tmp_path / "runs").iterdir())
    pattern = rf"\w{{3}}\d\d_\d\d-\d\d-\d\d_{re.escape(socket.gethostname())}"
    assert [True, True] == [bool(re.fullmatch(f"{pattern}(-lr)?", each)) for each in found]
    assert {writer.log_dir, installed.writer.log_dir} == {str(tmp_path / "runs" / each) for each in found}


def test_arguments_of_the_writer_are_those_of_torch(tmp_path: Path) -> None:
    """By position and by name: a queue of one is written at once, and drops nothing; a float is a step."""
    first = SummaryWriter(tmp_path, "", None, 1, 3600, ".end")
    for step in range(50):
        first.add_scalar("loss", step, step + 0.5)
    wait_until(lambda: 50 == len(read(tmp_path).get("loss", ())))
    assert first.close(60)
    with SummaryWriter(tmp_path, purge_step=20) as second:
        second.add_scalar("loss", scalar_value=0.5, global_step=20.0)
        second.add_text(tag="note", text_string="resumed", global_step=20)
    assert (0, 0) == (first.dropped, second.dropped)
    assert [True, False] == [path.name.endswith(".end") for path in sorted(tmp_path.iterdir())]
    assert [*((step, step) for step in range(20)), (20, 0.5)] == read(tmp_path)["loss"] == shown(tmp_path)["."]["loss"]
    for wrong in ("5", math.nan, [1, 2]):
        with pytest.raises(TypeError, match="global_step must be an int, a finite float or None"):
            second.add_scalar("loss", 1.0, wrong)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match="walltime must be a finite number"):
        second.add_scalar("loss", 1.0, 1, math.nan)
    with pytest.raises(ValueError, match="filename_suffix must be a text of at most 100 characters without '/'"):
        SummaryWriter(tmp_path, filename_suffix="a/b")
    for seconds in (0, 86_401, 10**400):
        with pytest.raises(ValueError, match="flush_secs must be a positive number of seconds, at most a day, got"):
            SummaryWriter(tmp_path, flush_secs=seconds)


def test_writer_adds_scalars_and_texts_from_all_threads(tmp_path: Path) -> None:
    """Every point is read back, in the order of its thread; without a step it is at 0; text may be any."""

    def add(tag: str) -> None:
        for step in range(200):
            writer.add_scalar(tag, step / 2, step)

    with SummaryWriter(tmp_path) as writer:
        run_together(*(partial(add, each) for each in "ab"))
        writer.add_scalar("flag", True)
        writer.add_scalar("array", np.array([[0.5]]))  # type: ignore[arg-type]  # as torch's writer
        writer.add_text("note", "**bold** \ud800", 7)
    every = [(step, step / 2) for step in range(200)]
    assert {"a": every, "b": every, "flag": [(0, 1.0)], "array": [(0, 0.5)], "note": [(7, "**bold** \\ud800")]} == read(
        tmp_path
    )
    assert (0, 0) == (writer.dropped, writer.failed)
    with pytest.raises(TypeError, match="use add_text for text"):
        writer.add_scalar("loss", "0.5")  # type: ignore[arg-type]  # on purpose
    for url in ("s3://bucket/run", Path("gs://bucket/run"), "dbfs:/run"):
        with pytest.raises(ValueError, match="mount it"):
            SummaryWriter(url)


def test_torchs_handler_writes_through_our_writer(tmp_path: Path) -> None:
    """``TensorboardEventHandler`` calls ``add_scalar`` for each value of a Stat, without a step, as in torch."""
    with SummaryWriter(tmp_path) as writer, monitel.register_event_handler(monitel.TensorboardEventHandler(writer)):
        monitel.set_step(5)
        record_window("loss", [monitel.SUM, monitel.COUNT], 2.0)
        monitel.emit("ignored", number=1)
    assert {"loss.sum": [(0, 2.0)], "loss.count": [(0, 1.0)]} == read(tmp_path)


def test_folder_that_cannot_be_made_loses_nothing_once_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning; the points wait, and the program is not disturbed."""
    obstacle = tmp_path / "runs"
    obstacle.touch()
    with install(obstacle / "first", flush_secs=0.01) as installed:
        monitel.log({"loss": 0.5}, step=1)
        wait_until(lambda: installed.writer.failed >= 2)
        obstacle.unlink()
        assert installed.writer.flush(60)
        assert 0 == installed.writer.dropped
    assert {"loss": [(1, 0.5)]} == read(obstacle / "first")
    assert 1 == caplog.text.count(f"cannot write to {obstacle / 'first'}")


def test_full_queue_drops_the_oldest_points_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call never waits for the disk. A closed writer drops all, with one warning."""
    monkeypatch.setattr("monitel_tensorboard.writer._QUEUE_LIMIT", 500)
    (tmp_path / "file").touch()
    writer = SummaryWriter(tmp_path / "file" / "run", max_queue=250, flush_secs=3600)
    for step in range(600):
        writer.add_scalar("loss", step, step)
    (tmp_path / "file").unlink()
    assert writer.flush(60)  # its thread may have held up to 32 older points in the meantime
    assert writer.close(60)
    found = read(tmp_path / "file" / "run")["loss"]
    assert [(step, step) for step in range(100, 600)] == found[-500:]
    assert 600 - len(found) == writer.dropped >= 68
    for step in range(2):
        writer.add_scalar("loss", step, step)
    assert 602 - len(found) == writer.dropped
    assert 1 == caplog.text.count("added after close() are dropped")


def test_windows_are_written_on_time_until_the_end(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread closes windows that are over; the end writes open ones, stops all threads, and is idempotent.

    One that is forgotten at the next ``install()`` is reported: it would get the points of that run, too.
    """
    before = {*threading.enumerate()}
    installed = install(tmp_path, expiry_secs=0.01, flush_secs=0.01)
    assert install(tmp_path).uninstall()
    assert f"{tmp_path} gets the points of the next run, too" in caplog.text
    loss = monitel.Stat("loss", [monitel.SUM], 60.0)
    loss.add(1)
    clock.advance(61)
    wait_until(lambda: read(tmp_path) == {"loss/sum": [(0, 1)]})
    loss.add(2)
    assert installed.uninstall()
    loss.add(3)
    loss.flush()
    assert installed.uninstall()
    wait_until(lambda: before == {*threading.enumerate()})
    assert {"loss/sum": [(0, 1), (1, 2)]} == read(tmp_path)
