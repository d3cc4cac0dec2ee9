"""TensorBoard's event file: its format, and all access to the disk.

TensorBoard's own writer is not used: its thread ends at the first error of the disk, and its callers wait.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# tensorboard has neither type hints nor stubs.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.histogram_pb2 import HistogramProto  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[import-untyped]
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # type: ignore[import-untyped]
from tensorboard.compat.proto.types_pb2 import DT_STRING  # type: ignore[import-untyped]
from tensorboard.plugins.hparams import metadata as hparams_metadata  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # type: ignore[import-untyped]
from tensorboard.plugins.text.metadata import create_summary_metadata  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from monitel import Histogram
from monitel.attributes import escape_surrogates

logger = logging.getLogger("monitel_tensorboard")

_numbers = itertools.count()  # in file names, by which readers sort
_TEXT = create_summary_metadata(display_name=None, description=None)
_ONE_STRING = {"dtype": DT_STRING, "tensor_shape": TensorShapeProto()}
_EVENT_FILE = "events.out.tfevents"  # TensorBoard finds a file by this part of its name
_CONFIG_FILE = f"{_EVENT_FILE}.0000000000.config"  # the first one in each order, as readers keep what they read first


class Point(NamedTuple):
    """A number, a text, a distribution or hyperparameters, of one tag at one step."""

    tag: str
    value: float | str | Histogram | dict[str, str | bool | float]
    step: int | None
    walltime: float
    recorded: bool = False
    whole: bool = False


def claim(folder: Path, run: Path, world_size: int) -> bool:
    """Create the folder of a rank in that of its run; return True if no other run or process has event files there.

    The first call for a folder creates a file whose name has the number of ranks.
    """
    name = f"{_CONFIG_FILE}.{world_size}"
    try:
        if any(path.name != name for path in run.glob(f"{_CONFIG_FILE}.*")):
            return False
        folder.mkdir(parents=True, exist_ok=True)
        if any("tfevents" in path.name and _own() not in path.name for path in folder.iterdir()):
            return False
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return not folder.is_dir()
    except OSError:
        pass
    return True


class EventFile:
    """A file to which points are appended in slices; a slice is written completely or not at all.

    It is closed after each one: a forked child inherits nothing, and a network file system shows all written slices.
    Readers keep the first hyperparameters that they find, so all are in another file, too, which is replaced.
    """

    def __init__(self, log_dir: str, suffix: str = "", purge_step: int | None = None) -> None:
        self._log_dir = Path(log_dir)
        self._suffix = suffix
        self._purge_step = purge_step
        self._path = self._new_path()
        self.started = False

    def append(self, points: Sequence[Point]) -> None:
        """Append points. After an error the file is unchanged or replaced; the points can be written again."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        hyperparameters = [point for point in points if isinstance(point.value, dict)]
        if hyperparameters:
            self._write_config(hyperparameters[-1:])
        size: int | None = None
        try:
            with self._path.open("ab", buffering=0) as file:
                size = file.tell()
                records = _records(points, with_version=size == 0, purge_step=self._purge_step)
                while records:  # an unbuffered write may be partial
                    records = records[file.write(records) :]
        except BaseException:
            if size is not None:
                self._cut(size)
            raise
        self.started = True

    def _write_config(self, points: Sequence[Point]) -> None:
        path = next(self._log_dir.glob(f"{_CONFIG_FILE}.*"), self._log_dir / f"{_CONFIG_FILE}.1")
        new = path if path.exists() and not path.stat().st_size else self._log_dir / f".config.{os.getpid()}"
        new.write_bytes(_records(points, with_version=True))
        new.replace(path)  # a reader may have opened the empty file

    def _cut(self, size: int) -> None:
        try:
            os.truncate(self._path, size)
        except OSError:  # readers stop at an incomplete record: continue in another file
            self._path = self._new_path()

    def _new_path(self) -> Path:
        return self._log_dir / f"{_EVENT_FILE}.{int(time.time()):010d}{_own()}{next(_numbers):04d}{self._suffix}"


def _own() -> str:
    """Return the part of a file's name that a process has, in TensorBoard's and torch's files, too."""
    return f".{socket.gethostname()}.{os.getpid()}."


def _records(points: Sequence[Point], *, with_version: bool, purge_step: int | None = None) -> memoryview:
    file = io.BytesIO()
    records = RecordWriter(file)
    if with_version:
        now = time.time()
        records.write(Event(wall_time=now, step=purge_step, file_version="brain.Event:2").SerializeToString())
        if purge_step is not None:  # as torch's writer
            session = SessionLog(status=SessionLog.START)
            records.write(Event(wall_time=now, step=purge_step, session_log=session).SerializeToString())
    for point in points:
        summary = Summary(value=[_value(point)])
        records.write(Event(wall_time=point.walltime, step=point.step, summary=summary).SerializeToString())
    return file.getbuffer()


def _value(point: Point) -> Any:
    tag = escape_surrogates(point.tag)  # protobuf rejects lone surrogates
    if isinstance(point.value, str):
        text = TensorProto(string_val=[escape_surrogates(point.value).encode()], **_ONE_STRING)
        return Summary.Value(tag=tag, metadata=_TEXT, tensor=text)
    if isinstance(point.value, Histogram):
        return Summary.Value(tag=tag, histo=_histogram(point.value))
    if isinstance(point.value, dict):
        metadata = _hyperparameters(point.value, point.walltime)
        return Summary.Value(tag=tag, metadata=metadata, tensor=hparams_metadata.NULL_TENSOR)
    return Summary.Value(tag=tag, simple_value=point.value)


def _histogram(histogram: Histogram) -> Any:
    """Return the message for the histogram tab, in which each bucket begins at the end of the previous one."""
    found = HistogramProto(min=histogram.min, max=histogram.max, num=histogram.count, sum=histogram.sum)
    end = histogram.min
    for low, high, count in histogram.buckets():
        if low > end:
            found.bucket_limit.append(low)
            found.bucket.append(0)
        found.bucket_limit.append(high)
        found.bucket.append(count)
        end = high
    return found


def _hyperparameters(values: dict[str, str | bool | float], start_time: float) -> Any:
    """Return the metadata for the tab of hyperparameters, as torch's ``SummaryWriter.add_hparams`` writes it."""
    data = HParamsPluginData()
    data.session_start_info.start_time_secs = start_time
    for name, value in values.items():
        target = data.session_start_info.hparams[escape_surrogates(name)]
        if isinstance(value, bool):
            target.bool_value = value
        elif isinstance(value, str):
            target.string_value = escape_surrogates(value)
        else:
            target.number_value = value
    return hparams_metadata.create_summary_metadata(data)
