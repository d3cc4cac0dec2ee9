"""Programs that ``monitel run`` records: their telemetry, the events of the attempt, killed processes, the summary."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes.console.commands import RUN, outcome, record, running
from tests.processes.patience import patience
from tests.processes.promises.test_run_command import LOSS
from tests.support.hostile import url_of
from tests.support.receiver import Receiver
from tests.support.spools import spooled

pytestmark = pytest.mark.usefixtures("run_events")


def test_events_of_the_attempt(receiver: Receiver) -> None:
    """Both events have the program and its script, but no other argument; also the commit, and the end."""
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *arguments], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    record("raise SystemExit(3)", "--endpoint", receiver.url, arguments=["--token", "hf_secret"])
    started, ended = receiver.records()
    name = Path(sys.executable).name
    assert {"run.command": f"{name} train.py", "run.git.commit": commit} == started.attributes
    assert {"run.command": f"{name} train.py", "process.exit.code": 3} == {
        key: value for key, value in ended.attributes.items() if key != "run.duration"
    }
    assert 0 < ended.attributes["run.duration"] < 60
    assert (9, 17) == (started.severity, ended.severity)
    assert not any(b"hf_secret" in request.body for request in receiver.requests)


def test_command_that_fails_after_its_processes() -> None:
    """The summary is about the processes; another line names the status."""
    Path("train.py").write_text("import monitel; monitel.set_step(1)")
    ended = outcome([*RUN, "sh", "-c", f"{sys.executable} train.py; exit 3"])
    last = "monitel: the command failed with exit status 3, although the processes that were recorded did not\n"
    assert (3, True) == (ended.status, ended.summary.endswith(last))


NOT_RECORDED = "children of multiprocessing are not recorded"
CONFIGURE = "import monitel_otlp, sys; monitel_otlp.configure()"


@pytest.mark.parametrize(
    ("method", "parent", "configure", "end", "expected"),
    [
        ("spawn", "import monitel", "pass", "pass", NOT_RECORDED),
        ("spawn", "", "pass", "pass", NOT_RECORDED),  # the parent is not recorded either
        ("forkserver", "import monitel", "pass", "pass", NOT_RECORDED),
        ("spawn", "import monitel", CONFIGURE, "pass", "verdict unknown"),
        # No hook is called with an exception, which is over when the run ends from CPython 3.13 on;
        # torch.multiprocessing.spawn() makes an exit status of it.
        ("spawn", "", CONFIGURE, "raise ValueError('broken')", "failed at step 1: ValueError: broken"),
        ("spawn", "", CONFIGURE, "try: 1 / 0\n    except ArithmeticError: sys.exit(1)", "failed at step 1: Zero"),
        ("spawn", "", CONFIGURE, "sys.exit(0)", "verdict unknown"),
        ("spawn", "", CONFIGURE, "raise KeyboardInterrupt", "interrupted"),
        ("fork", "import monitel", CONFIGURE, "raise KeyboardInterrupt", "interrupted"),
        ("forkserver", "", CONFIGURE, "raise SystemExit(3)", "failed at step 1"),
    ],
)
def test_children_of_multiprocessing(method: str, parent: str, configure: str, end: str, expected: str) -> None:
    """The summary says why it has no steps, or how a child that is recorded has ended."""
    work = f"def work():\n    {configure}\n    import monitel; monitel.set_step(1)\n    {end}\n"
    spawn = f"    import multiprocessing\n    child = multiprocessing.get_context('{method}').Process(target=work)\n"
    main = f"if __name__ == '__main__':\n{spawn}    child.start(); child.join()\n"
    ended = record(f"{parent}\n{work}{main}")
    assert (0, True) == (ended.status, expected in ended.words)
    assert (expected == NOT_RECORDED) == (NOT_RECORDED in ended.words)


RANKS = """\
import os, subprocess, sys, time
code = "import os, signal, sys, monitel\\nmonitel.set_step(1)\\nsys.stdin.read()\\n"
code += "os.kill(os.getpid(), [signal.SIGUSR1, signal.SIGKILL][os.environ['RANK'] == '0'])"
command = [sys.executable, "-c", code]
for rank in [subprocess.Popen(command, stdin=-1, env={**os.environ, "RANK": str(rank)}) for rank in (1, 0)][::-1]:
    rank.communicate()
    time.sleep(0.3)  # which of two has ended first is not known if both are seen at once
raise SystemExit(1)
"""


def test_first_dead_rank_is_named(receiver: Receiver) -> None:
    """Its parent has taken the status; the system still shows it."""
    ended = record(RANKS, "--endpoint", receiver.url)
    death = {"attempt.first_death.rank": 0, "attempt.first_death": "killed by SIGKILL"}
    assert {"process.exit.code": 1, **death}.items() <= receiver.records()[-1].attributes.items()
    died = [each.attributes for each in receiver.records() if each.name == "process.died"]
    assert {"SIGKILL", "SIGUSR1"} == {each["process.exit.signal"] for each in died}
    assert 1 == ended.status


EXITS = """\
import os, subprocess, sys, time
code = "import os, monitel\\nmonitel.set_step(1)\\nos._exit(0)"
rank = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RANK": "1"})
rank.wait()
deadline = time.monotonic() + 20
while any(f"-{rank.pid}-" in name for name in os.listdir(os.environ["MONITEL_BLACK_BOX_DIR"])):
    assert time.monotonic() < deadline
    time.sleep(0.05)
