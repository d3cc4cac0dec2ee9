"""``monitel ledger`` and ``monitel compare``: the time and the numbers of real runs, over kills and restarts."""

import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.commands import record
from tests.processes.console.jobs import Console
from tests.support.checks import wait_until
from tests.support.receiver import Receiver
from tests.support.scripts import READY, Process, Run, finish, read_line, started, write_script
from tests.support.spools import names

#: Steps of known length. Arguments: the first step, the number of steps, the seconds of each, and the learning rate.
#: It prints the time of each step, in nanoseconds of its ledger.
JOB = """\
import json
first, steps, seconds, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
pipeline = monitel_otlp.configure(spool_dir="spool", service_name="train")
monitel.config({"rate": rate, "model": {"layers": [2, 2], "width": 64}})
loss = Stat("loss", [MEAN, COUNT, SUM], 0.1, attributes={"split": "train"})
for step in range(first, first + steps):
    monitel.set_step(step)
    print("step", step, monitel.ledger().elapsed_ns, flush=True)
    with monitel.activity("data"):
        time.sleep(seconds / 4)
    loss.add(1 / (step + 1))
    monitel.counter("training.samples").add(8)
    time.sleep(seconds * 3 / 4)
monitel.log({"eval.accuracy": 1 - rate}, split="validation")
"""
#: The truth at its end, for the test.
END = """\
pipeline.shutdown(30)
print(json.dumps(monitel.ledger().activities))
"""
#: A line that reports the time so far, and waits for a line.
HOLD = 'print("held", monitel.ledger().elapsed_ns, flush=True)\nsys.stdin.readline()\n'


