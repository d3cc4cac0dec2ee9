"""install: Stats and Events become charts with rising steps; disk errors do not affect the training loop."""

from __future__ import annotations

import datetime as dt
import logging
import math
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # type: ignore[import-untyped]
from tensorboard.util import tensor_util  # type: ignore[import-untyped]

import monitel
from monitel.testing import ManualClock
from monitel_tensorboard import install
from monitel_tensorboard.installation import _close_expired_windows
from monitel_tensorboard.point import Point
from monitel_tensorboard.steps import RisingSteps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    Read: TypeAlias = Callable[[Path], dict[str, list[tuple[int, float | str]]]]
    Eventually: TypeAlias = Callable[[Callable[[], bool]], None]

MINUTE = dt.timedelta(minutes=1)


def test_window_gives_a_scalar_for_each_aggregation(tmp_path: Path, read: Read) -> None:
    """The tag is the Stat's name and aggregation; the step is the one of the window's last sample."""
    with install(tmp_path):
        loss = monitel.Stat("loss", [monitel.MEAN, monitel.MAX], MINUTE)
        for step, value in [(10, 0.5), (11, 0.25)]:
            monitel.set_step(step)
            loss.add(value)
        monitel.set_step(99)
    assert read(tmp_path) == {"loss.mean": [(11, 0.375)], "loss.max": [(11, 0.5)]}


def test_distribution_is_on_the_histogram_tab(tmp_path: Path) -> None:
    """HISTOGRAM gives percentiles as scalars, and its buckets from the smallest sample to the largest."""
    with install(tmp_path):
        stat = monitel.Stat("step.time", [monitel.HISTOGRAM, monitel.STDDEV], 60.0, attributes={"split": "val"})
        for step, sample in enumerate([-2.0, 0.0, 1.0, 1.5, 3.0, math.nan]):
            monitel.set_step(step)
            stat.add(sample)
        stat.flush()
        stat.add(math.inf)
        stat.flush()
    reader = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    reader.Reload()
    names = ["p50", "p90", "p95", "p99", "stddev"]
    scalars = {tag for tag in reader.Tags()["scalars"] if tag.startswith("step.")}
    assert {f"step.time.{name}{{split=val}}" for name in names} == scalars
    (point,) = reader.Histograms("step.time.histogram{split=val}")
    value, edges = point.histogram_value, [point.histogram_value.min, *point.histogram_value.bucket_limit]
    assert (5, 5.0, 3.5, -2.0, 3.0) == (point.step, value.num, value.sum, value.min, value.max)
    assert sorted(edges) == edges
    counted = [(low, high, count) for low, high, count in zip(edges, edges[1:], value.bucket, strict=False) if count]
    assert [1] * 5 == [count for *_, count in counted]
    assert (-2.0, 3.0) == (edges[0], edges[-1])
    for sample, (low, high, _) in zip([-2.0, 0.0, 1.0, 1.5, 3.0], counted, strict=True):
        assert low <= sample <= high


def test_tensorboard_reads_any_distribution(tmp_path: Path) -> None:
    """TensorBoard's conversion for the browser keeps every count, for any samples."""
    every = [[3.0] * 4, [0.0, 0.0], [-1e-3, 0.0, 1e3], [-5.0, -4.0], [1.0, 2.0, 4.0, 1e9]]
    with install(tmp_path):
        for number, samples in enumerate(every):
            stat = monitel.Stat(f"x{number}", [monitel.HISTOGRAM], 60.0)
            for sample in samples:
                stat.add(sample)
            stat.flush()
    loader = EventFileLoader(str(next(tmp_path.iterdir())))
    found = {
        value.tag: tensor_util.make_ndarray(value.tensor)
        for event in loader.Load()
        for value in event.summary.value
        if value.tag.endswith(".histogram")
    }
    for number, samples in enumerate(every):
        buckets = found[f"x{number}.histogram"]
        assert len(samples) == buckets[:, 2].sum()
        assert (min(samples), max(samples)) == pytest.approx((buckets[0, 0], buckets[-1, 1]))
        assert (buckets[:, 0] <= buckets[:, 1]).all()


def test_attributes_are_part_of_the_tag(tmp_path: Path, read: Read) -> None:
    """Two Stats with one name are two charts; attributes are sorted by name."""
    every: list[Any] = [{"split": "val"}, {"split": "train", "fold": 3, "best": True}, None]
    with install(tmp_path):
        stats = [monitel.Stat("loss", [monitel.SUM], MINUTE, attributes=attributes) for attributes in every]
        for value, stat in enumerate(stats):
            stat.add(value)
    assert read(tmp_path) == {
        "loss.sum{split=val}": [(0, 0)],
        "loss.sum{best=true,fold=3,split=train}": [(0, 1)],
        "loss.sum": [(0, 2)],
    }


