"""A million events while the backend is away: memory, disk, and whether each event is counted."""

import os
import socket
import tempfile
import time
from pathlib import Path

from processes import resident_bytes
from race import optional
from row import Row

import monitel

_EVENTS = 1_000_000
_MEMORY_BYTES = 128 << 20  # 64 MiB of events, 16 MiB of the box, which is mapped, and what the disk thread holds
_BOX_BYTES = 16 << 20
_DISK_BYTES = 1 << 30
_OWN = 10  # events of monitel itself, at most
_WHAT = f"{_EVENTS:,} events, no backend"


def main() -> None:
    """Emit them in one thread, as fast as it can."""
    otlp = optional("monitel_otlp")
    if otlp is None or not Path("/proc/self/statm").exists():
        Row(_WHAT, None).put()
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder, otlp.configure(endpoint=endpoint, spool_dir=folder) as pipeline:
        monitel.emit("first")
        before, begin = resident_bytes(os.getpid()), time.thread_time_ns()
        memory = in_box = 0
        room = pipeline.engine.box.room
        for number in range(_EVENTS):
            monitel.emit("epoch", epoch=number, loss=0.25, phase="train")
            if number % 10_000 == 0:
                memory = max(memory, resident_bytes(os.getpid()) - before)
                in_box = max(in_box, room.used)
        took = time.thread_time_ns() - begin
        account = pipeline.account()["logs"]
        if not _EVENTS < account.recorded < _EVENTS + _OWN:
            raise SystemExit(f"expected {_EVENTS} events and some of monitel: {account}")
        pipeline.shutdown()
        after = pipeline.account()["logs"]
        on_disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    Row(f"{_WHAT}: CPU of the caller for each", took / _EVENTS).put()
    Row(f"{_WHAT}: resident memory", memory, unit="B", most=_MEMORY_BYTES).put()
    Row(f"{_WHAT}: in the box", in_box, unit="B", most=_BOX_BYTES).put()
    Row(f"{_WHAT}: in the spool", on_disk, unit="B", most=_DISK_BYTES).put()
    for when, each in (("before the end", account), ("after the end", after)):
        known = each.delivered + each.on_disk + each.waiting + sum(each.dropped.values())
        Row(f"{_WHAT}: not accounted for {when}", abs(each.recorded - known), unit="", most=0).put()
    Row(f"{_WHAT}: dropped", sum(after.dropped.values()), unit="").put()


if __name__ == "__main__":
    main()
