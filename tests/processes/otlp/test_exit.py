"""Exit of a process: in time, and without unreported losses."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import EXIT, limit
from tests.support.hostile import url_of
from tests.support.inbox import DEADLINE, Answer
from tests.support.scripts import HUNG, PRINT_TIME, TRAIN, finish, started, write_script
from tests.support.spools import LastLine, last_line, spooled

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = pytest.mark.timed


def test_everything_is_delivered_at_exit(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Open windows are closed and delivered, and nothing remains on disk."""
    ended = train(TRAIN, receiver.url)
    assert list(range(1, 12)) == receiver.values("loss.count")
    assert 55 == receiver.values("loss.sum")[-1]
    assert ["checkpoint"] == receiver.record_names()
    assert LastLine(11, 1, None, None, None, None) == last_line(ended.stderr)
    assert [] == list(tmp_path.rglob("*.spool"))


@pytest.mark.parametrize("unreachable", ["refused", "blackholed"], indirect=True)
def test_unreachable_endpoint_delays_the_exit_by_at_most_two_seconds(
    unreachable: str, train: Run, tmp_path: Path
) -> None:
    """Everything is in the spool; the last line has the number of items, the folder and the command for replay."""
    ended = train(TRAIN + PRINT_TIME, unreachable, timeout=20)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    (folder,) = (tmp_path / "spool").iterdir()
    command = f"monitel replay {folder}"
    assert LastLine(0, 0, None, 12, str(folder), command) == last_line(ended.stderr)


def test_items_recorded_while_a_request_hangs_are_spooled(blackhole: socket.socket, tmp_path: Path) -> None:
    """If the delivery thread waits for an answer at the exit, items that it has not taken yet are not lost."""
    with started(tmp_path, write_script(tmp_path, HUNG + PRINT_TIME), url_of(blackhole)) as process:
        connection, _ = blackhole.accept()
        connection.settimeout(DEADLINE)
        assert connection.recv(1)
        ended = finish(process, "\n", timeout=20)
        connection.close()
    assert 0 == ended.status, ended.stderr
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert (list(range(1, 12)), ["before", "after"]) == spooled(tmp_path / "spool")
    assert 13 == last_line(ended.stderr).spooled


def test_exception_does_not_lose_items(receiver: Receiver, train: Run) -> None:
    """Everything is delivered, and only the traceback of the exception is printed."""
    ended = train(TRAIN + "raise RuntimeError('out of memory')\n", receiver.url, returncode=1)
    assert 11 == receiver.values("loss.count")[-1]
    assert ["checkpoint"] == receiver.record_names()
    assert ended.stderr.count("Traceback") == 1
    assert "RuntimeError: out of memory" in ended.stderr


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit(3)"])
def test_exit_status_does_not_change(receiver: Receiver, train: Run, end: str) -> None:
    """The process ends with the status that the script sets."""
    train(TRAIN + end, receiver.url, returncode=3)
    assert 11 == receiver.values("loss.count")[-1]


def test_slow_backend_receives_everything(receiver: Receiver, train: Run) -> None:
    """An answer after 0.4 s is within the time limit of the exit."""
    receiver.rule(lambda _request: Answer(delay=0.4))
    ended = train(TRAIN + PRINT_TIME, receiver.url)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert 11 == receiver.values("loss.count")[-1]
    assert ["checkpoint"] == receiver.record_names()


def test_retry_after_does_not_delay_the_exit(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """If the backend asks for a pause of an hour, everything is spooled within two seconds."""
    receiver.rule(lambda _request: Answer(503, {"Retry-After": "3600"}))
    ended = train(TRAIN + PRINT_TIME, receiver.url)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")


def test_shutdown_without_time_spools_everything(train: Run, tmp_path: Path) -> None:
    """``shutdown(0)`` sends nothing and writes everything to disk."""
    ended = train(TRAIN + "assert not pipeline.shutdown(0)\n", "http://127.0.0.1:9")
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    assert 12 == last_line(ended.stderr).spooled


def test_full_disk_is_logged_and_losses_are_counted(train: Run) -> None:
    """With a limit of 4 kB for files, the last line counts the items that do not fit."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    events = 'for number in range(2000): monitel.emit("event", number=number)\n'
    ended = train(limit + TRAIN + events + PRINT_TIME, "http://127.0.0.1:9")
    line = last_line(ended.stderr)
    assert line.dropped
    assert 11 + 2001 == (line.spooled or 0) + line.dropped
    assert 1 == len([line for line in ended.stderr.splitlines() if "the spool in" in line and "cannot be" in line])


def test_offline_run_is_logged_once_and_spooled(train: Run, tmp_path: Path) -> None:
    """Without any endpoint everything is in ``monitel-runs/``; one warning has the path and the variable to set."""
    script = TRAIN.replace('endpoint=sys.argv[1], spool_dir="spool", ', "")
    ended = train(script + "assert pipeline.force_flush(60)\nassert pipeline.shutdown()\n")
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "monitel-runs")
    (folder,) = (tmp_path / "monitel-runs").iterdir()
    warning, _goodbye = ended.stderr.splitlines()
    assert str(folder) in warning
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in warning
    line = last_line(ended.stderr)
    assert (12, str(folder)) == (line.spooled, line.folder)
    assert f"replay {folder} --endpoint" in str(line.command)


def test_one_signal_may_be_offline(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """If only metrics have an endpoint, logs are spooled, and one warning is logged."""
    script = TRAIN.replace("endpoint=sys.argv[1], ", "")
    ended = train(script, env={"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.url}/v1/metrics"})
    assert 11 == receiver.values("loss.count")[-1]
    assert ([], ["checkpoint"]) == spooled(tmp_path / "spool")
    warnings = [line for line in ended.stderr.splitlines() if not line.startswith("monitel: ")]
    assert 1 == len([line for line in warnings if "logs" in line and "OTEL_EXPORTER_OTLP_" in line]), ended.stderr


def test_run_without_items_leaves_no_spool(train: Run, tmp_path: Path) -> None:
    """If nothing was recorded, there is no folder, and the last line does not mention a replay."""
    ended = train('monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool")\n')
    assert [] == list(tmp_path.rglob("*.spool"))
    assert (None, None) == (last_line(ended.stderr).dropped, last_line(ended.stderr).spooled)


def test_last_line_is_written_in_one_call(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a job end at the same time and share an unbuffered stderr."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append))
    start().shutdown()
    assert ["monitel: exported 0 windows and numbers, 0 events\n"] == [text for text in written if text]


def test_disabled_pipeline_does_nothing(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """With OTEL_SDK_DISABLED=true there is no request, folder, thread or output, and all calls still work."""
    script = """\
import threading
from opentelemetry import metrics
with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("step"):
    metrics.get_meter("mine").create_counter("mine").add(1)
pipeline.logger_provider.get_logger("mine").emit(event_name="mine")
assert pipeline.force_flush(60) and pipeline.shutdown()
# The SDK's resource detectors end their threads by themselves.
print([thread.name for thread in threading.enumerate() if "ThreadPoolExecutor" not in thread.name])
"""
    ended = train(TRAIN + script, receiver.url, env={"OTEL_SDK_DISABLED": "true"})
    assert ("['MainThread']\n", "") == (ended.stdout, ended.stderr)
    assert ([], ["train.py"]) == (receiver.requests, [path.name for path in tmp_path.iterdir()])
