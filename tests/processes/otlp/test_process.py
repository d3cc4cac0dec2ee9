"""A pipeline and its process: stderr, the resource, greenlets, and a machine without gRPC."""

import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.processes.patience import with_patience
from tests.support.checks import EXIT, limit
from tests.support.receiver import Receiver
from tests.support.scripts import RECORD, TRAIN, Ended, Run, finish, started, wait_until_ready, without, write_script

LOG = """\
import logging

def configure(level):
    return monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", logging_level=level)

def log(phase):
    for name in ("root", "train", "train.data", "monitel.otlp"):
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(level, "%s: %d of %s", phase, level, name)

"""
PHASES = """
log("before")
with configure("ERROR"):
    log("error")
with configure("INFO"):
    log("info")
log("after")
"""
SETUPS = {
    "nothing": "",
    "basic": "logging.basicConfig(level=logging.INFO)",
    "child alone": 'logging.getLogger("train").addHandler(logging.StreamHandler())\n'
    'logging.getLogger("train").propagate = False',
    "null": 'logging.getLogger("train").addHandler(logging.NullHandler())',
}
#: Number of printed messages, as Python's documentation of the last resort and of the handlers implies it.
PRINTED = {"nothing": 8, "basic": 12, "child alone": 8, "null": 4}


def printed(ended: Ended, phase: str) -> list[str]:
    """Return the lines of a phase on stderr, without its name."""
    return [line.replace(phase, "...") for line in ended.stderr.splitlines() if f"{phase}: " in line]


@pytest.mark.parametrize("setup", SETUPS)
def test_stderr_is_the_same_with_and_without_a_logging_level(train: Run, receiver: Receiver, setup: str) -> None:
    """Each message is printed as often, and in the same format, as without a pipeline, whatever the level is."""
    ended = train(f"{LOG}{SETUPS[setup]}{PHASES}", receiver.url)
    before, *others = (printed(ended, phase) for phase in ("before", "error", "info", "after"))
    assert PRINTED[setup] == len(before)
    assert [before] * 3 == others
    names = ("root",) if setup == "child alone" else ("root", "train", "train.data")
    exported = [record.body for record in receiver.records() if str(record.body).startswith("error: ")]
    assert [f"error: 40 of {name}" for name in names] == exported


@pytest.mark.parametrize("first", ["monitel_otlp", "opentelemetry.sdk.trace"])
def test_detector_is_found_by_its_name(run: Run, first: str) -> None:
    """Although the SDK creates resources during its import, any order of imports works."""
    script = (
        f"import {first}\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        'print(TracerProvider().resource.attributes["training.rank"])\n'
    )
    env = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel", "RANK": "3"}
    ended = run("-c", script, env=env, fresh=True)
    assert ("3\n", "") == (ended.stdout, ended.stderr)


#: For some of these the classes of the SDK raise.
OF_THE_SDK = {
    "OTEL_METRIC_EXPORT_TIMEOUT": "abc",
    "OTEL_METRICS_EXEMPLAR_FILTER": "dice",
    "OTEL_RESOURCE_ATTRIBUTES": "nonsense",
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "no-such-detector",
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": "many",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many",  # the import of the SDK raises, too
    "OTEL_TRACES_SAMPLER": "dice",
}


