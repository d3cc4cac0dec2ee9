"""A million events while the backend is away: memory, disk, and whether each event is counted."""

import os
import socket
import tempfile
from pathlib import Path

from row import Row

import monitel
import monitel_otlp

_EVENTS = 1_000_000
_MEMORY_BYTES = 128 << 20  # 64 MiB of events, 16 MiB of the box, which is mapped, and what the disk thread holds
_DISK_BYTES = 1 << 30
_OWN = 10  # events of monitel itself, at most
_WHAT = f"{_EVENTS:,} events, no backend"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    with (
        tempfile.TemporaryDirectory() as folder,
        monitel_otlp.configure(endpoint=endpoint, spool_dir=folder) as pipeline,
    ):
        monitel.emit("first")
        before, memory = resident_bytes(), 0
        for number in range(_EVENTS):
            monitel.emit("epoch", epoch=number, loss=0.25, phase="train")
            if number % 10_000 == 0:
                memory = max(memory, resident_bytes() - before)
        account = pipeline.account()["logs"]
        if not _EVENTS < account.recorded < _EVENTS + _OWN:
            raise SystemExit(f"expected {_EVENTS} events and some of monitel: {account}")
        pipeline.shutdown()
        after = pipeline.account()["logs"]
        on_disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    Row(f"{_WHAT}: resident memory", memory, unit="B", most=_MEMORY_BYTES).put()
    Row(f"{_WHAT}: in the spool", on_disk, unit="B", most=_DISK_BYTES).put()
    for when, each in (("before the end", account), ("after the end", after)):
        known = each.delivered + each.on_disk + each.waiting + sum(each.dropped.values())
        Row(f"{_WHAT}: not accounted for {when}", abs(each.recorded - known), unit="", most=0).put()


if __name__ == "__main__":
    main()
