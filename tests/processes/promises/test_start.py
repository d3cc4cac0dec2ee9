"""``monitel.start()``: one call records, exports, and leaves a folder with a report."""

import ast
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.commands import RUN, outcome, record
from tests.processes.patience import IN_TIME, with_patience
from tests.processes.promises.test_run_command import NO_EXPORTERS
from tests.support.commands import command
from tests.support.hostile import url_of
from tests.support.paths import ROOT
from tests.support.receiver import Receiver
from tests.support.scripts import PRINT_TIME, Run
from tests.support.spools import spooled

from monitel.runs.curves import read_curves

pytestmark = pytest.mark.usefixtures("run_events")

BEGIN = "import os, signal, sys, time, monitel\n"
TRAIN = """\
run = monitel.start("my run", {"model": {"width": 64}}, lr=0.1)
for step in range(1, 31):
    run.log(loss=1 / step, step=step)
"""
#: Only the core is installed.
ALONE = NO_EXPORTERS.replace('given == {"group": "monitel.exporters"}', "'monitel' in given['group']")


@pytest.fixture(params=[BEGIN, ALONE + BEGIN], ids=["all", "core"])
def before(request: pytest.FixtureRequest) -> str:
    """The first lines of a script, with all packages and with the core alone."""
    lines: str = request.param
    return lines


def folder(number: int = 1, name: str = "my-run") -> Path:
    """Return the folder of a run that has begun today, or just before midnight."""
    days = {time.strftime("%Y%m%d", time.localtime(time.time() - each)) for each in (0, 600)}
    (found,) = {Path("monitel-runs", f"{name}-{day}-{number}") for day in days} & {*folders_of_runs()}
    return found


def folders_of_runs() -> list[Path]:
    return sorted(Path("monitel-runs").glob("[!.]*"))


def stored_runs() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(command("runs", "--json").stdout)["runs"]
    return runs


def report(number: int = 1, name: str = "my-run") -> str:
    return (folder(number, name) / "report.html").read_text()


def curves(number: int = 1) -> dict[str, float]:
    return {each.name: each.last for each in read_curves((folder(number) / "curves.json").read_bytes())}


def test_one_call_is_enough(train: Run, before: str) -> None:
    """The call records, makes a folder for its owner, and prints the path of the report at the end."""
    ended = train(before + TRAIN)
    assert ended.stderr.endswith(f"monitel: report: {folder() / 'report.html'}\n"), ended.stderr
    assert (0o700, 0o600) == tuple(stat.S_IMODE(each.stat().st_mode) for each in (folder(), folder() / "report.html"))
    assert pytest.approx({"loss": 1 / 30}) == {"loss": curves()["loss"]}
    (stored,) = stored_runs()
    expected = {"run": folder().name, "state": "completed", "steps": 30, "last_step": 30, "loss": pytest.approx(1 / 30)}
    assert expected.items() <= stored.items()
    page = report()
    assert all(each in page for each in ("my run", "completed", "model.width", "0.0333"))
    files = {each.name.partition(".")[0] for each in folder().iterdir()}
    assert {"ledger", "curves", "run", "report", "lock"} <= files
    assert (before == BEGIN) == ("events" in files)


