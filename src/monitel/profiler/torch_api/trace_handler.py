"""Callback that writes each trace for TensorBoard."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.profiler.torch_api.kineto_profile import _KinetoProfile


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[_KinetoProfile], None]:
    """Return a callback for ``profile(on_trace_ready=...)`` that writes each trace to a file in a folder.

    The callback raises RuntimeError if the folder cannot be created.

    Args:
        dir_name: Folder, created when the first trace is ready.
        worker_name: Beginning of the file name, unique in a distributed job; by default ``<host>_<pid>``.
        use_gzip: Compress the files.
        use_python_export: Accepted without effect.
    """

    def handler(prof: _KinetoProfile) -> None:
        try:
            Path(dir_name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeError(f"Can't create directory: {os.fspath(dir_name)}") from error
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        suffix = ".gz" if use_gzip else ""
        file = Path(dir_name, f"{worker}.{time.time_ns()}.pt.trace.json{suffix}")
        prof.export_chrome_trace(file, use_python_export=use_python_export)

    return handler
