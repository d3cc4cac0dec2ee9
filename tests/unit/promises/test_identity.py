"""Resource, scope, and the attributes of rank and run of everything that arrives, as the reference describes them."""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import OsResourceDetector, ProcessResourceDetector, Resource, _HostResourceDetector
from tests.support.checks import SetEnv, wait_until
from tests.support.commands import command
from tests.support.inbox import DEADLINE
from tests.support.paths import ROOT
from tests.support.pipelines import Start, delivered_by, emit
from tests.support.producers import close_windows, make_small, record_window
from tests.support.receiver import Receiver
from tests.support.validity.envelope import LEVELS
from tests.unit.promises.reference_tables import code, table

import monitel
import monitel_otlp
from monitel import COUNT, HISTOGRAM, Stat
from monitel.profiler import record_function
from monitel.testing import ManualClock
from monitel_otlp import Pipeline

PAGE = (ROOT / "docs/reference/metrics-and-events.md").read_text("utf-8")
SCHEMA = re.search(r"`(https://opentelemetry.io/schemas/[0-9.]+)`", PAGE)
THEIRS = "https://example.test/theirs"
LAUNCHERS = ["torchrun, Ray Train", "Open MPI", "MPICH, Intel MPI", "SLURM", "Kubernetes"]


def record_everything(pipeline: Pipeline) -> None:
    """Record one item of every kind, of monitel and of the application, and deliver it."""
    monitel.set_step(3)
    record_window("loss", [COUNT, HISTOGRAM], 1)
    monitel.log({"accuracy": 0.5})
    monitel.counter("samples").add(5)
    with monitel.WaitCounter("batch").guard(), record_function("forward"):
        monitel.emit("epoch")
    logging.getLogger("train").warning("slow")
    pipeline.meter_provider.get_meter("mine", "1", schema_url=THEIRS).create_counter("batches").add(1)
    pipeline.logger_provider.get_logger("mine", "1", schema_url=THEIRS).emit(body="own", event_name="own")
    with pipeline.tracer_provider.get_tracer("mine", "1", schema_url=THEIRS).start_as_current_span("own"):
        pass
    assert pipeline.force_flush(DEADLINE)


def resources(receiver: Receiver) -> Iterator[tuple[str, Any]]:
    for request in receiver.requests:
        (resource,) = getattr(request.message, LEVELS[request.signal][0])
        yield request.signal, resource


def resource_of(receiver: Receiver, pipeline: Pipeline) -> dict[str, Any]:
    assert emit(pipeline, "epoch")
    return receiver.records()[-1].resource