def test_everything_goes_to_the_endpoint(train: Run, receiver: Receiver) -> None:
    """The name is that of the service, and the folder the id of the run; nothing is left in the folder."""
    train(BEGIN + TRAIN, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert 30 == len(receiver.records("run.log"))
    assert {"run.started", "run.config", "run.log", "run.ended"} == {*receiver.record_names()}
    resource = receiver.records("run.started")[0].resource
    assert ("my run", folder().name) == (resource["service.name"], resource["training.run.id"])
    assert [] == [each for each in folder().iterdir() if each.is_dir()]


def test_second_call_ends_the_first_run(train: Run) -> None:
    """Each run has its own numbers, steps and report; a block ends its run, too, with its exception.

    Names in the report are those of the program.
    """
    second = "monitel.start('my run').log(loss=0.5, step=7)\nrun.log(late=1, step=7)\n"
    third = "with suppress(ValueError), monitel.start('損失/third') as run:\n    monitel.stat('é').add(1)\n"
    third += "    run.log({'loss': 2.0, '損失': 1.0}, step=1)\n"
    ended = train(f"from contextlib import suppress\n{BEGIN}{TRAIN}{second}{third}    raise ValueError('no data')\n")
    assert (1 / 30, 0.5, 1) == pytest.approx((curves(1)["loss"], *map(curves(2).get, ("loss", "late"))))
    assert 1 == ended.stderr.count("log() of the run 'my run', which has ended")
    runs = {each["run"]: each for each in stored_runs()}
    states = [(each["state"], each["last_step"]) for _, each in sorted(runs.items())]
    assert [("completed", 30), ("completed", 7), ("failed", 1)] == states
    page = report(name="損失-third")
    assert all(f">{each}" in page for each in ("ValueError: no data", "損失<", "é.mean<"))


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("raise ValueError('no data')", 1, "ValueError: no data"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "preempted"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "interrupted"),
        ("sys.exit(7)", 7, "or else the end of its output"),
        ("import pickle; pickle.dumps(run)", 1, "call monitel.start() in the worker"),
    ],
)
def test_report_says_how_the_run_ended(train: Run, before: str, end: str, status: int, words: str) -> None:
    ended = train(before + TRAIN + end, returncode=status)
    assert words in report()
    assert 1 == ended.stderr.count(f"monitel: report: {folder() / 'report.html'}\n")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_stderr_that_takes_nothing_changes_neither_stdout_nor_the_status(before: str, redirection: str) -> None:
    Path("train.py").write_text(before + TRAIN)
    ended = outcome(["sh", "-c", f"{sys.executable} train.py {redirection}"])
    assert (0, "") == (ended.status, ended.stdout)
    assert "completed" in report()


def test_packages_in_an_archive() -> None:
    """As those of Bazel, Spark or zipapp: the report has its style."""
    shutil.make_archive("app", "zip", ROOT / "src")
    env = {**os.environ, "PYTHONPATH": "app.zip"}
    assert 0 == outcome([sys.executable, "-S", "-c", BEGIN + TRAIN], env=env).status
    assert ":root" in report()


def test_report_of_a_killed_run(train: Run, before: str) -> None:
    """The command writes it, from the record that the process has left in memory."""
    wait = "while not os.path.exists(run.folder / 'curves.json'): time.sleep(0.01)\ntime.sleep(1.5)\n"
    train(before + TRAIN + wait + "os.kill(os.getpid(), signal.SIGKILL)", returncode=-signal.SIGKILL)
    printed = command("report")
    assert (0, f"{folder() / 'report.html'}\n") == (printed.status, printed.stdout)
    assert "<h1>my run</h1>" in report()
    assert all(each in report() for each in ("died of an unknown cause at step 30", "&lt;module&gt;", "0.0333"))


def test_autopsy_finds_what_a_later_run_has_collected(train: Run) -> None:
    """The record of a killed process is in the folder of its run then."""
    train(BEGIN + TRAIN + "os.kill(os.getpid(), signal.SIGKILL)", returncode=-signal.SIGKILL)
    (died,) = json.loads(command("autopsy", "--json").stdout)["processes"]
    train(BEGIN + TRAIN)
    for target in ([], [str(died["pid"])]):
        (found,) = json.loads(command("autopsy", *target, "--json").stdout)["processes"]
        assert (died["pid"], "dead", 30) == tuple(found[each] for each in ("pid", "state", "step"))
        assert str(folder()) in found["collected_in"]


