"""Execution traces: the recorded ranges as a graph of nodes, in the format of torch's ExecutionTraceObserver."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from monitel.profiler import ranges
from monitel.profiler.ranges import Listening, Range
from monitel.profiler.trace import atomic_file, json_text, target_of

_log = logging.getLogger("monitel.profiler")
_SCHEMA = "1.1.1-chakra.0.0.4"  # as written by torch 2.13
_PROCESS, _FIRST_THREAD = 1, 2
_NO_VALUES: dict[str, list[Any]] = {"values": [], "shapes": [], "types": [], "strides": []}


class ExecutionTraceObserver:
    """Writes the ranges that begin while it runs to a file, as a graph. A profile starts and stops it.

    Unlike in torch, any number of observers can be registered at the same time. :meth:`unregister_callback` writes the
    file atomically, compressed if its name ends with ``.gz``. Neither operators nor resources are recorded.

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
        self._pid = os.getpid()

    def __del__(self) -> None:
        self.cleanup()

    @staticmethod
    def build_execution_trace_obs_from_env() -> ExecutionTraceObserver | None:
        """Return None: environment variables do not create observers."""
        return None

    def set_extra_resource_collection(self, val: bool) -> None:
        """Do nothing: there are no resources to collect."""

    def register_callback(self, output_file_path: str | os.PathLike[str]) -> ExecutionTraceObserver:
        """Set the file, and return the observer. No effect if a file is already set.

        Raises:
            FileNotFoundError: The folder of the file does not exist.
        """
        if not self._registered:
            self._path = str(target_of(output_file_path))
            self._registered = True
            self._start_ns = ranges.now()
            self._pid = os.getpid()
            self._began = []
        return self

    def unregister_callback(self) -> None:
        """Stop, and write the file. Idempotent.

        Raises:
            OSError: The file cannot be written.
        """
        if not self._registered:
            return
        self.stop()
        self._registered = False
        if self._pid == os.getpid():  # the file of a forked child would replace the parent's
            with atomic_file(self._path) as file:
                file.writelines(self._lines())

    @property
    def is_registered(self) -> bool:
        """True if a file is set and not written yet."""
        return self._registered

    def is_running(self) -> bool:
        """Return whether ranges are being recorded."""
        return self._listening is not None

    def start(self) -> None:
        """Start recording ranges. No effect unless a file is set."""
        if self._registered and self._listening is None:
            self._listening = ranges.listen(began=self._began.append)

    def stop(self) -> None:
        """Stop recording ranges."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def cleanup(self) -> None:
        """Stop, and write the file, as a profile does when its ``with`` block ends. If that fails, log it."""
        try:
            self.unregister_callback()
        except FileNotFoundError as error:  # the folder was removed: nobody wants the file
            _log.info("the execution trace was not written: %s", error)
        except Exception as error:
            _log.warning("the execution trace was not written: %s: %s", type(error).__name__, error)

    def get_output_file_path(self) -> str | None:
        """Return the path of the file, None if no file was set."""
        return self._path or None

    def get_resources_dir(self, can_create: bool = False) -> str | None:  # noqa: ARG002  torch's signature
        """Return None: there are no resources to collect."""
        return None

    @staticmethod
    def get_resources_dir_for_et_path(
        trace_path: str | os.PathLike[str],  # noqa: ARG004  torch's signature
        create_dir: bool = False,  # noqa: ARG004  torch's signature
    ) -> str | None:
        """Return None: there are no resources to collect."""
        return None

    def _lines(self) -> Iterator[str]:
        head = {"schema": _SCHEMA, "pid": os.getpid(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}
        yield f'{json_text(head)[:-1]},"start_ts":{self._start_ns // 1000},"nodes":[\n'
        yield json_text(_node(_PROCESS, "[pytorch|profiler|execution_trace|process]", _PROCESS, 0))
        tracks = dict(zip(dict.fromkeys(each.track for each in self._began), count(_FIRST_THREAD)))
        for track, number in tracks.items():
            node = _node(number, "[pytorch|profiler|execution_trace|thread]", _PROCESS, track.thread_id)
            yield f",\n{json_text(node)}"
        numbers: dict[Range | None, int] = dict(zip(self._began, count(_FIRST_THREAD + len(tracks))))
        for each in self._began:
            around = numbers.get(each.parent, tracks[each.track])
            node = _node(numbers[each], each.name, around, each.track.thread_id, args=each.args, record=each.number)
            yield f",\n{json_text(node)}"
        yield f'\n],"finish_ts":{ranges.now() // 1000}}}\n'


def _node(number: int, name: str, around: int, thread_id: int, *, args: Any = None, record: int = 0) -> dict[str, Any]:
    inputs = _NO_VALUES if args is None else {"values": [args], "shapes": [[]], "types": ["String"], "strides": [[]]}
    attributes = [("rf_id", "uint64", record), ("scope", "uint64", 7), ("tid", "uint64", thread_id)]
    return {
        "id": number,
        "name": name,
        "ctrl_deps": around,
        "inputs": inputs,
        "outputs": _NO_VALUES,
        "attrs": [{"name": key, "type": kind, "value": value} for key, kind, value in attributes],
    }
