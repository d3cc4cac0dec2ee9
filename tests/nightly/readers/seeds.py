"""Files that real processes have left, from which the fuzzer of the readers begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from tests.nightly.readers.targets import pack_archive
from tests.support.pipelines import HOLD_ENCODER

from monitel_otlp.black_box.contents import header_values, read_header
from monitel_otlp.black_box.cut import Cut
from monitel_otlp.boxes.layout import CONTEXT, CUTS, HEADER, JOURNALS, LOCK, pack, unpack
from monitel_otlp.ledger.run_folder import FILE, LEDGERS
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.folder import Folder
from monitel_otlp.spool.lock import Owner
from monitel_otlp.values.file import VALUES

if TYPE_CHECKING:
    from pathlib import Path

_RECORD = """
import glob, logging, os, sys, time
import monitel, monitel_otlp
from monitel.profiler import record_function
logging.disable()
pipeline = monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool", service_name="llm")
loss = monitel.Stat("train.loss", [monitel.MEAN, monitel.HISTOGRAM], 60.0, attributes={"split": "train"})
total = monitel.Stat("samples", [monitel.COUNT, monitel.SUM], 60.0)
def record():
    monitel.set_step(7)
    for number in range(3):
        loss.add(0.5 * number)
        total.add(number)
        monitel.emit("event", number=number, text="\\u20ac", share=0.5, last=True)
        with record_function("forward", args={"batch": number}):
            pass
    monitel.counter("train.samples").add(8)
record()
monitel.flush()
"""
#: Ends with finished requests in the spool, and with raw items, which could not be encoded in time.
_SPOOLED = f"{_RECORD}pipeline.force_flush(1)\nrecord()\nmonitel.flush()\n{HOLD_ENCODER}"
#: Is killed when its black box has two cuts, beside requests that no backend has acknowledged.
_KILLED = f"""{_RECORD}
pipeline.force_flush(0.2)
record()
with monitel.WaitCounter("all_reduce").guard():
    deadline = time.monotonic() + 50
    while min([os.path.getsize(name) for name in glob.glob("boxes/*/cut-?")] or [0]) < 1000:  # with open windows
        assert time.monotonic() < deadline, "no cuts"
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def make_spool(folder: Path) -> Path:
    """Return a spool with requests and raw items of all signals."""
    _run(folder, _SPOOLED)
    (spool,) = find_spools(folder / "spool").folders
    return spool


def make_box(folder: Path) -> Path:
    """Return the black box of a killed process."""
    _run(folder, _KILLED)
    (box,) = (folder / "boxes").iterdir()
    return box


def make_corpora(folder: Path) -> Path:
    """Return a folder that has, for each target, a folder with inputs."""
    spool, box, corpora = make_spool(_made(folder / "spooled")), make_box(_made(folder / "killed")), folder / "corpora"
    with closing(Folder.open(box)) as opened:
        header = read_header(opened)._replace(
            owner=Owner("other-host", "boot", "1", "7", "1"), spool_dir="/nowhere/spool"
        )
    (box / HEADER).write_bytes(pack(header_values(header)))
    cut = Cut(*unpack((box / CUTS[0]).read_bytes(), CUTS[0]))
    inputs = {
        "requests_of_a_segment": [each.read_bytes() for each in sorted(spool.glob("*.spool"))],
        "items_of_a_segment": [each.read_bytes() for each in sorted(spool.glob("*.raw"))],
        "journal": [(box / JOURNALS[0]).read_bytes()],
        "context_page": [(box / CONTEXT).read_bytes()],
        "open_windows": [cut.windows],
        "spool": [pack_archive(_files(spool))],
        "box": [pack_archive(_files(box))],
        "ledger": [each.read_bytes() for each in sorted(folder.glob(f"*/spool/{LEDGERS}/*/{FILE}"))],
        "values": [each.read_bytes() for each in sorted(folder.glob(f"*/spool/{LEDGERS}/*/{VALUES}"))],
        "run": [pack_archive({**_files(spool), **_files(next((spool.parent / LEDGERS).iterdir()))})],
        "prometheus": [_answers(_SERIES, [_TIME]), _answers([_TARGET], _SERIES, [_TIME])],
    }
    assert all(map(all, inputs.values())), inputs
    for target, contents in inputs.items():
        for number, content in enumerate(contents):
            (_made(corpora / target) / f"{number}").write_bytes(content)
    return corpora


def _answers(*queries: list[dict[str, object]]) -> bytes:
    """Return the answers of a Prometheus to several queries, each as one line."""
    answers = [{"status": "success", "data": {"resultType": "vector", "result": each}} for each in queries]
    return "\n".join(map(json.dumps, answers)).encode()


def _series(name: str, value: str, **labels: str) -> dict[str, object]:
    return {"metric": {"__name__": name, "instance": "a", **labels}, "value": [1000, value]}


_TIME: dict[str, object] = {"metric": {"instance": "a"}, "value": [1000, "1000.5"]}
_TARGET = _series("target_info", "1", training_run_id="run-7", training_rank="0")
_SERIES = [
    _TARGET,
    _series("training_time_seconds_total", "6.5", training_activity="step"),
    _series("training_steps_total", "12"),
    _series("training_step", "11"),
    _series("training_step_duration_count_total", "12"),
    _series("training_step_duration_sum_seconds", "6"),
    _series("training_goodput_ratio", "0.9"),
    _series("train_loss_mean", "NaN", split="train"),
]


def _files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir()) if each.is_file() and each.name != LOCK}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(folder: Path, script: str) -> None:
    environment = {**os.environ, "MONITEL_BLACK_BOX_DIR": str(folder / "boxes")}
    subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, timeout=100, check=False
    )
