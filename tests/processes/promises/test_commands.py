"""``monitel cat``, ``replay`` and ``doctor`` as processes: signals, closed outputs, and one another."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.inbox import DEADLINE, Answer
from tests.support.receiver import Receiver
from tests.support.scripts import CONFIGURE, Run, finish, started

COMMAND = ("-m", "monitel")
OFFLINE = """\
with monitel_otlp.configure(spool_dir="runs", export_interval=3600.0) as pipeline:
    for number in range(5):
        monitel.emit("event", number=number)
        pipeline.force_flush(60)
"""


def test_interrupted_replay_continues_where_it_was(receiver: Receiver, train: Run, run: Run, tmp_path: Path) -> None:
    """Ctrl-C while the backend hangs: one line, the status 130, and nothing is lost or delivered twice."""
    train(OFFLINE)
    receiver.rule(lambda request: Answer(fault="hang") if request.signal == "logs" else None)
    with started(tmp_path, *COMMAND, "replay", "runs", "--endpoint", receiver.url) as replay:
        receiver.wait_until(lambda: any(each.answer.fault for each in receiver.requests))
        replay.send_signal(signal.SIGINT)
        ended = finish(replay)
    assert 130 == ended.status
    assert "monitel: interrupted; run this command again to continue\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [] == receiver.numbers("event")
    receiver.forget_rules()
    assert "delivered 5 items from 1 spool" in run(*COMMAND, "replay", "runs", "--endpoint", receiver.url).stdout
    assert [0, 1, 2, 3, 4] == receiver.numbers("event")


#: Presses Ctrl-C while the command is imported.
EARLY = """\
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "monitel.console.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["monitel", "runs"]
from monitel_run.__main__ import main
main()
"""


def test_command_that_is_interrupted_at_once_prints_nothing(run: Run) -> None:
    ended = run("-c", EARLY, returncode=-signal.SIGINT)
    assert ("", "") == (ended.stdout, ended.stderr)


def test_concurrent_replays_deliver_each_request_once(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """A folder that one of them uses is left to it."""
    train("for _ in range(4):\n" + "".join(f"    {line}\n" for line in OFFLINE.splitlines()))
    command = (*COMMAND, "replay", "runs", "--endpoint", receiver.url)
    with started(tmp_path, *command) as one, started(tmp_path, *command) as other:
        printed = [finish(one), finish(other)]
    delivered = [re.search(r"delivered (\d+) items?", each.stdout) for each in printed]
    assert 20 == sum(int(found[1]) for found in delivered if found)
    assert dict.fromkeys(range(5), 4) == {number: receiver.numbers("event").count(number) for number in range(5)}
    assert [] == [*(tmp_path / "runs").iterdir()]
    assert {each.status for each in printed} <= {0, 1}


def test_pipelines_of_one_process_are_replayed_in_their_order(receiver: Receiver, train: Run, run: Run) -> None:
    """Each has a spool, all within a second: Prometheus refuses points that are older than the last one."""
    train(
        "for number in range(8):\n"
        "    with monitel_otlp.configure(export_interval=3600.0, spool_dir='runs'):\n"
        "        monitel.log({'run': number})\n"
    )
    run(*COMMAND, "replay", "runs", "--endpoint", receiver.url)
    assert [*range(8)] == receiver.values("run")


def test_killed_process_is_reported_and_delivered(receiver: Receiver, train: Run, run: Run, own_boxes: Path) -> None:
    """``doctor`` counts it, with the command; ``replay`` prints the death, and delivers everything once."""
    train(CONFIGURE + "monitel.emit('event', number=7)\nos.kill(os.getpid(), 9)\n", "http://127.0.0.1:9", returncode=-9)
    killed = f"  killed             1 process; deliver the telemetry with: monitel replay {own_boxes} "
    assert killed in run(*COMMAND, "doctor").stdout
    printed = run(*COMMAND, "replay", own_boxes, "--endpoint", receiver.url).stdout
    assert "collected 2 items from 1 black box\n" in printed
    assert re.search(r"^process \d+ on .*: ", printed, re.MULTILINE)
    assert ([7], 1) == (receiver.numbers("event"), len(receiver.records("process.died")))
    assert "  killed  " not in run(*COMMAND, "doctor").stdout
    run(*COMMAND, "replay", "--endpoint", receiver.url)
    assert 2 == len(receiver.records())


def test_items_that_had_no_room_in_the_box_are_not_collected(
    receiver: Receiver, train: Run, run: Run, own_boxes: Path
) -> None:
    """A kill loses them, so that the numbers of collected and of delivered items are equal."""
    train(
        "options = {'endpoint': sys.argv[1], 'spool_dir': 'file/spool', 'black_box': {'size': 65536}}\n"
        "pipeline = monitel_otlp.configure(**options, export_interval=3600.0)\n"
        "open('file', 'w').close()\n"
        "for number in range(4000): monitel.log({'x': number})\n"
        "pipeline.engine.box.snapshot()\n"
        "os.kill(os.getpid(), 9)\n",
        "http://127.0.0.1:9",
        returncode=-9,
    )
    printed = run(*COMMAND, "replay", own_boxes, "--endpoint", receiver.url).stdout
    (collected,) = re.findall(r"collected ([\d,]+) items from 1 black box\n", printed)
    assert [collected] == re.findall(r"delivered ([\d,]+) items from 1 spool\n", printed)
    assert 100 < int(collected.replace(",", "")) < 4000


def in_shell(command: str, redirection: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m monitel {command} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=DEADLINE)


def test_output_that_cannot_be_written_is_an_error(train: Run) -> None:
    """A closed or full stdout is named in one line; the status is 1."""
    train(OFFLINE)
    closed = in_shell("cat runs", ">&-")
    assert (1, "monitel: stdout is closed: the output of this command needs it\n") == (closed.returncode, closed.stderr)
    full = in_shell("cat runs", ">/dev/full")
    assert (1, "monitel: stdout cannot be written: No space left on device\n") == (full.returncode, full.stderr)


def test_output_to_a_reader_that_leaves_is_no_error(train: Run, tmp_path: Path) -> None:
    """``monitel cat DIR | head -1``; a closed stderr hides messages, and nothing else."""
    train(OFFLINE)
    with started(tmp_path, *COMMAND, "cat", "runs") as process:
        assert process.stdout is not None
        process.stdout.close()  # before the command can print
        assert (0, "") == (process.wait(DEADLINE), process.stderr.read() if process.stderr else None)
    ended = in_shell("cat typo", "2>&-")
    assert (1, "", "") == (ended.returncode, ended.stdout, ended.stderr)