def test_run_that_is_killed_at_once(train: Run, before: str) -> None:
    """Its ledger is written before the first pause."""
    wait = "while not os.path.exists(run.folder / 'ledger.json'): time.sleep(0.01)\n"
    pause = "import monitel.runs.ledger\nmonitel.runs.ledger.FIRST_PAUSE = 3600.0\n"
    script = before + pause + "run = monitel.start('my run')\n" + wait + "os.kill(os.getpid(), signal.SIGKILL)"
    train(script, returncode=-signal.SIGKILL)
    (stored,) = stored_runs()
    assert (folder().name, "killed") == (stored["run"], stored["state"])


def test_run_that_calls_exec(train: Run, before: str) -> None:
    """Its process goes on with another program, and is not killed."""
    wait = "while not os.path.exists(run.folder / 'ledger.json'): time.sleep(0.01)\n"
    runs = "os.execv(sys.executable, [sys.executable, '-m', 'monitel', 'runs', '--json'])"
    (stored,) = json.loads(train(before + TRAIN + wait + runs).stdout)["runs"]
    assert (folder().name, "replaced by exec") == (stored["run"], stored["state"])


RANKS = """\
import os, subprocess, sys
environments = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"} for rank in range(3)]
for rank in [subprocess.Popen([sys.executable, "rank.py"], env=each) for each in environments]:
    rank.wait()
"""
KILLED = "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"


def write_rank(script: str) -> None:
    """Write the script of the ranks. On a busy machine they have more than two seconds for the report of all."""
    Path("rank.py").write_text(with_patience(BEGIN + script))


def test_ranks_share_a_folder() -> None:
    """Under ``monitel run``, which writes the report of all of them; rank zero alone writes for TensorBoard."""
    write_rank(TRAIN + "time.sleep(1.5)\n" + KILLED)
    ended = record(RANKS)
    (shared,) = folders_of_runs()
    assert shared == folder(int(shared.name[-1]))  # two ranks may have made one each, of which the first is gone
    assert f"report    {shared / 'report.html'}" in ended.summary
    assert "rank 1 killed by SIGKILL" in (shared / "report.html").read_text()
    assert 1 == len([each for each in shared.iterdir() if "tfevents" in each.name and "config" not in each.name])
    again = command("report", shared.name, "--output", "again.html")
    assert (0, "again.html\n") == (again.status, again.stdout)
    printed, refused = (command("report", "my run", "--output", "-", *more) for more in ([], ["--json"]))
    assert (0, True) == (printed.status, printed.stdout.startswith("<!doctype html>\n"))
    assert (1, "", False) == (refused.status, refused.stdout, Path("-").exists())
    assert "rank 1 killed by SIGKILL" in Path("again.html").read_text()
    (shared.parent / "latest").symlink_to(shared.name)  # of the user: another name, not another run
    by_link = command("report", "latest", "--output", "again.html")
    assert (0, "again.html\n", "") == (by_link.status, by_link.stdout, by_link.stderr)
    Path("link").symlink_to("again.html")
    for place, words in (("link", "is not a file"), (".", "is not a file"), ("no/a.html", "cannot be written: ")):
        refused = command("report", "--output", place)
        assert (1, True) == (refused.status, words in refused.stderr), refused
    assert Path("link").is_symlink()


@pytest.mark.parametrize(("run_id", "port"), [("17", ""), ("", "29500"), ("", "")], ids=["run id", "port", "neither"])
def test_ranks_that_a_launcher_records_one_by_one(train: Run, run_id: str, port: str) -> None:
    """As ``srun monitel run`` does: each command writes the report of all ranks that share the folder."""
    together = "while len([*run.folder.glob('*/lock')]) < 3: time.sleep(0.01)\n" if port else ""
    write_rank(TRAIN + together + KILLED)
    launcher = RANKS.replace("[sys.executable,", f"[*{RUN}, sys.executable,")
    train(launcher, env={"SLURM_JOB_ID": run_id, "MASTER_PORT": port})
    shared = folders_of_runs()
    pages = [(each / "report.html").read_text() for each in shared]
    ranks = [len([*each.glob("report-*.json")]) for each in shared]
    assert ([3] if run_id or port else [1, 1, 1]) == ranks
    assert all("<h1>my run</h1>" in each for each in pages)
    assert all(command("ledger", each.name).status == 0 for each in shared if (each / "ledger.json").exists())
    assert 1 == sum("killed by SIGKILL at step 30" in each for each in pages)
    assert (len(shared) > 1) == any("ranks found here" in each for each in pages)


