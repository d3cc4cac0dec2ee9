"""torch's ExecutionTraceObserver: what ran and within what, as a graph in a file of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

from monitel.profiler import _ranges, ranges
from monitel.profiler.json_text import json_text
from monitel.profiler.whole_file import target_of, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler.ranges import Listening, Range

_SCHEMA = "1.1.1-chakra.0.0.4"  # the form that torch 2.13 writes
_PROCESS, _FIRST_THREAD = 1, 2
_NOTHING: dict[str, list[Any]] = {"values": [], "shapes": [], "types": [], "strides": []}


class ExecutionTraceObserver:
    """Writes the ranges that end while it runs as a graph of nodes; a profile starts and stops it.

    Unlike torch's, any number of them can be registered at once. The file is written as a whole by
    :meth:`unregister_callback`, compressed where its name ends with ``.gz``.

    Example:
        >>> import json
        >>> from pathlib import Path
        >>> from monitel.profiler import ExecutionTraceObserver, profile, record_function
        >>> with profile(execution_trace_observer=ExecutionTraceObserver().register_callback("graph.json")):
        ...     with record_function("step"):
        ...         pass
        >>> [node["name"] for node in json.loads(Path("graph.json").read_text())["nodes"]][-1]
        'step'
    """

    def __init__(self) -> None:
        self._path = ""
        self._registered = False
        self._began: list[Range] = []
        self._listening: Listening | None = None
        self._start_ns = 0
        self.extra_resources_collection = False
        self.resources_dir = ""

    def __del__(self) -> None:
        self.unregister_callback()

    @staticmethod
    def build_execution_trace_obs_from_env() -> ExecutionTraceObserver | None:
        """An observer that writes to a temporary file if ENABLE_PYTORCH_EXECUTION_TRACE is 1, else None.

        With ENABLE_PYTORCH_EXECUTION_TRACE_EXTRAS=1 it has a folder for resources.
        """
        if os.environ.get("ENABLE_PYTORCH_EXECUTION_TRACE", "0") != "1":
            return None
        import tempfile  # here, because nobody else needs it

        try:
            handle, path = tempfile.mkstemp(suffix=".et.json")
        except OSError as error:
            what = "Exception on creating default temporary file"
            warn(f"Execution trace will not be recorded. {what}: {error}", stacklevel=2)
            return None
        os.close(handle)
        observer = ExecutionTraceObserver().register_callback(path)
        observer.set_extra_resource_collection(os.environ.get("ENABLE_PYTORCH_EXECUTION_TRACE_EXTRAS", "0") == "1")
        return observer

    def set_extra_resource_collection(self, val: bool) -> None:
        """Whether there is a folder beside the file, for resources that its reader needs."""
        self.extra_resources_collection = val
        if val:
            self.get_resources_dir(can_create=True)

    def register_callback(self, output_file_path: str | os.PathLike[str]) -> ExecutionTraceObserver:
        """Choose the file, once; the observer itself is returned.

        Raises:
            FileNotFoundError: Its folder is not there.
        """
        if not self._registered:
            self._path = str(target_of(output_file_path))
            self._registered = True
            self._start_ns = _ranges.now()
            self._began = []
        return self

    def unregister_callback(self) -> None:
        """Stop, and write the file; a second time does nothing."""
        if not self._registered:
            return
        self.stop()
        self._registered = False
        with whole_file(self._path) as file:
            file.writelines(self._lines())

    @property
    def is_registered(self) -> bool:
        """Whether a file was chosen and is not written yet."""
        return self._registered

    def is_running(self) -> bool:
        """Whether ranges are taken in."""
        return self._listening is not None

    def start(self) -> None:
        """Take in ranges from now on, if a file was chosen."""
        if self._registered and self._listening is None:
            self._listening = ranges.listen(began=self._began.append)

    def stop(self) -> None:
        """Take in no more."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def cleanup(self) -> None:
        """Write the file: what a profile calls when it is left."""
        self.unregister_callback()

    def get_output_file_path(self) -> str | None:
        """The file, None before one was chosen."""
        return self._path or None

    def get_resources_dir(self, can_create: bool = False) -> str | None:
        """The folder for resources; None if it was not asked for, or is not there."""
        if self.extra_resources_collection and not self.resources_dir:
            self.resources_dir = self.get_resources_dir_for_et_path(self._path, create_dir=can_create) or ""
        return self.resources_dir or None if self.extra_resources_collection else None

    @staticmethod
    def get_resources_dir_for_et_path(trace_path: str | os.PathLike[str], create_dir: bool = False) -> str | None:
        """The folder for resources of a trace: its name without suffix, and ``_resources``."""
        folder = Path(trace_path).with_suffix("")
        folder = folder.with_name(f"{folder.name}_resources")
        if not folder.exists():
            if not create_dir:
                return None
            try:
                folder.mkdir()
            except OSError as error:
                warn(f"Execution trace exception when creating {folder}: {error}", stacklevel=2)
                return None
        return str(folder)

    def _lines(self) -> Iterator[str]:
        head = {"schema": _SCHEMA, "pid": os.getpid(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}
        yield f'{json_text(head)[:-1]},"start_ts":{self._start_ns // 1000},"nodes":[\n'
        yield json_text(_node(_PROCESS, "[pytorch|profiler|execution_trace|process]", _PROCESS, 0))
        threads = {id(track): track for track in (each.track for each in self._began)}
        for number, key in enumerate(threads, _FIRST_THREAD):
            node = _node(number, "[pytorch|profiler|execution_trace|thread]", _PROCESS, threads[key].thread_id)
            yield f",\n{json_text(node)}"
        lines = {key: number for number, key in enumerate(threads, _FIRST_THREAD)}
        first = _FIRST_THREAD + len(threads)
        numbers = {id(each): number for number, each in enumerate(self._began, first)}
        for each in self._began:
            around = numbers.get(id(each.parent), lines[id(each.track)])
            yield f",\n{json_text(_node(numbers[id(each)], each.name, around, each.track.thread_id, each.args))}"
        yield f'\n],"finish_ts":{_ranges.now() // 1000}}}\n'


def _node(number: int, name: str, around: int, thread_id: int, given: Any = None) -> dict[str, Any]:
    inputs = _NOTHING if given is None else {"values": [given], "shapes": [[]], "types": ["String"], "strides": [[]]}
    attributes = [("rf_id", "uint64", number), ("scope", "uint64", 7), ("tid", "uint64", thread_id)]
    return {
        "id": number,
        "name": name,
        "ctrl_deps": around,
        "inputs": inputs,
        "outputs": _NOTHING,
        "attrs": [{"name": key, "type": kind, "value": value} for key, kind, value in attributes],
    }
