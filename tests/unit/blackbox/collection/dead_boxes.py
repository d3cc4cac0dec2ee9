"""Black boxes of processes that are dead, made by hand, and what collectors make of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from tests.support.inbox import records_of
from tests.support.spools import folders, make_request
from tests.unit.validity.samples import envelope

from monitel_otel import SCOPE
from monitel_otlp.black_box.contents import Header, header_values
from monitel_otlp.black_box.cut import Cut
from monitel_otlp.boxes.layout import CUTS, HEADER, LOCK, REQUEST, pack
from monitel_otlp.collection.collector import Collected, collect_boxes
from monitel_otlp.messages.request import REQUESTS
from monitel_otlp.spool.lock import Owner, this_process
from monitel_otlp.spool.request_segment import MAGIC
from monitel_otlp.spool.request_segment import pack as pack_request
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel_otlp.messages.request import FrozenRequest

SPOOL = "20260101-000000-7-123abcdef-0a1b2c3d"  # as a pipeline with the mark 0a1b2c3d names its folder


def dead_process() -> Owner:
    """Return the identity of a process that has ended."""
    return this_process()._replace(pid="4194000", start="1")


def header_of(spool_dir: Path, owner: Owner | None = None) -> Header:
    """Return the header of a box."""
    name, version, schema = SCOPE
    scope, mapping = (name, version, schema), ("cumulative", 1, "both")
    return Header(owner or dead_process(), time.time_ns() - 10**9, _resource(), scope, mapping, str(spool_dir), "")


def cut_of(**fields: Any) -> Cut:
    """Return a cut that is empty except for some fields."""
    empty = Cut(1, time.time_ns(), time.monotonic_ns(), 0, [], 1, [], b"", b"", [], {})
    return empty._replace(**fields)


def make_box(
    root: Path,
    spool_dir: Path,
    *,
    number: int = 1,
    requests: Iterable[FrozenRequest] = (),
    owner: Owner | None = None,
    cut: Cut | None = None,
) -> Path:
    """Make the box of a dead process, and return it.

    Args:
        root: The folder that holds boxes.
        spool_dir: The spool of the process.
        number: Part of the name of the box.
        requests: The finished requests.
        owner: The process.
        cut: The newest cut; by default one with all requests.
    """
    given = list(requests)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    box = root / f"4194000-1-{number:06x}"
    box.mkdir(mode=0o700)
    write_file(box / LOCK, b"")
    write_file(box / HEADER, pack(header_values(header_of(spool_dir, owner))))
    write_file(box / CUTS[0], pack(tuple(cut or cut_of(last_request=len(given)))))
    for key, request in enumerate(given, 1):
        write_file(box / f"{REQUEST}{key}-{request.signal}", MAGIC + pack_request(request))
    return box


def write_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.write_bytes(content)
    path.chmod(0o600)


def box_with_requests(root: Path, spool_dir: Path, number: int = 1) -> Path:
    """Make a box with a metrics request and a logs request, whose bodies begin with its number."""
    return make_box(
        root,
        spool_dir,
        number=number,
        requests=[make_request(0, "metrics", b"%d metrics" % number), make_request(0, "traces", b"%d traces" % number)],
    )


def collect(boxes: Path, fallback: Path = Path("fallback")) -> Collected:
    """Collect the boxes in a folder."""
    return collect_boxes(boxes, fallback=fallback)


def spooled_bodies(root: Path) -> list[bytes]:
    """Return the bodies of the requests in all spools below a folder, except those of deaths, sorted."""
    requests = [request for folder in folders(root) for request in Spool(folder).peek()]
    return sorted(request.body for request in requests if request.signal != "logs")


def spooled_deaths(root: Path) -> list[dict[str, Any]]:
    """Return the attributes of each ``process.died`` in all spools below a folder."""
    requests = [request for folder in folders(root) for request in Spool(folder).peek(["logs"])]
    records = [record for request in requests for record in records_of(request.message())]
    return [record.attributes for record in records if record.name == "process.died"]


def take_spools(root: Path) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Remove all spools below a folder, as after their delivery, and return their bodies and deaths."""
    taken = spooled_bodies(root), spooled_deaths(root)
    for folder in folders(root):
        rmtree(folder)
    return taken


def _resource() -> bytes:
    """Return a serialized resource with what monitel's pipelines have in it."""
    metrics: Any = ResourceMetrics()
    message = REQUESTS["metrics"]()
    envelope("metrics", message)
    metrics.resource.CopyFrom(message.resource_metrics[0].resource)
    metrics.schema_url = message.resource_metrics[0].schema_url
    content: bytes = metrics.SerializeToString()
    return content


def hidden(root: Path) -> list[str]:
    """Return the unfinished spools below a folder."""
    return [name for _, names, _ in os.walk(root) for name in names if name.startswith(".")]
