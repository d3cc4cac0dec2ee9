"""TensorBoard's own reader finds in the files what was recorded: steps, tags, texts, hyperparameters, several runs."""

from __future__ import annotations

import datetime as dt
import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # type: ignore[import-untyped]
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer  # type: ignore[import-untyped]
from tensorboard.plugins.hparams import metadata  # type: ignore[import-untyped]
from tensorboard.util import tensor_util  # type: ignore[import-untyped]
from tests.support.checks import wait_until
from tests.unit.tensorboard.files import LEDGER, read, reader_of

import monitel
from monitel_tensorboard import SummaryWriter, install

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.testing import ManualClock


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
    assert {"loss.mean{ema=true,split=val}": [(11, 0.375)], "loss.max{ema=true,split=val}": [(11, 0.5)]} == read(
        tmp_path
    )
    assert end_ns / 1e9 == reader_of(tmp_path).Scalars("loss.mean{ema=true,split=val}")[0].wall_time


def test_distribution_is_percentiles_and_a_histogram_with_every_sample(tmp_path: Path) -> None:
    """The buckets reach from the smallest sample to the largest, and have all finite samples."""
    samples = [-2.0, 0.0, 1.0, 1.5, 3.0]
    with install(tmp_path):
        stat = monitel.Stat("step.time", [monitel.HISTOGRAM], 60.0)
        for step, sample in enumerate([*samples, math.nan]):
            monitel.set_step(step)
            stat.add(sample)
    reader = reader_of(tmp_path)
    assert {f"step.time.{each}" for each in ("p50", "p90", "p95", "p99")} == {
        tag for tag in reader.Tags()["scalars"] if not tag.startswith(LEDGER)
    }
    (point,) = reader.Histograms("step.time.histogram")
    value, edges = point.histogram_value, [point.histogram_value.min, *point.histogram_value.bucket_limit]
    assert (5, 5.0, 3.5, -2.0, 3.0) == (point.step, value.num, value.sum, value.min, value.max)
    counted = [(low, high) for low, high, count in zip(edges, edges[1:], value.bucket, strict=False) if count]
    assert 5 == len(counted) == sum(value.bucket)
    assert all(low <= sample <= high for sample, (low, high) in zip(samples, counted, strict=True))
    assert all(high - low < 0.1 for low, high in counted), "a bucket does not reach over the gap before it"


@pytest.mark.parametrize("samples", [[3.0] * 4, [0.0, 0.0], [-5.0, -4.0], [1.0, 2.0, 4.0, 1e9]])
def test_tensorboard_keeps_every_sample_of_a_distribution(tmp_path: Path, samples: list[float]) -> None:
    """Its conversion for the browser has all counts, from the smallest sample to the largest."""
    with install(tmp_path):
        stat = monitel.Stat("x", [monitel.HISTOGRAM], 60.0)
        for sample in samples:
            stat.add(sample)
    every = [value for event in EventFileLoader(str(next(tmp_path.iterdir()))).Load() for value in event.summary.value]
    (buckets,) = [tensor_util.make_ndarray(each.tensor) for each in every if each.tag == "x.histogram"]
    assert len(samples) == buckets[:, 2].sum()
    assert (min(samples), max(samples)) == pytest.approx((buckets[0, 0], buckets[-1, 1]))


def test_steps_of_a_tag_never_fall_and_windows_without_a_step_are_numbered(tmp_path: Path) -> None:
    """Each tag counts from 0 until there is a training step, and stays where it was if that goes back."""
    with install(tmp_path):
        loss, rare = (monitel.Stat(name, [monitel.SUM], 60.0) for name in ("loss", "rare"))
        for value, step in enumerate((None, None, 1000, 7, 1001)):
            if step is not None:
                monitel.set_step(step)
            loss.add(value)
            loss.flush()
        rare.add(9)
    assert {"loss.sum": [(0, 0), (1, 1), (1000, 2), (1000, 3), (1001, 4)], "rare.sum": [(1001, 9)]} == read(tmp_path)