def environment(run: str, attributes: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the variables of a job with a run id and further attributes of the resource."""
    pairs = {"training.run.id": run, **(attributes or {})}
    return {"OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{name}={each}" for name, each in pairs.items())}


RUN = environment("run-7")


def truth(stdout: str) -> dict[str, float]:
    """Return the seconds of each activity that a job has printed."""
    return {name: time_ns / 1e9 for name, time_ns in json.loads(stdout.splitlines()[-1]).items()}


@contextmanager
def holding(first: int, steps: int, seconds: float) -> Iterator[tuple[Process, str, float]]:
    """Run a job of ``run-7`` until it holds; yield it with what it has printed, and the seconds of its ledger."""
    script = write_script(Path.cwd(), JOB + HOLD).rename("held.py")
    with started(Path.cwd(), script, first, steps, seconds, 0.5, env=RUN) as process:
        lines: list[str] = []
        while not (line := read_line(process)).startswith("held "):
            assert line, finish(process).stderr
            lines.append(line)
        yield process, "\n".join(lines), int(line.split()[1]) / 1e9


def run_of(console: Console, name: str) -> dict[str, Any]:
    found, _ = console.compare(name, name)
    assert abs(sum(found["activities"].values()) - found["duration_seconds"]) < 1e-5
    return found


def wait_for_ledger(console: Console, at_least: float) -> float:
    """Wait until the ledger on disk has so many seconds, as its heartbeat writes them, and return them."""
    wait_until(lambda: any(Path("spool").glob("ledgers/*/ledger.json")), "a ledger")
    found = console.until(lambda run: run["duration_seconds"] >= at_least, "ledger", "--spool-dir", "spool")
    return float(found["duration_seconds"])


def test_killed_run_continues_with_its_time_down_and_its_steps_repeated(train: Run, console: Console) -> None:
    """All attempts add up to the time from the first start to the last end; steps made again are ``repeated``."""
    began = time.time()
    with holding(100, 10, 0.04) as (process, printed, reached):
        kept = wait_for_ledger(console, reached + 0.1)
        assert "state       running; its last heartbeat was" in console("ledger", "--spool-dir", "spool").stdout
        process.send_signal(signal.SIGKILL)
        finish(process)
    assert " killed " in console("runs", "--spool-dir", "spool").stdout
    before = run_of(console, "run-7")
    assert {"startup", "step", "data"} == before["activities"].keys()
    assert {"state": "killed", "steps": 10, "last_step": 109}.items() <= before.items()
    assert 0.5 == before["values"]["eval.accuracy"]
    # The seconds of the ledger at which each step began.
    steps = {int(step): int(ns) / 1e9 for step, ns in re.findall(r"^step (\d+) (\d+)$", printed, re.MULTILINE)}
    assert 0 <= steps[100] - before["activities"]["startup"] < 5  # printed after the step has begun
    ended = train(JOB + END, 105, 4, 0.04, 0.5, env=RUN)
    whole = time.time() - began
    run = run_of(console, "run-7")
    own, activities = truth(ended.stdout), run["activities"]
    assert ("completed", 2, 14, 108) == tuple(run[name] for name in ("state", "attempts", "steps", "last_step"))
    assert 14 * 8 == run["values"]["training.samples"]
    made_again = kept - steps[105]  # with the time that belongs to data
    assert made_again - before["activities"]["data"] - 1.2 < activities["repeated"] < whole
    made = before["activities"]["step"] + own["step"]
    assert activities["repeated"] == pytest.approx(made - activities["step"], abs=0.3)
    assert 0 < activities["down"] < whole - run["activities"]["step"]
    assert whole - 30 < run["duration_seconds"] < whole + 0.1
    stored = console.json("ledger", "run-7", "--spool-dir", "spool")
    more: dict[str, Any] = {"state": "completed", "version": 1, "waiting": {}, "problems": []}
    assert {name: run[name] for name in stored if name not in more} | more == stored
    assert activities["step"] / run["duration_seconds"] == pytest.approx(stored["goodput"])


@pytest.mark.parametrize(
    ("end", "status"),
    [("raise KeyError", 1), ("os.kill(os.getpid(), 15); time.sleep(60)", -signal.SIGTERM)],
    ids=["exception", "SIGTERM"],
)
def test_end_is_stored_and_printed_however_the_process_ends(
    run: Run, console: Console, tmp_path: Path, end: str, status: int
) -> None:
    """Rank zero prints its ledger last, on one line; ``shutdown`` is in it. Shares: unit/promises/test_ledger.py."""
    ended = run(write_script(tmp_path, JOB + f"{end}\n"), 0, 5, 0.1, 0.5, env=RUN, returncode=status)
    (line,) = [each for each in ended.stderr.splitlines() if each.startswith("monitel ledger: ")]
    text = console("ledger", "--spool-dir", "spool").stdout
    assert f"\nstate       {'failed' if status > 0 else 'preempted'} at " in text
    assert {"startup", "data", "step", "shutdown"} == run_of(console, "run-7")["activities"].keys()
    shares = {name: int(percent) for name, percent in re.findall(r"[(,] ?(\S+) (\d+) %", line)}
    assert (100, True) == (sum(shares.values()), {"startup", "data", "step"} <= shares.keys())
    assert re.search(r"\d+ % of the time went into ", text.splitlines()[-1])


STAGES = """\
pipeline = monitel_otlp.configure(spool_dir="spool")
monitel.set_step(int(sys.argv[1]))
for stage, milliseconds in zip(("data", "forward", "sync"), sys.argv[2:]):
    stat = Stat("training.stage.duration", [MEAN], 1e9, attributes={"training.stage": stage})
    stat.add(float(milliseconds) / 1e3)
monitel.flush()
pipeline.shutdown()
"""


def test_share_of_each_step_that_waits_is_that_of_all_attempts(train: Run, console: Console) -> None:
    """A wait for other ranks is part of ``step``. Attempts and pipelines of one process are added up."""
    train(STAGES, 1, 10, 70, 20, env=RUN)
    train(STAGES + STAGES, 2, 5, 15, 30, env=RUN)
    text = console("ledger", "--spool-dir", "spool").stdout
    assert text.endswith("\nof each step: 40 % waiting for other ranks, 10 % waiting for data\n"), text
    stored = console.json("ledger", "--spool-dir", "spool")
    assert {"other_ranks": 0.4, "data": 0.1} == pytest.approx(stored["waiting"])


STEP = "monitel.set_step(1)\ntime.sleep(0.5)\n"
FORK = "if os.fork():\n    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
ENDED = f"monitel_otlp.configure(spool_dir='spool').shutdown()\n{FORK}"

LATE = f"pipeline = monitel_otlp.configure(spool_dir='spool')\n{FORK}pipeline.shutdown()\n"


NO_TRAINING = [
    pytest.param(STEP, {"RANK": "1", "WORLD_SIZE": "2"}, id="rank one"),
    pytest.param("monitel.emit('event')\n", {}, id="no step and no activity"),
    pytest.param(ENDED + STEP, {}, id="forked after the end of the pipeline"),
    pytest.param(LATE + STEP, {}, id="step after the end in a child"),
]


@pytest.mark.parametrize(("script", "env"), NO_TRAINING)
def test_only_rank_zero_of_a_training_has_a_ledger(
    train: Run, console: Console, script: str, env: dict[str, str]
) -> None:
    """Other processes store none and print none; without a ledger the command fails and says what would write one."""
    ended = train("monitel_otlp.configure(spool_dir='spool')\n" + script, env=env)
    assert "monitel ledger:" not in ended.stderr
    errors = console("ledger", "--spool-dir", "spool", status=1).stderr
    assert "monitel: there is no ledger of a run below 'spool': rank zero of a job" in errors


QUICK = "monitel_otlp.configure(spool_dir='spool')\nfor step in range(3):\n    monitel.set_step(step)\n"


def test_only_processes_with_one_run_id_are_joined(train: Run, console: Console) -> None:
    """Without an id each is a run, except for torchrun's restarts; an unknown name is an error that lists the runs."""
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1"}
    again = [torchrun | {"TORCHELASTIC_ERROR_FILE": f"/logs/none_x/attempt_{each}/0/error.json"} for each in range(2)]
    for number, env in enumerate((RUN, {}, *again, RUN)):
        train(QUICK, number, env=env)
    errors = console("ledger", "run-8", "--spool-dir", "spool", status=1).stderr
    assert "there is no run 'run-8'; the runs below 'spool' are\n" in errors
    listed = errors.splitlines()[1:]
    assert 3 == len(listed)
    assert "  run-7" == listed[0]
    assert "\nattempts    2, with" in console("ledger", "run-7", "--spool-dir", "spool").stdout


def test_start_that_fails_is_down(train: Run, console: Console) -> None:
    """A process that ends before its first step is not an attempt: without a step between two others, it is a gap."""
    train(QUICK, env=RUN)
    train("monitel_otlp.configure(spool_dir='spool')\ntime.sleep(0.5)\nraise KeyError\n", env=RUN, returncode=1)
    train(QUICK, env=RUN)
    run = run_of(console, "run-7")
    assert (2, True) == (run["attempts"], run["activities"]["down"] > 0.5)


FORKED = """\
import multiprocessing, os, sys, time, monitel
def work():
    for step in range(1, 31):
        monitel.set_step(step)
        {log}
        time.sleep(0.02)
    {end}
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join()
"""
LOG = 'monitel.log({"loss": 1 / step})'
FAILED = "failed", r"failed: process \d+ failed at step 30: ValueError: x \(\S*train.py:7\)"
KILLED = "killed by SIGKILL", r"dead: process \d+ killed by SIGKILL at step 30"


@pytest.mark.parametrize(
    ("log", "end", "state", "verdict"),
    [
        (LOG, "pass", "completed", "healthy: "),
        (LOG, "raise ValueError('x')", *FAILED),
        (LOG, "os.kill(os.getpid(), 9)", *KILLED),
        ("pass", "os.kill(os.getpid(), 9)", *KILLED),
    ],
)
def test_forked_child_that_trains_has_the_ledger(
    console: Console, log: str, end: str, state: str, verdict: str
) -> None:
    """If its parent makes no steps. The views agree about it, in its first second, too, and without an item."""
    summary = record(FORKED.format(log=log, end=end), "--name", "run-7", MONITEL_SPOOL_DIR="spool").words
    (found,) = console.json("runs", "--spool-dir", "spool")["runs"]
    assert {"run": "run-7", "state": state, "loss_name": "loss" if log == LOG else None}.items() <= found.items()
    assert 10 <= found["last_step"] <= 30
    assert log != LOG or 1 / found["last_step"] <= found["loss"] < 0.5
    assert re.search(f"verdict {verdict}", summary), summary
    ledger = console.json("ledger", "run-7", "--spool-dir", "spool")
    assert state == ledger["state"]
    assert ("ledger" in summary.partition("verdict")[2]) == ("killed" not in state)


def test_pool_that_trains_ends_well(console: Console) -> None:
    """The SIGTERM that ends its workers is not a death: neither in the summary nor in the ledger, nor in autopsy."""
    pool = 'with multiprocessing.get_context("fork").Pool(1) as pool:\n    pool.apply(work)\nmonitel.emit("done")\n'
    script = FORKED.format(log=LOG, end="pass").partition("child =")[0] + pool
    summary = record(script, "--name", "run-7", MONITEL_SPOOL_DIR="spool", MONITEL_RUN_EVENTS="1").words
    assert re.search(" verdict (healthy|unknown): ", summary), summary
    assert "died" not in summary
    assert "completed" == console.json("ledger", "run-7", "--spool-dir", "spool")["state"]
    assert "nothing is known from 'spool'" in console("autopsy", "spool", status=1).stderr


def test_living_attempt_keeps_the_ledger(console: Console) -> None:
    """If two jobs have one run id at the same time, the second one logs why it stores nothing, until the first ends."""
    with holding(0, 3, 0.01) as (first, _, reached):
        wait_for_ledger(console, reached)
        with holding(50, 3, 0.01) as (second, *_):
            ended = finish(second, "\n")
        assert 1 == ended.stderr.count("the ledger of the run cannot be stored")
        assert "in use by a running process with the same run id, 'run-7': two jobs need two ids" in ended.stderr
        run = run_of(console, "run-7")
        assert (1, False) == (run["attempts"], "repeated" in run["activities"])
        with holding(5, 2, 0.01) as (second, *_):
            finish(first, "\n")
            wait_until(lambda: 2 == run_of(console, "run-7")["attempts"], "a second attempt")
            finish(second, "\n")
    run = run_of(console, "run-7")
    assert (2, False, False) == (run["attempts"], "down" in run["activities"], "repeated" in run["activities"])


def test_damaged_ledger_is_kept_aside(train: Run, console: Console) -> None:
    """The next attempt starts anew. Views of damaged ledgers: tests/unit/console/test_runs.py."""
    train(QUICK, env=RUN)
    path = next(Path("spool").glob("ledgers/*/ledger.json"))
    path.write_bytes(path.read_bytes()[:-20])
    ended = train(QUICK, env=RUN)
    assert 1 == ended.stderr.count("the ledger of the run starts anew")
    assert 1 == run_of(console, "run-7")["attempts"]


LEDGERS = Path("spool/ledgers")


def test_automatic_count_loses_nothing(train: Run, console: Console) -> None:
    """A source that counts from 1 in each process does not make the steps of earlier attempts repeated ones."""
    counted = JOB.replace("monitel.set_step(step)", "sys.modules['monitel.training.step'].advance(step)") + END
    for _ in range(2):
        train(counted, 1, 7, 0.02, 0.5, env=RUN)
    run = run_of(console, "run-7")
    assert (2, False) == (run["attempts"], "repeated" in run["activities"])
    train(JOB + END, 4, 1, 0.02, 0.5, env=RUN)
    # The first attempt has counted from the start of the run, so most of its steps 4 to 7 is known, without data.
    repeated = run_of(console, "run-7")["activities"]["repeated"]
    assert 2 * 0.015 < repeated < run["activities"]["step"]


def test_forked_child_does_not_keep_the_run(train: Run, console: Console, tmp_path: Path) -> None:
    """A child that lives longer than its parent, such as an orphaned worker, does not block the next attempt."""
    fork = "if not os.fork():\n    sys.stdin.readline()\n    os._exit(0)\n"
    script = write_script(tmp_path, JOB + fork + "pipeline.shutdown()\n" + READY + "os.kill(os.getpid(), 9)\n")
    with started(tmp_path, "-W", "ignore", script, 0, 3, 0.01, 0.5, env=RUN) as first:
        assert first.stdout is not None
        assert "ready\n" in iter(first.stdout.readline, "")
        first.wait(60)
        train(JOB + END, 3, 1, 0.01, 0.5, env=RUN)
    assert 2 == run_of(console, "run-7")["attempts"]


def test_parent_that_lives_as_long_as_the_run_is_not_an_attempt(train: Run, console: Console, tmp_path: Path) -> None:
    """A process that starts the ranks with its own environment neither blocks their ledger nor counts."""
    child = write_script(tmp_path, JOB + END).rename("child.py")
    parent = (
        "import subprocess\npipeline = monitel_otlp.configure(spool_dir='spool')\n"
        "sys.exit(subprocess.run([sys.executable, sys.argv[1], '0', '5', '0.3', '0.5']).returncode)\n"
    )
    ended = train(parent, child, env=RUN)
    assert "cannot be stored" not in ended.stderr
    assert 1 == run_of(console, "run-7")["attempts"]


PARENT = """\
import multiprocessing, sys, time

def work(steps, seconds):
    time.sleep(seconds)
    sys.argv[1:] = ["0", steps, "0.05", "0.5"]
    exec(open("child.py").read())

fork = multiprocessing.get_context("fork")
late = float(sys.argv[1])
children = [fork.Process(target=work, args=args) for args in (("6", 0), ("18", late))]
for each in children:
    each.start()
for each in children:
    each.join()
"""


@pytest.mark.parametrize("late", [0, 1.5])
def test_first_of_several_children_has_the_ledger(run: Run, console: Console, tmp_path: Path, late: float) -> None:
    """Their parent has not imported monitel: they do not fight for it, nor is the second one an attempt.

    Nor if it trains when the first one has ended: it began before.
    """
    write_script(tmp_path, JOB + "pipeline.shutdown(30)\n").rename("child.py")
    ended = run("-c", PARENT, late, env=RUN)
    assert "cannot be stored" not in ended.stderr
    assert 1 == run_of(console, "run-7")["attempts"]


GROUP = """\
import types
from monitel.runs import ledger
ledger.HEARTBEAT = 0.03
def initialize(rank):
    module = types.ModuleType("torch.distributed")
    module.is_available = module.is_initialized = lambda: True
    module.get_rank, module.get_world_size = lambda: rank, lambda: 2
    sys.modules["torch.distributed"] = module
"""


def test_rank_that_becomes_known_later_gives_the_file_back(train: Run) -> None:
    """A process that turns out to be rank 1 restores the files, for the process that is rank zero."""
    late = GROUP + JOB.replace(
        "monitel.set_step(step)\n", "monitel.set_step(step)\n    initialize({})\n    time.sleep(0.2)\n"
    )
    train(late.replace("{}", "1", 1), 0, 3, 0.01, 0.5, env=RUN)
    assert [] == [*LEDGERS.glob("*")]
    train(late.replace("{}", "0", 1), 0, 3, 0.01, 0.5, env=RUN)
    (path,) = LEDGERS.glob("*/ledger.json")
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    train(late.replace("{}", "1", 1), 0, 3, 0.01, 0.5, env=RUN)
    assert before == {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert [path.parent.name] == names(LEDGERS)


def test_full_disk_is_logged_once(train: Run) -> None:
    """The job runs on without its ledger."""
    full = (
        "import errno\nfrom monitel.runs import folder, ledger\nledger.HEARTBEAT = 0.03\n"
        'def encode(history): raise OSError(errno.ENOSPC, "No space left on device")\nfolder.encode = encode\n'
    )
    ended = train(full + JOB + END, 0, 10, 0.02, 0.5, env=RUN)
    assert 1 == ended.stderr.count("the ledger of the run cannot be stored: [Errno 28]")
    assert [] == [*LEDGERS.glob("*/ledger.json")]


#: An event handler that takes 0.5 s at the end of the run.
SLOW = """\
import atexit, threading
def wait(event):
    if event.name == "run.ended":
        time.sleep(0.5)
def train():
    monitel.register_event_handler(wait)
    begin = time.monotonic_ns()
    monitel.set_step(1)
    time.sleep(0.2)
    return time.monotonic_ns() - begin
"""
CONFIGURE = 'monitel_otlp.configure(spool_dir="spool", resource_attributes={"training.run.id": "run-7"})'
ENDS = {
    "with": f"with {CONFIGURE}:\n    ns = train()\nprint(ns)\n",
    "exit": f"{CONFIGURE}\nprint(train())\n",
    "exit function": f"{CONFIGURE}\natexit.register(time.sleep, 0.5)\nprint(train())\n",
    "waiting for a thread": f"{CONFIGURE}\nprint(train())\nthreading.Thread(target=time.sleep, args=(0.5,)).start()\n",
    "another thread has trained": (
        f"{CONFIGURE}\nthread = threading.Thread(target=lambda: print(train()))\nthread.start()\nthread.join()\n"
        "atexit.register(time.sleep, 0.5)\n"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_everything_after_the_training_is_shutdown(train: Run, console: Console, end: str) -> None:
    """The handler of the last event, waiting for threads, and the functions of the exit are not productive."""
    events = "1" if end in {"with", "exit"} else "0"
    ended = train(SLOW + ENDS[end], env={"MONITEL_RUN_EVENTS": events})
    activities = run_of(console, "run-7")["activities"]
    assert {"startup", "step", "shutdown"} == {*activities}
    assert activities["shutdown"] >= (0.3 if end == "waiting for a thread" else 0.5)  # it has slept for a moment before
    assert activities["step"] - int(ended.stdout) / 1e9 < 0.5 + activities["shutdown"]
    assert activities["step"] >= 0.2


def test_thread_that_outlives_the_main_thread_still_trains(train: Run, console: Console) -> None:
    """The end of the main thread is not the end of the training."""
    script = "def train():\n    monitel.set_step(1)\n    time.sleep(0.5)\n"
    train("import threading\n" + script + f"{CONFIGURE}\nthreading.Thread(target=train).start()\n")
    activities = run_of(console, "run-7")["activities"]
    assert (True, True) == (activities["step"] >= 0.5, "shutdown" in activities)


def test_runs_have_the_numbers_of_their_jobs_after_the_delivery(
    train: Run, console: Console, receiver: Receiver
) -> None:
    """Steps, rates, times, last values, totals, configuration and outcome stay when the telemetry is delivered."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    jobs = {"run-a": (20, 0.02, 0.5, {}), "run-b": (30, 0.04, 0.25, {"training.world_size": 2})}
    measured = {
        run: truth(train(JOB + END, 0, steps, length, rate, env=env | environment(run, attributes)).stdout)
        for run, (steps, length, rate, attributes) in jobs.items()
    }
    assert ["ledgers"] == names(Path("spool"))
    losses = [1 / (step + 1) for step in range(30)]
    runs = console.compare("run-a", "run-b")
    for found, (run, (steps, length, rate, _)) in zip(runs, jobs.items(), strict=True):
        expected = {"run": run, "state": "completed", "attempts": 1, "steps": steps, "last_step": steps - 1}
        assert expected.items() <= found.items()
        times = found["activities"]
        assert {name: measured[run][name] for name in ("startup", "data")} == pytest.approx(
            {name: times[name] for name in ("startup", "data")}, abs=1e-6
        )
        assert steps * 0.75 * length < times["step"] <= measured[run]["step"]
        assert steps / (times["step"] + times["data"]) == pytest.approx(found["steps_per_second"])
        assert sum(times.values()) == pytest.approx(found["duration_seconds"])
        assert times["step"] / sum(times.values()) == pytest.approx(found["goodput"])
        assert losses[steps - 1] <= found["values"].pop("loss.mean") < 1
        assert {
            "loss.count": steps,
            "loss.sum": pytest.approx(sum(losses[:steps])),
            "training.samples": 8 * steps,
            "eval.accuracy": 1 - rate,
        } == found["values"]
        assert {"rate": rate, "model.layers": "[2, 2]", "model.width": 64} == found["config"]
    assert "2" == runs[1]["attributes"]["training.world_size"]


def test_wrong_numbers_of_runs_are_refused(console: Console) -> None:
    """Two to sixteen runs can be compared."""
    assert "at least two runs to compare, got one" in console("compare", "run-7", status=1).stderr
    assert "at most 16 runs to compare, got 17" in console("compare", *["run-7"] * 17, status=1).stderr