def test_request_has_one_resource_and_documented_scopes(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Name, version and schema of monitel's scope; the application's scopes stay as they are; the user agent."""
    pipeline = start(service_name="mine", spans=True, logging_level="WARNING", distributions="both")
    record_everything(pipeline)
    assert SCHEMA is not None
    scopes = set()
    for signal, resource in resources(receiver):
        assert SCHEMA[1] == resource.schema_url
        own = getattr(resource, LEVELS[signal][1])
        names = [each.scope.name for each in own]
        assert sorted({*names}) == sorted(names)
        scopes |= {(signal, each.scope.name, each.scope.version, each.schema_url) for each in own}
    expected = {(signal, "monitel", monitel.__version__, SCHEMA[1]) for signal in LEVELS}
    expected |= {(signal, "mine", "1", THEIRS) for signal in LEVELS} | {("logs", "train", "", "")}
    assert expected == scopes
    assert {"batches"} == {point.metric for point in receiver.all_points() if point.scope == "mine"}
    every: list[Any] = [*receiver.all_points(), *receiver.records(), *receiver.spans()]
    assert 1 == len({each.resource["service.instance.id"] for each in every})
    assert {"mine"} == {each.resource["service.name"] for each in every}
    agent = f"monitel-otlp/{monitel_otlp.__version__} Python/{sys.version.split()[0]}"
    agents = [each.headers["user-agent"] for each in receiver.requests]
    assert all(each.startswith(agent) for each in agents)


def test_resource_describes_host_and_process_without_secrets(receiver: Receiver, start: Start) -> None:
    """The documented attributes, and neither the command line, paths, the owner nor the id of the host."""
    resource = resource_of(receiver, start(service_name="mine"))
    begin = r"\*\*Host and process\*\*, with the values of OpenTelemetry's detectors: "
    paragraph = re.search(begin + r"(.*?)\n\n", PAGE, re.DOTALL)
    assert paragraph is not None
    documented = [*code(paragraph[1])]
    runtime = documented.index("process.runtime.name")
    documented[runtime + 1 :] = [f"process.runtime{each}" for each in documented[runtime + 1 :]]
    distro = {"telemetry.distro.name": "monitel-otlp", "telemetry.distro.version": monitel_otlp.__version__}
    assert {**distro, "service.name": "mine", "process.pid": os.getpid()}.items() <= resource.items()
    sdk = {"telemetry.sdk.name", "telemetry.sdk.language", "telemetry.sdk.version"}
    assert {*documented, *distro, *sdk, "service.name", "service.instance.id"} == {*resource}
    left_out = (sys.executable, *(each for each in sys.argv if "/" in each))
    assert not [each for each in left_out if each in str([*resource.values()])]
    for detector in (_HostResourceDetector, OsResourceDetector, ProcessResourceDetector):
        detected = {key: value for key, value in detector().detect().attributes.items() if key in resource}
        assert detected.items() <= resource.items()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_variables_become_attributes_of_rank_and_run(
    receiver: Receiver, start: Start, setenv: SetEnv, launcher: str
) -> None:
    """Each variable of the table is read, the first of a cell before the second."""
    rows = table("metrics-and-events.md", "attribute", *LAUNCHERS)
    column = 1 + LAUNCHERS.index(launcher)
    names = {code(row[0])[0]: code(row[column]) for row in rows if code(row[column])}
    assert "training.rank" in names
    given = {"training.rank": "2", "training.local_rank": "2", "training.world_size": "4"}
    values: dict[str, str] = {}
    for attribute, variables in names.items():
        for name in variables:
            values[name] = given.get(attribute, f"run-{name}" if attribute.endswith(".id") else str(len(values)))
    setenv(values)
    found = resource_of(receiver, start())
    expected = {attribute: values[variables[0]] for attribute, variables in names.items()}
    assert expected == {key: str(value) for key, value in found.items() if key.startswith("training.")}
    assert all(isinstance(found[key], int) for key in expected if not key.endswith(".id"))


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "0"}, 1),
        ({"LOCAL_RANK": "2", "WORLD_SIZE": "8", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, 6),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "8", "NODE_RANK": "1"}, None),
        ({"RANK": "three", "WORLD_SIZE": "4"}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "SLURM_PROCID": "3", "RANK": "5"}, 5),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 2),  # mpiexec in a batch script
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}, None),
    ],
)
def test_rank_is_known_or_absent(
    receiver: Receiver, start: Start, setenv: SetEnv, variables: dict[str, str], rank: int | None
) -> None:
    """The rank is inferred from local rank and node, as Lightning sets them, unless a variable is missing or wrong."""
    setenv(variables)
    assert rank == resource_of(receiver, start()).get("training.rank")


@pytest.mark.parametrize("reason", ["argument", "resource without an instance", "variable", "instance of the argument"])
@pytest.mark.invalid_output("the resource of the application has only a name", "resource.required", "resource.distro")
def test_rank_is_on_every_point(
    receiver: Receiver, start: Start, clock: ManualClock, setenv: SetEnv, reason: str
) -> None:
    """On request, or if the resource cannot tell ranks apart: an id that somebody has set may be that of a pod."""
    setenv(RANK=3, WORLD_SIZE=4, LOCAL_RANK=3)
    arguments: dict[str, dict[str, Any]] = {
        "argument": {"rank_attribute": True},
        "resource without an instance": {"resource": Resource({"service.name": "mine"}, THEIRS)},
        "instance of the argument": {"resource_attributes": {"service.instance.id": "pod"}},
    }
    given = arguments.get(reason, {})
    if reason == "variable":
        setenv(OTEL_RESOURCE_ATTRIBUTES="service.instance.id=ns.pod.trainer")
    with delivered_by(start(series_limit=1, spans=True, distributions="both", **given)) as pipeline:
        for layer in range(2):
            close_windows(Stat("x", [COUNT, HISTOGRAM], 60.0, attributes={"layer": layer}), clock, [1.0])
        monitel.counter("own", attributes={"training.rank": 9}).add(1)
        record_everything(pipeline)
    points = receiver.all_points()
    found = {point.metric: point.attributes.get("training.rank") for point in points if point.scope == "monitel"}
    windows = {"x.count", "x.p50", "x.histogram", "loss.count", "loss.p99", "accuracy"}
    totals = {"samples", "training.step", "batch.wait.time", "batch.wait.active", "batch.wait.max", "training.time"}
    others = {"monitel.queue.size", "monitel.export.duration", "monitel.spool.size"}
    assert {*windows, *totals, *others, "own", "training.goodput"} <= {*found}
    assert {"own"} == {name for name, rank in found.items() if rank != 3}
    assert 9 == found["own"]
    assert [{"layer": 0, "training.rank": 3}, {"otel.metric.overflow": True, "training.rank": 3}] == [
        point.attributes for point in receiver.points("x.count")
    ]
    if reason == "resource without an instance":
        assert {THEIRS} == {each.schema_url for _, each in resources(receiver)}
        assert {"service.name": "mine"} == receiver.points("samples")[-1].resource


def test_commands_find_counters_without_a_rank(start: Start, own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command finds the steps of a process by the bare name, without attributes."""
    make_small(monkeypatch)  # a record of the process each 50 ms
    monkeypatch.setenv("RANK", "3")
    start(rank_attribute=True)
    monitel.counter("training.steps").add(7)
    wait_until(lambda: "training.steps" in command("autopsy", own_boxes).stdout, "the counter in the box")
    (process,) = json.loads(command("autopsy", "--json", own_boxes).stdout)["processes"]
    assert {"name": "training.steps", "attributes": {}, "value": 7} in process["counters"]