def test_logged_number_is_a_scalar_at_exactly_its_step(tmp_path: Path) -> None:
    """Each call is a point, even if steps go back or repeat; without a step that of set_step(), else a number."""
    with install(tmp_path) as installed:
        monitel.log({"acc": 0.125})
        monitel.log({"acc": 0.25})
        monitel.set_step(7)
        monitel.log({"acc": 0.5})
        for step in (20, 15, 15):
            monitel.log({"loss": step / 2, "val": {"loss": step}}, step=step, split="val")
    assert 0 == installed.writer.dropped
    assert {
        "acc": [(0, 0.125), (1, 0.25), (7, 0.5)],
        "loss{split=val}": [(20, 10.0), (15, 7.5), (15, 7.5)],
        "val.loss{split=val}": [(20, 20.0), (15, 15.0), (15, 15.0)],
    } == read(tmp_path)


def test_event_is_a_point_for_each_item(tmp_path: Path) -> None:
    """Numbers are scalars, bools 0 and 1, texts are texts, at the current step and the time of the event."""
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    with install(tmp_path):
        for step, final in ((5, False), (6, True)):
            monitel.set_step(step)
            monitel.emit("checkpoint", timestamp=moment, path=f"/tmp/{step}.pt", seconds=1.5, shards=8, final=final)
        monitel.emit("nothing")
    assert {
        "checkpoint/path": [(5, "/tmp/5.pt"), (6, "/tmp/6.pt")],
        "checkpoint/seconds": [(5, 1.5), (6, 1.5)],
        "checkpoint/shards": [(5, 8), (6, 8)],
        "checkpoint/final": [(5, 0), (6, 1)],
    } == read(tmp_path)
    assert {moment.timestamp()} == {each.wall_time for each in reader_of(tmp_path).Scalars("checkpoint/seconds")}


def test_configuration_is_a_table_and_hyperparameters(tmp_path: Path) -> None:
    """A row for each value in Markdown; and the values with the types by which the tab HPARAMS sorts."""
    with install(tmp_path):
        monitel.config({"lr": 0.5, "model": {"layers": [1, None], "name": "café"}, "amp": True, "text": "a|b\nc"})
    reader = reader_of(tmp_path)
    (table,) = reader.Tensors("run.config")
    assert (
        "| name | value |\n|---|---|\n| lr | 0.5 |\n| model.layers | [1, null] |\n"
        "| model.name | café |\n| amp | true |\n| text | a\\|b c |"
    ) == table.tensor_proto.string_val[0].decode()
    content = reader.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams: Any = metadata.parse_session_start_info_plugin_data(content).hparams
    found = {name: getattr(value, value.WhichOneof("kind")) for name, value in hparams.items()}
    assert {"lr": 0.5, "model.layers": "[1, null]", "model.name": "café", "amp": True, "text": "a|b\nc"} == found


def test_ledger_is_seconds_of_each_activity_and_goodput(tmp_path: Path) -> None:
    """The last points are at the last step, and add up to the life of the process."""
    with install(tmp_path):
        with monitel.activity("init"):
            pass
        for step in (5, 7):
            monitel.set_step(step)
        before = monitel.ledger()
    after = monitel.ledger()
    assert before is not None
    assert after is not None
    found: Any = read(tmp_path, ledger=True)
    last = {tag.rpartition("/")[2]: points[-1] for tag, points in found.items()}
    assert ({"startup", "init", "step", "training.goodput"}, {7}) == (set(last), {step for step, _ in last.values()})
    goodput = last.pop("training.goodput")[1]
    seconds = sum(value for _, value in last.values())
    single = 1 + 1e-6  # TensorBoard stores numbers of 32 bits
    assert before.elapsed_ns / 1e9 / single <= seconds <= after.elapsed_ns / 1e9 * single
    low, high = before.activities["step"] / after.elapsed_ns, after.activities["step"] / before.elapsed_ns
    assert low / single <= goodput <= high * single


def test_each_rank_and_each_restart_of_a_run_is_found(tmp_path: Path) -> None:
    """Folders below the log folder are runs; a second process continues a folder with a second file."""
    for rank in (0, 1):
        with install(tmp_path / f"rank{rank}"):
            monitel.log({"loss": float(rank)}, step=1)
    with install(tmp_path / "rank0"):
        monitel.log({"loss": 5.0}, step=2)
    assert {"rank0": 2, "rank1": 1} == {path.name: len(list(path.iterdir())) for path in tmp_path.iterdir()}
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert {"rank0", "rank1"} == set(runs.Runs())
    assert [(1, 1.0)] == [(each.step, each.value) for each in runs.Scalars("rank1", "loss")]
    assert {"loss": [(1, 0.0), (2, 5.0)]} == read(tmp_path / "rank0")