def test_malformed_variables_of_the_sdk_do_not_end_training(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Everything is delivered."""
    run(write_script(tmp_path, with_patience(TRAIN + "print('trained')\n")), receiver.url, env=OF_THE_SDK, fresh=True)
    assert (11, ["checkpoint"]) == (receiver.values("loss.count")[-1], receiver.record_names())


INSTALL = "pip install 'monitel-otlp[grpc]'"


def test_without_the_packages_of_grpc_everything_else_works(receiver: Receiver, train: Run, run: Run) -> None:
    """Over HTTP; ``grpc`` is an error as an argument, and one warning as a variable, with the command to install it."""
    site = without("grpc", "google.rpc")
    check = "from importlib.util import find_spec\nassert find_spec('grpc') is None\n"
    train(check + TRAIN, receiver.url, env=site)
    assert [*range(1, 12)] == receiver.values("loss.count")
    receiver.requests.clear()
    grpc = {**site, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    ended = train('pipeline = monitel_otlp.configure(spool_dir="spool")\n' + RECORD, env=grpc)
    assert (1, []) == (ended.stderr.count(INSTALL), receiver.requests)
    assert "; telemetry for it is kept on disk" in ended.stderr
    run("-m", "monitel", "replay", "spool", "--endpoint", receiver.url, env=site)
    assert [*range(1, 12)] == receiver.values("loss.count")
    refused = train("monitel_otlp.configure(protocol='grpc')\n", env=site, returncode=1)
    assert "ValueError: protocol='grpc': the protocol 'grpc' needs the packages grpcio and" in refused.stderr
    assert INSTALL in run("-m", "monitel", "doctor", env=grpc, returncode=1).stdout


#: A thread of monitel runs in the thread that starts it, as a greenlet does until it switches; others are as before.
REDUCED = """\
import _thread, threading
def replaced(original):
    def start(function, *arguments, **options):
        if not getattr(function.__self__, "name", "").startswith("monitel"):
            return original(function, *arguments, **options)
        function()
    return start
def patch():
    for name in ("start_new_thread", "start_joinable_thread"):
        for module, prefix in ((_thread, ""), (threading, "_")):
            if hasattr(module, prefix + name):
                setattr(module, prefix + name, replaced(getattr(module, prefix + name)))
"""
LIBRARIES = {
    "reduced": REDUCED,
    "gevent": "from gevent.monkey import patch_all as patch\n",
    "eventlet": "import warnings\nwarnings.simplefilter('ignore')\nfrom eventlet import monkey_patch as patch\n",
}
FORKING = """
import os, sys, time, threading
if "first" in sys.argv:
    patch()
import monitel, monitel_otlp
if "between" in sys.argv:
    patch()
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", system=False, logging_level="ERROR")
monitel.emit("before")
assert pipeline.force_flush(60)
if "last" in sys.argv:
    patch()
loss = monitel.Stat("loss", [monitel.COUNT], 60.0)
if os.fork() == 0:
    loss.add(1)
    monitel.emit("child")
    sys.exit(not pipeline.force_flush(60))
assert os.wait()[1] == 0
loss.add(1)
monitel.emit("parent")
print("ready", flush=True)
if "wait" in sys.argv:
    while True:
        time.sleep(0.01)
"""


#: They are not imported: eventlet would warn of forks in later tests.
INSTALLED = [
    pytest.param(each, marks=pytest.mark.skipif(find_spec(each) is None, reason=f"{each} is not installed"))
    for each in ("gevent", "eventlet")
]


@pytest.mark.parametrize(("when", "end"), [("first", "wait"), ("between", "exit"), ("last", "exit"), ("last", "wait")])
@pytest.mark.parametrize("library", ["reduced", *INSTALLED])
def test_threads_that_wait_in_c_are_threads_of_the_system(
    receiver: Receiver, library: str, when: str, end: str
) -> None:
    """The job neither hangs nor waits, also in a forked child and on SIGTERM, and everything is delivered."""
    Path("job.py").write_text(LIBRARIES[library] + FORKING, encoding="utf-8")
    with started(Path.cwd(), "-W", "ignore", "job.py", receiver.url, when, end, fresh=True) as process:
        wait_until_ready(process)
        begin = time.monotonic()
        if end == "wait":
            process.send_signal(signal.SIGTERM)
        ended = finish(process)
    assert (0 if end == "exit" else -signal.SIGTERM) == ended.status, ended.stderr
    assert ended.at - begin <= limit(EXIT)
    names = receiver.record_names()
    assert ["before", "child", "parent"] == sorted(name for name in names if not name.startswith("run."))
    assert [1, 1] == receiver.values("loss.count")


BUSY = """
import sys, time, threading
patch()
import monitel_otlp
with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.01) as pipeline:
    counter = pipeline.meter_provider.get_meter("mine").create_counter("adds")
    end = time.monotonic() + 1
    def add():
        while time.monotonic() < end:
            counter.add(1)
            time.sleep(0)
    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.parametrize("library", INSTALLED)
def test_instruments_are_used_by_greenlets_and_read_by_a_thread(receiver: Receiver, library: str) -> None:
    """A greenlet that waits for a lock which the thread holds goes on."""
    Path("job.py").write_text(LIBRARIES[library] + BUSY, encoding="utf-8")
    with started(Path.cwd(), "-W", "ignore", "job.py", receiver.url, fresh=True) as process:
        ended = finish(process)
    assert 0 == ended.status, ended.stderr
    assert receiver.values("adds")[-1] > 1000
