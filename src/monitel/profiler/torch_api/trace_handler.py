"""A callback that writes each trace where TensorBoard finds it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.profiler.cycles import _KinetoProfile


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[_KinetoProfile], None]:
    """Write each trace into a folder, for ``profile(on_trace_ready=...)``.

    Args:
        dir_name: The folder; it is made when the first trace is ready.
        worker_name: The beginning of the file's name, unique in a distributed job; ``<host>_<pid>`` by default.
        use_gzip: Compress.
        use_python_export: Without effect: there is one way to write a trace.

    Raises:
        RuntimeError: By the callback, where the folder cannot be made.
    """

    def handler(prof: _KinetoProfile) -> None:
        try:
            Path(dir_name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeError(f"Can't create directory: {os.fspath(dir_name)}") from error
        worker = worker_name or f"{os.uname().nodename}_{os.getpid()}"
        suffix = ".gz" if use_gzip else ""
        file = Path(dir_name, f"{worker}.{time.time_ns()}.pt.trace.json{suffix}")
        prof.export_chrome_trace(file, use_python_export=use_python_export)

    return handler