def test_writer_adds_scalars_and_texts_from_all_threads(tmp_path: Path) -> None:
    """Every point is read back, in the order of its thread; without a step it is at 0; text may be any."""

    def add(tag: str) -> None:
        for step in range(200):
            writer.add_scalar(tag, step / 2, step)

    with SummaryWriter(tmp_path) as writer:
        threads = [threading.Thread(target=add, args=(each,)) for each in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.add_scalar("flag", True)
        writer.add_text("note", "**bold** \ud800", 7)
    every = [(step, step / 2) for step in range(200)]
    assert {"a": every, "b": every, "flag": [(0, 1.0)], "note": [(7, "**bold** \\ud800")]} == read(tmp_path)
    assert (0, 0) == (writer.dropped, writer.failed)
    with pytest.raises(TypeError, match="use add_text for text"):
        writer.add_scalar("loss", "0.5")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="mount it"):
        SummaryWriter("s3://bucket/run")


def test_torchs_handler_writes_through_our_writer(tmp_path: Path) -> None:
    """``TensorboardEventHandler`` calls ``add_scalar`` for each value of a Stat, without a step, as in torch."""
    with SummaryWriter(tmp_path) as writer, monitel.register_event_handler(monitel.TensorboardEventHandler(writer)):
        loss = monitel.Stat("loss", [monitel.SUM, monitel.COUNT], 60.0)
        monitel.set_step(5)
        loss.add(2.0)
        loss.flush()
        monitel.emit("ignored", number=1)
    assert {"loss.sum": [(0, 2.0)], "loss.count": [(0, 1.0)]} == read(tmp_path)


def test_folder_that_cannot_be_made_loses_nothing_once_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning; the points wait. What is left at the end is counted, and the program is not disturbed."""
    obstacle = tmp_path / "runs"
    obstacle.touch()
    with install(obstacle / "first", flush_secs=0.01) as installed:
        monitel.log({"loss": 0.5}, step=1)
        wait_until(lambda: installed.writer.failed >= 2)
        obstacle.unlink()
        assert installed.writer.flush(60)
        assert 0 == installed.writer.dropped
    assert {"loss": [(1, 0.5)]} == read(obstacle / "first")
    blocked = tmp_path / "file"
    blocked.touch()
    with install(blocked / "second") as installed:
        monitel.log({"loss": 0.5}, step=1)
    assert 1 == installed.writer.dropped
    assert [1, 1] == [caplog.text.count(f"cannot write to {each}") for each in (obstacle / "first", blocked / "second")]


def test_full_queue_drops_the_oldest_points_and_counts_them(tmp_path: Path) -> None:
    """A call never waits for the disk."""
    (tmp_path / "file").touch()
    writer = SummaryWriter(tmp_path / "file" / "run", max_queue=10, flush_secs=3600)
    for step in range(25):
        writer.add_scalar("loss", step, step)
    (tmp_path / "file").unlink()
    assert writer.flush(60)  # its thread may have held up to ten older points in the meantime
    assert writer.close(60)
    found = read(tmp_path / "file" / "run")["loss"]
    assert [(step, step) for step in range(15, 25)] == found[-10:]
    assert 25 - len(found) == writer.dropped >= 5
    writer.add_scalar("loss", 99, 99)
    assert 26 - len(found) == writer.dropped


def test_uninstall_flushes_stops_the_threads_and_is_idempotent(tmp_path: Path) -> None:
    """Open windows are written, later ones are not."""
    before = {*threading.enumerate()}
    installed = install(tmp_path)
    loss = monitel.Stat("loss", [monitel.SUM], 60.0)
    loss.add(1)
    assert installed.uninstall()
    loss.add(2)
    loss.flush()
    assert installed.uninstall()
    wait_until(lambda: before == {*threading.enumerate()})
    assert {"loss.sum": [(0, 1)]} == read(tmp_path)


def test_idle_stat_is_written_on_time(tmp_path: Path, clock: ManualClock) -> None:
    """A thread closes windows that are over, and writes them soon."""
    with install(tmp_path, expiry_secs=0.01, flush_secs=0.01):
        loss = monitel.Stat("loss", [monitel.COUNT], 60.0)
        loss.add(1)
        clock.advance(61)
        wait_until(lambda: read(tmp_path) == {"loss.count": [(0, 1)]})
