"""Takes away what another platform does not have, before anything else is imported: MONITEL_TEST_PLATFORM names it.

This is not that platform, but nothing that is loaded from here on can use what the platform lacks. Modules of the
standard library that look at the platform when they are imported, such as subprocess, are imported first: they keep
what they have.
"""

import asyncio  # noqa: F401
import builtins
import concurrent.futures.thread  # noqa: F401
import ctypes
import errno
import faulthandler
import functools
import importlib.abc
import importlib.util
import io
import mmap
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import platform
import select
import selectors
import shutil
import signal
import socket
import ssl  # noqa: F401
import subprocess  # noqa: F401
import sys
import sysconfig
import tempfile
import time
import urllib.request as _requests  # noqa: F401
import uuid  # noqa: F401
from collections.abc import Callable
from typing import Any

WINDOWS = os.environ["MONITEL_TEST_PLATFORM"] == "windows"
WINDOWS_SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}
WINDOWS_FLAGS = {"O_RDONLY", "O_WRONLY", "O_RDWR", "O_APPEND", "O_CREAT", "O_EXCL", "O_TRUNC"}

#: Names that neither macOS nor Windows has, of those that programs such as monitel use.
MISSING: dict[Any, str] = {
    os: """
        memfd_create pidfd_open splice copy_file_range getrandom fdatasync waitid posix_fallocate O_TMPFILE O_PATH
        getxattr sched_getaffinity
    """,
    time: "CLOCK_BOOTTIME",
    signal: "sigwaitinfo sigtimedwait",
    socket: "SOCK_CLOEXEC MSG_NOSIGNAL",
    select: "epoll",
    selectors: "EpollSelector",
    mmap: "MAP_POPULATE",
}
MISSING_ON_WINDOWS: dict[Any, str] = {
    os: """
        register_at_fork fork getuid geteuid getgid getpgrp getsid setsid setpgid uname pread pwrite fchmod fchown chown
        statvfs sysconf killpg wait wait4 WNOHANG WUNTRACED WIFEXITED WIFSIGNALED WIFSTOPPED WEXITSTATUS WTERMSIG
        WSTOPSIG mkfifo getloadavg nice sendfile posix_spawn tcgetpgrp sync set_blocking
    """,
    time: "clock_gettime clock_gettime_ns CLOCK_MONOTONIC CLOCK_REALTIME",
    signal: "pthread_sigmask pthread_kill alarm pause setitimer",
    socket: "AF_UNIX SO_REUSEPORT send_fds recv_fds",
    select: "poll",
    selectors: "PollSelector",
    faulthandler: "register unregister",
}
#: psutil reads /proc here, and is optional.
BLOCKED = {"psutil", "psutil._pslinux"}
if WINDOWS:
    BLOCKED |= {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "_posixshmem"}
    BLOCKED |= {"multiprocessing.popen_fork", "multiprocessing.popen_forkserver"}

_TICK_NS = 15_625_000  # of the clocks of Windows before CPython 3.13


class _Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} (this platform does not have it)", name=name)


def _spec_of(name: str, package: str | None = None) -> Any:
    return None if name in BLOCKED else _find_spec(name, package)


_find_spec, importlib.util.find_spec = importlib.util.find_spec, _spec_of


def _builtin(call: Any, function: Any) -> Any:
    return functools.update_wrapper(functools.partial(call), function)


def _without_files(function: Any) -> Any:
    """Return a function of a path, for which there are no folders /proc, /sys and /dev/shm."""

    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if not isinstance(path, int):
            text = f"{os.fsdecode(path)}/"
            if text.startswith(("/proc/", "/sys/", "/dev/shm/")):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return function(path, *arguments, **options)

    return _builtin(call, function)


def _without_descriptors(function: Any) -> Any:
    """Return a function of a path that takes no descriptor of a folder, and opens none."""

    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if {"dir_fd", "src_dir_fd", "dst_dir_fd"} & options.keys():
            raise NotImplementedError("dir_fd unavailable on this platform")
        if isinstance(path, int) and function.__name__ in {"listdir", "scandir", "chmod"}:
            raise TypeError("path should be string, bytes, os.PathLike or None, not int")
        if function.__name__ == "open" and os.path.isdir(path):  # noqa: PTH112  a path or its text
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return function(path, *arguments, **options)

    return _builtin(call, function)