"""


def test_rank_that_exits_without_a_shutdown_is_collected_while_the_others_run(receiver: Receiver) -> None:
    """Only its parent knows that the exit code is 0; until then views take it for one that was killed."""
    ended = record(EXITS, "--endpoint", receiver.url)
    assert 0 == ended.status, ended
    (died,) = [each.attributes for each in receiver.records() if each.name == "process.died"]
    assert ("code", 0) == (died["process.exit.reason"], died["process.exit.code"])


#: Another ``monitel run`` ends before this one has read its reports.
ANOTHER_RUN = f"""\
import subprocess
from monitel_run.delivery import ProcessWatch
stop = ProcessWatch.stop
ProcessWatch.stop = lambda watch: (stop(watch), subprocess.run({[*RUN, "true"]}))
"""


@pytest.mark.parametrize(
    ("hostile", "problem"),
    [
        ("importlib.metadata.entry_points = lambda **_: 1 / 0\n", "ZeroDivisionError"),
        ("importlib.metadata.entry_points = lambda **_: threading.Event().wait()\n", "delivering the remaining"),
        (ANOTHER_RUN, ""),
    ],
)
def test_nothing_costs_the_summary(hostile: str, problem: str) -> None:
    """The causes of death are known, though exporters cannot be loaded, or another run ends."""
    Path("train.py").write_text(RANKS)
    main = (
        f"import importlib.metadata, sys, threading\n{hostile}from monitel_run.__main__ import run\nrun(sys.argv[1:])"
    )
    ended = outcome([sys.executable, "-c", main, sys.executable, "train.py"])
    assert 1 == ended.status
    for each in ("rank 0 killed by SIGKILL", "rank 1 killed by SIGUSR1", problem or "monitel run: "):
        assert each in ended.words


OWN = f"""\
import logging, sys
import monitel
{{early}}
import monitel_otlp
{patience()}
pipeline = monitel_otlp.configure(endpoint=sys.argv[-1], service_name="mine", spool_dir="own")
loss = monitel.stat("loss", [monitel.COUNT], 1e9)
loss.add(1)
monitel.emit("late")
"""


@pytest.mark.parametrize("endpoint", [False, True])
def test_pipeline_of_the_program_wins(receiver: Receiver, endpoint: bool) -> None:
    """Every item is exported once, by the pipeline of the program; the other one leaves no trace."""
    options = ["--endpoint", receiver.url, "--service-name", "other"] if endpoint else []
    ended = record(OWN.format(early=""), *options, arguments=[receiver.url], MONITEL_LOGGING_LEVEL="WARNING")
    assert (0, "") == (ended.status, ended.stderr)
    mine = [each.name for each in receiver.records() if each.resource["service.name"] == "mine"]
    assert ["late", "run.ended", "run.started"] == sorted(mine)
    assert {"mine"} == {each.resource["service.name"] for each in receiver.all_points()}
    assert [1] == receiver.values("loss.count")[-1:]
    others = [each.name for each in receiver.records() if each.resource["service.name"] != "mine"]
    assert (["attempt.started", "attempt.ended"] if endpoint else []) == others
    if not endpoint:  # only the events of the attempt are on disk
        assert ["attempt.started", "attempt.ended"] == spooled(Path("state/monitel"))[1]


EARLY = """\
monitel.emit("early")
logging.getLogger("mine").addHandler(logging.NullHandler())
logging.getLogger("mine").warning("logged")
monitel.stat("window", [monitel.COUNT], 1e9).add(1)
monitel.flush()
"""


@pytest.mark.parametrize(
    ("before", "spans"),
    [
        ("from threading import Event; Event().wait(1.5)", []),
        ("from monitel.profiler import record_function\nwith record_function('early'): pass", ["early"]),
    ],
)
def test_pipeline_of_the_program_that_comes_late(receiver: Receiver, before: str, spans: list[str]) -> None:
    """After the first requests, or with spans, no item is lost, and none arrives twice; the run goes on."""
    environment = {"OTEL_METRIC_EXPORT_INTERVAL": "100", "MONITEL_LOGGING_LEVEL": "WARNING", "MONITEL_SPANS": "true"}
    script = OWN.format(early=EARLY + before)
    ended = record(script, "--endpoint", receiver.url, arguments=[receiver.url], **environment)
    assert (0, "") == (ended.status, ended.stderr)
    names = [name for name in receiver.record_names() if not name.startswith("attempt.")]
    assert ["", "early", "late", "run.ended", "run.started"] == sorted(names)
    assert (1, 1) == (receiver.values("window.count")[-1], receiver.values("loss.count")[-1])
    assert spans == [each.name for each in receiver.spans()]
    assert ", 5 events" in ended.summary  # of both pipelines


def test_ctrl_c_ends_the_delivery(blackhole: socket.socket) -> None:
    """The rest stays on disk, the summary is printed, and the status is that of the command."""
    Path("train.py").write_text(f"{LOSS}sys.stdout.close()\nos.close(1)\nraise SystemExit(7)\n")
    environment = {"MONITEL_SPOOL_DIR": "spool", "OTEL_EXPORTER_OTLP_ENDPOINT": url_of(blackhole)}
    with running(sys.executable, "train.py", **environment) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert (
            "monitel: delivering the remaining telemetry; Ctrl-C stops the delivery, and the rest stays on disk\n"
            in lines
        )
        os.killpg(process.pid, signal.SIGINT)
        assert 7 == process.wait(60)
        stopped, summary = process.stderr.readline(), process.stderr.read()
        assert stopped == "monitel: stopped; telemetry that is not delivered stays on disk\n"
        assert all(each in summary for each in ("exit status 7", "  on disk   "))
    assert ["epoch", "run.ended", "run.started"] == sorted(
        name for name in spooled(Path("spool"))[1] if not name.startswith("attempt.")
    )