def test_without_a_step_windows_are_numbered(tmp_path: Path, read: Read) -> None:
    """The windows of each tag are numbered from 0, until there is a training step."""
    with install(tmp_path):
        loss = monitel.Stat("loss", [monitel.SUM], MINUTE)
        rare = monitel.Stat("rare", [monitel.SUM], MINUTE)
        for value in range(3):
            loss.add(value)
            loss.flush()
        rare.add(7)
        rare.flush()
        monitel.set_step(1000)
        loss.add(3)
    assert read(tmp_path) == {"loss.sum": [(0, 0), (1, 1), (2, 2), (1000, 3)], "rare.sum": [(0, 7)]}


def test_steps_of_a_tag_never_fall() -> None:
    """If the training step goes back, the step stays; without one it is counted; tags are independent."""
    steps = RisingSteps()

    def assigned(tag: str, step: int | None, *, rising: bool = True) -> int | None:
        return steps.assign(Point(tag, 0.0, step, 0.0, rising)).step

    assert [assigned("loss", step) for step in (None, 5, 3, None, 6, 6)] == [0, 5, 5, 6, 6, 6]
    assert assigned("other", 2) == 2
    assert assigned("loss", 1, rising=False) == 1


def test_time_is_the_end_of_the_window(tmp_path: Path) -> None:
    """A window that is closed late has the time of its end."""
    with ManualClock(epoch_ns=1_000_000 * 10**9) as clock, install(tmp_path):
        loss = monitel.Stat("loss", [monitel.SUM], MINUTE)
        loss.add(1)
        clock.advance(1000)
        monitel.close_expired_windows()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert [point.wall_time for point in reader.Scalars("loss.sum")] == [1_000_060]


def test_events_give_a_point_for_each_item(tmp_path: Path, read: Read) -> None:
    """Numbers become scalars, bools 0 and 1, strings texts, each at <event>/<key> and the current step."""
    with install(tmp_path):
        monitel.set_step(5)
        monitel.emit("checkpoint", path="/tmp/5.pt", seconds=1.5, shards=8, final=False)
        monitel.set_step(6)
        monitel.emit("checkpoint", path="/tmp/6.pt", seconds=2.5, shards=8, final=True)
        monitel.emit("nothing")
    assert read(tmp_path) == {
        "checkpoint/path": [(5, "/tmp/5.pt"), (6, "/tmp/6.pt")],
        "checkpoint/seconds": [(5, 1.5), (6, 2.5)],
        "checkpoint/shards": [(5, 8), (6, 8)],
        "checkpoint/final": [(5, 0), (6, 1)],
    }


def test_stat_event_without_a_window_keeps_its_names(tmp_path: Path, read: Read) -> None:
    """Events of torch.monitor's Stats are charted like those of monitel."""
    with install(tmp_path):
        monitel.log_event(monitel.Event(monitel.STAT_EVENT, dt.datetime.now(), {"loss.mean": 0.5}))  # noqa: DTZ005
    assert read(tmp_path) == {"loss.mean": [(0, 0.5)]}


def test_time_of_an_event_is_its_timestamp(tmp_path: Path) -> None:
    """Naive timestamps are local time, aware ones keep their zone."""
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    with install(tmp_path):
        monitel.emit("epoch", timestamp=moment, n=1)
        monitel.emit("epoch", timestamp=moment.astimezone().replace(tzinfo=None), n=2)
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert {point.wall_time for point in reader.Scalars("epoch/n")} == {moment.timestamp()}


def test_unsuitable_items_are_dropped_and_counted(tmp_path: Path, read: Read) -> None:
    """An item of another type that was added to event.data raises no error and does not stop the thread."""
    event = monitel.Event("odd", dt.datetime(2026, 1, 1), {"good": 1})  # noqa: DTZ001
    odd: dict[str, Any] = {"list": [1], "none": None, "huge": 10**400}
    event.data.update(odd)
    with install(tmp_path) as installed:
        monitel.log_event(event)
        monitel.emit("never", timestamp=dt.datetime.min, n=1)  # noqa: DTZ901
    assert read(tmp_path) == {"odd/good": [(0, 1)]}
    assert installed.writer.dropped == 4


def test_idle_stat_is_written(tmp_path: Path, read: Read, eventually: Eventually) -> None:
    """The window of a Stat without further samples is written."""
    with ManualClock() as clock, install(tmp_path, expiry_secs=0.01, flush_secs=0.01):
        loss = monitel.Stat("loss", [monitel.COUNT], MINUTE)
        loss.add(1)
        clock.advance(61)
        eventually(lambda: "loss.count" in read(tmp_path))
        assert loss.count == 0