def test_run_whose_folder_is_removed_meanwhile_is_listed(train: Run) -> None:
    """The next heartbeats make the folder again."""
    wait = "while not (run.folder / 'ledger.json').exists(): time.sleep(0.01)\n"
    remove = "while run.folder.exists(): shutil.rmtree(run.folder, True)\n"  # a file may be made meanwhile
    train(f"{BEGIN}{TRAIN}import shutil\n{remove}{wait}")
    assert [(folder().name, 30)] == [(each["name"], each["last_step"]) for each in stored_runs()]


def test_runs_of_a_sweep_and_removed_folders_are_runs_of_their_own(train: Run) -> None:
    """A launcher's run id is that of the first run of a process; the link of a removed folder leads to no other run."""
    train(BEGIN + TRAIN + TRAIN.replace("31", "11"), env={"SLURM_JOB_ID": "17"})
    runs = {each["run"]: each["steps"] for each in json.loads(command("runs", "--json").stdout)["runs"]}
    assert {"17": 30, "17-2": 10} == runs
    for each in folders_of_runs():
        shutil.rmtree(each)
    for run in ("18", "17"):
        train(BEGIN + TRAIN, env={"SLURM_JOB_ID": run})
    runs = {each["run"]: each["attempts"] for each in json.loads(command("runs", "--json").stdout)["runs"]}
    assert {"17": 1, "18": 1} == runs


@pytest.mark.parametrize("port", ["", "29500"], ids=["with one parent", "with one address"])
def test_ranks_of_a_launcher_share_a_folder(train: Run, port: str) -> None:
    """Two jobs of one launcher, such as a shell, have two folders."""
    together = "while len([*run.folder.glob('*/lock')]) < 3: time.sleep(0.01)\n"
    write_rank(TRAIN + together)
    ranks = RANKS.replace("[sys.executable,", "['timeout', '60', sys.executable,") if port else RANKS
    train(ranks + ranks, env={"MASTER_ADDR": "localhost", "MASTER_PORT": port})
    shared = folders_of_runs()
    assert [3, 3] == [len([*each.glob("report-*.json")]) for each in shared]
    assert all("ranks found here" not in (each / "report.html").read_text() for each in shared)


def test_rank_that_the_first_rank_starts(train: Run) -> None:
    """Both share the folder, as with Lightning's launcher, unless their runs have two names."""
    write_rank("monitel.start(sys.argv[1]).log(loss=0.5, step=1)\n")
    start = """
import subprocess
environment = {**os.environ, "LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}
for name in ("my run", "other"):
    subprocess.run([sys.executable, "rank.py", name], env=environment, check=True)
"""
    train(BEGIN + TRAIN + start)
    assert [folder(), folder(name="other")] == folders_of_runs()
    assert [2, 1] == [len([*folder(name=each).glob("report-*.json")]) for each in ("my-run", "other")]


def test_runs_of_a_command_have_reports_and_its_status(before: str) -> None:
    """Under ``monitel run``, which knows the last one and how that has ended, and the items of both."""
    ended = record(before + TRAIN + TRAIN + "run.end()\nos._exit(3)")
    assert (["126"] if before == BEGIN else []) == re.findall(r"on disk (\d+) items", ended.words)
    runs = {each["run"]: each["state"] for each in stored_runs()}
    assert {folder(1).name: "completed", folder(2).name: "failed"} == runs
    assert ("completed" in report(1), "exit status 3" in report(2)) == (True, True)