def _replace(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(module, name, make(getattr(module, name)))


def _of_windows(signal_function: Any) -> Any:
    """Return ``signal.signal()`` of Windows, which knows six signals."""

    def call(number: int, handler: Any) -> Any:
        if number not in {getattr(signal, name) for name in WINDOWS_SIGNALS}:
            raise ValueError("invalid signal value")
        return signal_function(number, handler)

    return call


def _never_signals(kill: Any) -> Any:
    """Return ``os.kill()``, which on Windows ends the process, or sends Ctrl+C, where others ask whether it runs."""

    def call(pid: int, number: int) -> None:
        if number != signal.SIGTERM:
            raise AssertionError(f"os.kill(..., {number})")
        kill(pid, number)

    return call


def _needs_a_name(library: Any) -> Any:
    """Return ``ctypes.CDLL``, which on Windows does not open the program itself."""

    def call(name: str | None = None, *arguments: Any, **options: Any) -> Any:
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        return library(name, *arguments, **options)

    return call


def _take_away(missing: dict[Any, str]) -> None:
    for module, names in missing.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


def _become_windows() -> None:
    _take_away(MISSING_ON_WINDOWS)
    kept = {*WINDOWS_SIGNALS, "SIG_DFL", "SIG_IGN"}
    foreign: list[tuple[Any, str]] = [
        *((signal, name) for name in vars(signal) if name.startswith("SIG") and name not in kept),
        *((os, name) for name in vars(os) if name.startswith("O_") and name not in WINDOWS_FLAGS),
        *((mmap, name) for name in vars(mmap) if name.startswith(("MAP_", "PROT_", "MADV_"))),
    ]
    for module, name in foreign:
        delattr(module, name)
    for name in ("open", "stat", "lstat", "unlink", "remove", "mkdir", "rmdir", "rename", "replace"):
        _replace(os, name, _without_descriptors)
    for name in ("listdir", "scandir", "chmod"):
        _replace(os, name, _without_descriptors)
    os.supports_dir_fd, os.supports_fd = set(), set()
    vars(shutil)["_use_fd_functions"] = False
    vars(tempfile)["_text_openflags"] = vars(tempfile)["_bin_openflags"] = os.O_RDWR | os.O_CREAT | os.O_EXCL
    _replace(signal, "signal", _of_windows)
    _replace(os, "kill", _never_signals)
    _replace(ctypes, "CDLL", _needs_a_name)
    _replace(time, "monotonic_ns", lambda now: lambda: now() // _TICK_NS * _TICK_NS)
    _replace(time, "monotonic", lambda _now: lambda: time.monotonic_ns() / 1e9)


platform.uname()  # it is kept: elsewhere Python asks for it in other ways
sysconfig.get_config_vars()  # the same
sys.meta_path.insert(0, _Blocked())
for blocked in BLOCKED:
    sys.modules.pop(blocked, None)
_take_away(MISSING)
if hasattr(os, "process_cpu_count"):  # from CPython 3.13 on it uses sched_getaffinity()
    _replace(os, "process_cpu_count", lambda _function: os.cpu_count)
if WINDOWS:
    _become_windows()
for function_name in ("stat", "lstat", "listdir", "scandir", "readlink", "open", "access", "mkdir", "mkfifo"):
    if not hasattr(os, function_name):
        continue
    function = getattr(os, function_name)
    _replace(os, function_name, _without_files)
    for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if function in supporting:
            supporting.add(getattr(os, function_name))
_replace(io, "open", _without_files)
vars(builtins)["open"] = io.open
vars(selectors)["DefaultSelector"] = getattr(selectors, "PollSelector", selectors.SelectSelector)
vars(multiprocessing.connection)["_WaitSelector"] = selectors.DefaultSelector
vars(platform)["system"] = lambda: "Windows" if WINDOWS else "Darwin"
sys.platform = "win32" if WINDOWS else "darwin"
multiprocessing.set_start_method("spawn")
if WINDOWS:
    vars(multiprocessing)["get_all_start_methods"] = lambda: ["spawn"]