def test_many_idle_stats_are_closed_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread pauses between groups of windows, so that other threads can run."""
    monkeypatch.setattr("monitel.registry._work_ns", count(step=10_000).__next__)  # 0.01 ms for each window
    pauses: list[float] = []

    class Stop:
        def wait(self, pause: float) -> bool:
            pauses.append(pause)
            return pauses.count(2.0) == 3

    with monitel.testing.ManualClock() as clock:
        stats = [monitel.Stat("x", [monitel.COUNT], MINUTE) for _ in range(120)]
        for stat in stats:
            stat.add(1)
        clock.advance(60)
        _close_expired_windows(Stop(), 2.0)  # type: ignore[arg-type]
    assert pauses == [2.0, 0.001, 0.001, 2.0, 2.0]


def test_uninstall_flushes_and_stops(tmp_path: Path, read: Read) -> None:
    """Open windows are written, later samples are not. Idempotent."""
    installed = install(tmp_path)
    loss = monitel.Stat("loss", [monitel.SUM], MINUTE)
    loss.add(1)
    assert installed.uninstall()
    loss.add(2)
    loss.flush()
    assert installed.uninstall()
    assert read(tmp_path) == {"loss.sum": [(0, 1)]}
    assert installed.writer.dropped == 0
    assert repr(installed).startswith("<Installation uninstalled, <SummaryWriter ")


def test_uninstall_ends_the_threads(tmp_path: Path, eventually: Eventually) -> None:
    """The writer's thread and the expiry thread end."""
    before = set(threading.enumerate())
    with install(tmp_path, expiry_secs=0.01):
        started = set(threading.enumerate()) - before
    assert len(started) == 2
    eventually(lambda: not any(thread.is_alive() for thread in started))


def test_failing_handler_does_not_stop_the_thread(
    tmp_path: Path, read: Read, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of another handler in the expiry thread is logged; all points are written."""

    def fail(event: monitel.Event) -> None:
        raise RuntimeError("neighbour")

    caplog.set_level(logging.WARNING, "monitel_tensorboard")
    with (
        ManualClock() as clock,
        install(tmp_path, expiry_secs=0.01) as installed,
        monitel.register_event_handler(fail),
    ):
        loss = monitel.Stat("loss", [monitel.SUM], MINUTE)
        for value in (1, 2):
            loss.add(value)
            clock.advance(61)
            eventually(lambda: loss.count == 0)
        loss.add(3)
        installed.uninstall()
    assert read(tmp_path) == {"loss.sum": [(0, 1), (1, 2), (2, 3)]}
    assert "neighbour" in caplog.text


def test_failing_disk_does_not_affect_the_loop(tmp_path: Path, disk: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Samples can be added and windows closed; losses are counted."""
    disk.error = OSError(30, "Read-only file system")
    with install(tmp_path) as installed:
        loss = monitel.Stat("loss", [monitel.SUM], MINUTE)
        for value in range(50):
            loss.add(value)
            loss.flush()
    assert installed.writer.dropped == 50
    assert caplog.text.count("cannot write to") == 1


def test_writer_accepts_further_points(tmp_path: Path, read: Read) -> None:
    """Users can add points to the installation's writer."""
    with install(tmp_path) as installed:
        installed.writer.add_scalar("lr", 0.125, 3)
    assert read(tmp_path) == {"lr": [(3, 0.125)]}


def test_torchs_handler_takes_the_writer(tmp_path: Path, read: Read) -> None:
    """monitel.TensorboardEventHandler writes through a SummaryWriter, as torch's does."""
    with install(tmp_path / "ours") as installed:
        other = type(installed.writer)(tmp_path / "theirs")
        with other, monitel.register_event_handler(monitel.TensorboardEventHandler(other)):
            loss = monitel.Stat("loss", [monitel.SUM], MINUTE)
            loss.add(1)
            loss.flush()
    assert read(tmp_path / "ours") == read(tmp_path / "theirs") == {"loss.sum": [(0, 1)]}


@pytest.mark.parametrize("expiry_secs", [0, -1, float("nan")])
def test_wrong_arguments_register_nothing(tmp_path: Path, expiry_secs: float) -> None:
    """A failed installation leaves no handler and no file."""
    with pytest.raises(ValueError, match="expiry_secs must be more than 0 and at most 86400 seconds"):
        install(tmp_path / "runs", expiry_secs=expiry_secs)
    monitel.emit("epoch", n=1)
    assert not (tmp_path / "runs").exists()