def test_run_without_steps_has_a_report_of_the_command(before: str) -> None:
    """``monitel run`` writes it and names it, as the process does without it."""
    ended = record(before + "monitel.start('my run').log(loss=0.5)\n")
    assert "no steps verdict unknown: no step was set" in ended.words
    assert f"report {folder() / 'report.html'}" in ended.words
    assert "loss" in report()


@pytest.mark.parametrize("given", [{"SLURM_JOB_ID": "17"}, {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=run%2D7"}])
def test_attempts_share_a_folder(train: Run, before: str, given: dict[str, str]) -> None:
    """If a launcher or a variable gives them a run id; the curve goes on, and the report has the time of both."""
    first, second = ({**given, "RANK": "0", "SLURM_RESTART_COUNT": attempt} for attempt in "01")
    train(before + TRAIN + "raise ValueError('no data')", env=first, returncode=1)
    train(before + TRAIN.replace("range(1, 31)", "range(20, 41)"), env=second)
    run = "17" if "SLURM_JOB_ID" in given else "run-7"
    assert {(run, folder().name): 2} == {(each["run"], each["name"]): each["attempts"] for each in stored_runs()}
    assert f" {folder().name} " in command("compare", run, str(folder())).stdout
    assert [folder()] == folders_of_runs()
    (loss,) = (each for each in read_curves((folder() / "curves.json").read_bytes()) if each.name == "loss")
    assert [*range(1, 41)] == [each.step for each in loss.points]
    assert 1 == report().count("ValueError: no data")


def test_place_that_cannot_be_written(train: Run, tmp_path: Path) -> None:
    """The run has another folder then, and one warning says where."""
    Path("monitel-runs").touch()
    ended = train(BEGIN + TRAIN + "print(run.folder)", env={"TMPDIR": str(tmp_path)})
    found = Path(ended.stdout.strip())
    assert 1 == ended.stderr.count(f"; this run: monitel runs --spool-dir {found.parent}\n")
    assert found.name in command("runs", "--spool-dir", str(found.parent)).stdout
    assert (found / "report.html").is_relative_to(tmp_path)


@pytest.mark.parametrize("place", ["no folder", "shared", "linked"])
def test_no_place_at_all(train: Run, tmp_path: Path, before: str, place: str) -> None:
    """The job goes on. A folder that others can write to, or have linked, is left out."""
    Path("monitel-runs").touch()
    other = tmp_path / place / f"monitel-runs-{os.geteuid()}"
    other.parent.touch() if place == "no folder" else other.parent.mkdir()
    if place == "shared":
        other.mkdir()
        other.chmod(0o777)
    elif place == "linked":
        other.symlink_to("..")
    ended = train(f"{before}import tempfile\ntempfile.tempdir = {str(other.parent)!r}\n{TRAIN}print('trained')")
    assert "trained\n" == ended.stdout
    assert 1 == ended.stderr.count("the run has no folder and no report: ")
    assert 1 == ended.stderr.count("the end of the run 'my run' cannot be stored: ")
    assert [] == [*tmp_path.rglob("run.json")]


def test_full_disk_at_the_begin(train: Run, before: str) -> None:
    """The job goes on, and nothing is left that looks like a run."""
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
    free = "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\nprint('trained')"
    ended = train(before + full + TRAIN + free)
    assert "trained\n" == ended.stdout
    assert 1 == ended.stderr.count("the run has no folder and no report: ")
    assert [] == folders_of_runs()


#: Calls that open or change files hang, in the main thread those for the folders of runs.
HANG = """
import threading
never = threading.Event()
threads = {*"monitel-run-end monitel-otlp-ledger monitel-disk monitel-tensorboard".split()}
def hang(event, given):
    if event in {"open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.symlink"}:
        if threading.current_thread().name in threads or "monitel-runs" in str(given[0]):
            never.wait()
sys.addaudithook(hang)
"""
ENDS = {
    "exit": (PRINT_TIME, 0),
    "end": (PRINT_TIME + "run.end()\nos._exit(0)\n", 0),
    "SIGTERM": (PRINT_TIME + "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n", -signal.SIGTERM),
    "second start": (PRINT_TIME + "monitel.started_run._BEGIN_S = 0\nmonitel.start('second')\nos._exit(0)\n", 0),
}


@pytest.mark.timed
@pytest.mark.parametrize("end", ENDS)
def test_disk_that_hangs_delays_the_end_by_two_seconds(train: Run, before: str, end: str) -> None:
    """All have these seconds together: the exporters, the ledger, the report, and the writer of TensorBoard."""
    script, status = ENDS[end]
    ended = train(before + TRAIN + HANG + script, returncode=status)
    assert ended.exit_s < IN_TIME


@pytest.mark.timed
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("host", ["127.0.0.1", "faulty"])
def test_backend_that_hangs_delays_the_end_by_two_seconds(
    train: Run, blackhole: socket.socket, host: str, end: str
) -> None:
    """The backend never answers, or its name server does not."""
    resolve = """
import socket, threading
found = socket.getaddrinfo
def resolve(host, *given, **options):
    if host == "faulty":
        threading.Event().wait()
    return found(host, *given, **options)
socket.getaddrinfo = resolve
socket.getfqdn = socket.gethostbyname = socket.gethostbyaddr = lambda *_: threading.Event().wait()
"""
    script, status = ENDS[end]
    url = url_of(blackhole).replace("127.0.0.1", host)
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    ended = train(BEGIN + resolve + TRAIN + script, env=env, returncode=status)
    assert ended.exit_s < IN_TIME
    assert [] != spooled(Path("state/monitel"))[1]


def test_report_has_all_numbers_although_a_slow_disk_stores_the_curves_late(train: Run, before: str) -> None:
    """The rest of the two seconds is there for them, and not a tenth."""
    slow = """
import threading
def slow(event, given):
    if event == "os.rename" and given[1] == "curves.json":
        threading.Event().wait(0.4)
sys.addaudithook(slow)
"""
    train(before + slow + TRAIN)
    assert "may be missing" not in report()
    assert re.search("loss.{,90}0.0333", report(), re.DOTALL)


def test_disk_that_hangs_at_the_begin(train: Run, before: str) -> None:
    """The job begins, without a folder."""
    script = before + "import monitel.started_run\nmonitel.started_run._BEGIN_S = 0.2\n" + HANG
    ended = train(script + TRAIN + "print('trained', flush=True)\nos._exit(0)")
    assert "trained\n" == ended.stdout
    assert 1 == ended.stderr.count("the run has no folder and no report: the disk has not answered within 0.2 s")


def test_runs_in_threads_and_children(train: Run, before: str) -> None:
    """Each one has a ledger and a report: children of multiprocessing skip the functions for the exit."""
    script = """
import multiprocessing, threading
def work(number):
    run = monitel.start(f"my run {number}")
    run.log(loss=number, step=1)
    if number < 3:
        run.end()
threads = [threading.Thread(target=work, args=(each,)) for each in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
child = multiprocessing.get_context("fork").Process(target=work, args=(3,))
child.start()
child.join()
"""
    train(before + script)
    assert {folder(1, f"my-run-{each}") / "report.html" for each in range(4)} == {*Path().rglob("report.html")}
    losses = {each["run"]: each["loss"] for each in stored_runs()}
    assert {folder(1, f"my-run-{each}").name for each in range(4)} == {*losses}
    assert 3 == losses[folder(1, "my-run-3").name]


def test_runs_that_have_ended_leave_nothing_open(train: Run, before: str) -> None:
    """Such as one in each cell of a notebook, even if the program disables the garbage collector."""
    script = """
import gc
gc.disable()
counts = []
for _ in range(6):
    with monitel.start() as run:
        run.log(loss=1, step=1)
    counts.append(len(os.listdir('/proc/self/fd')))
print(counts)
"""
    _, second, *_, last = ast.literal_eval(train(before + script).stdout)
    assert last < second + 6  # a record has as many files; those of the last one may be about to be closed


STEPS = """\
for steps in ([1, 2, 3], [1, 1, 2, 3], [3, 1, 4, 2, 5], [5, 5, None, 4]):
    for step in steps:
        run.log(loss=1.0, step=step)
    print(monitel.get_step(), end=" ")
"""


def test_steps_of_the_process_are_those_of_log(train: Run) -> None:
    """Even if they begin again in each epoch; not those of numbers that are logged late."""
    assert "3 3 5 5 " == train(BEGIN + "run = monitel.start()\n" + STEPS).stdout


def test_name_whose_letters_the_locale_has_not(train: Run) -> None:
    """The name of the folder is without them; the run has the whole one."""
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    train(BEGIN + TRAIN.replace("my run", "\\u8bad my-run"), env=ascii_alone)
    assert "<h1>\u8bad my-run</h1>" in report()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *(("[]", "run"), ("['-c']", "run"), ("['/x/\\udc80.py']", "\\udc80"), ("['/x/train/__main__.py']", "train")),
        ("['/x/ipykernel_launcher.py']", "my notebook"),
    ],
)
def test_name_without_a_script(train: Run, arguments: str, name: str) -> None:
    script = f"{BEGIN}sys.argv = {arguments}\nprint(monitel.start().name)"
    assert f"{name}\n" == train(script, env={"JPY_SESSION_NAME": "/home/me/my notebook.ipynb"}).stdout


def test_run_of_a_notebook_begins_with_its_start(train: Run, before: str) -> None:
    """In another program it begins with the process."""
    for number, session in enumerate(["", "sys.ps1 = '>>> '\n"], start=1):
        now = "from datetime import datetime, timezone\nprint(datetime.now(timezone.utc).isoformat())\n"
        ended = train(before + session + now + TRAIN)
        (began,) = (each["started"] for each in stored_runs() if each["run"] == folder(number).name)
        assert bool(session) == (began > ended.stdout), (began, ended.stdout)


def test_forked_child_has_its_own_run(train: Run, before: str) -> None:
    """Its numbers before start() are in no ledger, neither in that of its parent nor in a hidden one."""
    child = """
if os.fork() == 0:
    run.log(loss=2.0, step=11)
    monitel.start("child").log(loss=3.0, step=1)
    sys.exit()
os.wait()
"""
    train(before + 'run = monitel.start("my run")\n' + child + "run.log(loss=1.0, step=10)")
    runs = {each["run"]: each["loss"] for each in stored_runs()}
    assert {folder().name: 1.0, folder(name="child").name: 3.0} == runs
    assert 2 == len([*Path("monitel-runs").rglob("ledger.json")])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_that_imports_the_script_begins_no_run(train: Run, before: str, method: str) -> None:
    """Unless it uses it."""
    script = f"""
from multiprocessing import get_context
run = monitel.start("my run")
def work(number):
    if number == 3:
        run.log(loss=3.0, step=1)
        run.end()
if __name__ == "__main__":
    run.log(loss=1.0, step=1)
    with get_context({method!r}).Pool(1) as pool:
        pool.map(work, range(4))
        pool.close()
        pool.join()
"""
    train(before + script, fresh=True)
    losses = {each["run"]: each["loss"] for each in stored_runs()}
    assert {folder(1).name: 1.0, folder(2).name: 3.0} == losses
    assert [folder(1), folder(2)] == folders_of_runs()


def test_exporter_that_is_switched_off_is_replaced(train: Run) -> None:
    """The run is recorded as without it, under ``monitel run``, too."""
    train(BEGIN + TRAIN, env={"OTEL_SDK_DISABLED": "true"})
    record(BEGIN + TRAIN, OTEL_SDK_DISABLED="true")
    for number in (1, 2):
        found = [each for each in folder(number).iterdir() if each.is_dir()]
        assert ("0.0333" in report(number), []) == (True, found)


def test_exporter_that_cannot_start_is_replaced(train: Run) -> None:
    """The run is recorded as without it."""
    ended = train(f"{BEGIN}import monitel_otlp.configuration\nmonitel_otlp.configuration.configure = None\n{TRAIN}")
    assert "an exporter cannot be started: TypeError" in ended.stderr
    assert "0.0333" in report()


@pytest.mark.parametrize("torch", ["None", "type(sys)('torch')"])
def test_torch_that_cannot_be_used(train: Run, torch: str) -> None:
    """A version that monitel.torch does not support, or none: the run is recorded without it."""
    ended = train(f"{BEGIN}sys.modules['torch'] = {torch}\n{TRAIN}")
    assert (torch != "None") == ("goes on without an instrumentation of torch" in ended.stderr)
    assert "0.0333" in report()


def test_another_pipeline_of_the_run_is_in_its_report(train: Run) -> None:
    """The end waits for the report of each of them, also on a slow disk."""
    script = """
import threading
import monitel.started_run
import monitel_otlp
write, never = monitel.started_run.write_report, threading.Event()
monitel.started_run.write_report = lambda *given, **named: never.wait(0.3) or write(*given, **named)
run = monitel.start("my run")
monitel_otlp.configure(service_name="other")
run.log(loss=1 / 3, step=1)
"""
    ended = train(BEGIN + script)
    assert "0.333" in report()
    assert " attempts" not in ended.stderr


def test_pipeline_before_the_run_ends(train: Run) -> None:
    """A warning says so: its endpoint is not that of the run."""
    twice = "monitel.start(name='my run', values={'name': 'model'}, lr=0.1)\nmonitel.start('my run')\n"
    ended = train(f"{BEGIN}import monitel_otlp\nmonitel_otlp.configure(spool_dir='other')\n{twice}")
    assert 1 == ended.stderr.count("call start() first, and configure() after it")
    assert "<td>model</td>" in re.sub(r" class=\S+", "", report())


def test_path_of_a_report_is_that_of_the_shell(train: Run) -> None:
    """The program may have another folder by then, as Hydra gives one to each job."""
    ended = train(BEGIN + "os.mkdir('job')\nos.chdir('job')\n" + TRAIN + "print(run.folder)")
    assert 1 == ended.stderr.count(f"monitel: report: {ended.stdout.strip()}/report.html\n")


def test_report_can_be_switched_off(train: Run) -> None:
    ended = train(BEGIN + TRAIN, env={"MONITEL_REPORT": "false", "MONITEL_RUNS_DIR": "others"})
    assert "monitel: report" not in ended.stderr
    assert [] == [*Path("others").rglob("report.html")]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("start(7)", "TypeError: start() takes the name of the run, a str, got int: 7"),
        ("start(' ')", "ValueError: start() takes the name of the run, got an empty str"),
        ("start('x', 3)", "TypeError: config() takes a mapping"),
    ],
)
def test_wrong_arguments_begin_nothing(train: Run, call: str, error: str) -> None:
    assert error in train(f"{BEGIN}monitel.{call}", returncode=1).stderr
    assert not Path("monitel-runs").exists()


def test_other_jobs_of_monitel_run_have_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new folder with the name of the script, which names the run; a command without a job makes nothing."""
    script = "import monitel\nfor step in range(1, 31):\n    monitel.set_step(step)\n    monitel.log(loss=1 / step)\n"
    monkeypatch.setenv("MONITEL_SPOOL_DIR", "spool")  # relative, as people write it
    outcome([*RUN, "true"])
    assert not Path("monitel-runs").exists()
    for number in (1, 2):
        ended = record(script)
        assert f"report    {folder(number, 'train') / 'report.html'}" in ended.summary
        assert "0.0333" in report(number, "train")
    names = [folder(1, "train").name, str(folder(2, "train"))]
    assert {folder(number, "train").name for number in (1, 2)} == {each["name"] for each in stored_runs()}
    assert 2 == len({json.loads(command("ledger", each, "--json").stdout)["started"] for each in names})
