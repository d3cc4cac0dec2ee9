"""Rank, run and attempt: read from the variables of launchers, and written to the resource."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.resources import Resource
from tests.support.spools import folders

import monitel
import monitel_otlp
from monitel import COUNT, Stat
from monitel_otlp.config.launcher import VARIABLES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "run-7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "13",
    "LOCAL_RANK": "5",
    "WORLD_SIZE": "16",
    "GROUP_RANK": "1",
}


def launch(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Set the variables of a launcher."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def attributes(*values: str | int | None) -> dict[str, str | int]:
    """Return the attributes with these values, in the order of ``VARIABLES``; None leaves an attribute out."""
    return {name: value for name, value in zip(VARIABLES, values, strict=True) if value is not None}


def record() -> None:
    """Record one window and one event."""
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    monitel.emit("epoch")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param(TORCHRUN, attributes("run-7", 2, 13, 5, 16, 1), id="torchrun"),
        pytest.param(
            {
                "SLURM_JOB_ID": "4711",
                "SLURM_RESTART_COUNT": "1",
                "SLURM_PROCID": "9",
                "SLURM_LOCALID": "1",
                "SLURM_NTASKS": "32",
                "SLURM_NODEID": "4",
            },
            attributes("4711", 1, 9, 1, 32, 4),
            id="slurm",
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            attributes(None, None, 3, 0, 4, None),
            id="openmpi",
        ),
        pytest.param(
            {"JOB_NAME": "train-abc", "JOB_COMPLETION_INDEX": "6"},
            attributes("train-abc", None, 6, None, None, None),
            id="kubernetes",
        ),
        pytest.param(
            {"RAY_JOB_ID": "01000000", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"},
            attributes("01000000", None, 1, 1, 2, 0),
            id="ray",
        ),
        pytest.param(
            {**TORCHRUN, "SLURM_JOB_ID": "4711", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NODEID": "0"},
            attributes("run-7", 2, 13, 5, 16, 1),
            id="torchrun in slurm",
        ),
    ],
)
def test_launcher_is_recognized(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: dict[str, Any]
) -> None:
    """The innermost launcher wins: torchrun's agent is one task of SLURM and starts many workers."""
    launch(monkeypatch, variables)
    assert expected == dict(monitel_otlp.RankResourceDetector().detect().attributes)


@pytest.mark.parametrize("malformed", ["", " ", "three", "-1", "1.5", "1_0", "²", "9" * 19, "9" * 5000])
def test_malformed_number_is_ignored(monkeypatch: pytest.MonkeyPatch, malformed: str) -> None:
    """The variable of the next launcher is used instead, including for a number that needs more than 64 bits."""
    launch(monkeypatch, {"RANK": malformed, "SLURM_PROCID": "2", "WORLD_SIZE": malformed})
    assert {"training.rank": 2} == dict(monitel_otlp.RankResourceDetector().detect().attributes)


def test_blanks_around_a_value_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell scripts often leave blanks and newlines."""
    launch(monkeypatch, {"RANK": " 3 ", "SLURM_JOB_ID": " 4711\n"})
    assert attributes("4711", None, 3, None, None, None) == dict(
        monitel_otlp.RankResourceDetector().detect().attributes
    )


def test_name_that_is_not_utf8_is_escaped(monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start) -> None:
    """A variable may hold any bytes; a lone surrogate would make every request impossible to encode."""
    launch(monkeypatch, {"JOB_NAME": "tr\udce4in"})
    pipeline = start()
    record()
    assert pipeline.force_flush(60)
    assert ["tr\\udce4in"] == [point.resource["training.run.id"] for point in receiver.points("loss.count")]


def test_resource_has_the_attributes(monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start) -> None:
    """Windows and events have them in the resource, points do not, and service.instance.id is a random UUID."""
    launch(monkeypatch, TORCHRUN)
    pipeline = start(service_name="train")
    record()
    assert pipeline.force_flush(60)
    (point,) = receiver.points("loss.count")
    (event,) = receiver.records("epoch")
    expected = attributes("run-7", 2, 13, 5, 16, 1)
    assert expected == {name: point.resource[name] for name in expected}
    assert point.resource == event.resource
    assert "training.rank" not in point.attributes
    assert 4 == uuid.UUID(point.resource["service.instance.id"]).version


def test_arguments_override_the_launcher(monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start) -> None:
    """An attribute in ``resource_attributes`` replaces that of the launcher."""
    launch(monkeypatch, TORCHRUN)
    pipeline = start(resource_attributes={"training.run.id": "baseline"})
    record()
    assert pipeline.force_flush(60)
    (point,) = receiver.points("loss.count")
    assert ("baseline", 13) == (point.resource["training.run.id"], point.resource["training.rank"])


@pytest.mark.invalid_output("the resource of the application has only a name", "resource.required", "resource.distro")
@pytest.mark.parametrize(
    "arguments",
    [{"rank_attribute": True}, {"resource": Resource({"service.name": "train"})}],
    ids=["asked for", "no instance"],
)
def test_points_have_the_rank_if_needed(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start, arguments: dict[str, Any]
) -> None:
    """The rank is needed if it was asked for, or if all ranks would otherwise write to one series."""
    launch(monkeypatch, {"RANK": "3"})
    pipeline = start(**arguments)
    record()
    assert pipeline.force_flush(60)
    assert [3] == [point.attributes["training.rank"] for point in receiver.points("loss.count")]


def test_rank_attribute_of_a_stat_is_kept(monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start) -> None:
    """If its value is another rank, the Stat has a separate series."""
    launch(monkeypatch, {"RANK": "3"})
    pipeline = start(rank_attribute=True)
    for own in ({}, {"training.rank": 7}, {"training.rank": 3}):
        stat = Stat("loss", [COUNT], 60.0, attributes=own)
        stat.add(1)
        stat.flush()
        del stat
    assert pipeline.force_flush(60)
    found = [(point.attributes["training.rank"], point.value) for point in receiver.points("loss.count")]
    assert [(3, 2), (7, 1)] == sorted(found)[-2:]


def test_points_have_no_rank_without_a_launcher(receiver: Receiver, start: Start) -> None:
    """The rank is unknown even if it was asked for."""
    pipeline = start(rank_attribute=True)
    record()
    assert pipeline.force_flush(60)
    assert ["training.rank" in point.attributes for point in receiver.points("loss.count")] == [False]


def test_other_ranks_export_nothing_with_ranks_zero(
    monkeypatch: pytest.MonkeyPatch,
    receiver: Receiver,
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With ``ranks="zero"`` rank 1 sends, stores and prints nothing, and its code still works."""
    launch(monkeypatch, {"RANK": "1"})
    pipeline = start(ranks="zero")
    record()
    pipeline.meter_provider.get_meter("mine").create_counter("mine").add(1)
    assert pipeline.force_flush(60)
    assert pipeline.shutdown()
    assert ([], [], "") == (receiver.requests, folders(tmp_path), capsys.readouterr().err)


@pytest.mark.parametrize("rank", ["0", None])
def test_rank_zero_exports_with_ranks_zero(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start, rank: str | None
) -> None:
    """A process without a launcher counts as rank zero."""
    launch(monkeypatch, {"RANK": rank} if rank else {})
    pipeline = start(ranks="zero")
    record()
    assert pipeline.force_flush(60)
    assert [1] == receiver.values("loss.count")


@pytest.mark.parametrize(
    ("ranks", "advice"),
    [
        ("Zero", "ranks must be 'all' or 'zero', got 'Zero'"),
        ("none", "ranks must be 'all' or 'zero', got 'none'"),
        ("", "ranks must be 'all' or 'zero', got ''"),
    ],
)
def test_unsupported_ranks_are_refused_with_advice(receiver: Receiver, start: Start, ranks: str, advice: str) -> None:
    """The error names the supported values, and a pipeline that already runs continues."""
    running = start()
    with pytest.raises(ValueError, match=f"^{re.escape(advice)}$"):
        start(ranks=ranks)
    record()
    assert running.force_flush(60)
    assert [1] == receiver.values("loss.count")


DETECT = """\
from opentelemetry.sdk.trace import TracerProvider
print(TracerProvider().resource.attributes["training.rank"])
"""
CONFIGURE = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1])
monitel.emit("epoch")
assert pipeline.force_flush(60)
"""


@pytest.mark.parametrize("first", ["monitel_otlp", "opentelemetry.sdk.resources", "opentelemetry.sdk.trace"])
def test_detector_is_found_by_its_name(run: Run, tmp_path: Path, first: str) -> None:
    """Although the SDK creates resources during its import, any order of imports works."""
    script = tmp_path / "train.py"
    script.write_text(f"import {first}\n{DETECT}")
    ended = run(script, env={"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel", "RANK": "3"})
    assert ("3\n", "") == (ended.stdout, ended.stderr)


def test_detector_works_together_with_the_pipeline(receiver: Receiver, train: Run) -> None:
    """Both set the rank."""
    ended = train(CONFIGURE, receiver.url, env={"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel", "RANK": "3"})
    assert ["monitel: exported 0 windows and numbers, 1 events"] == ended.stderr.splitlines()
    assert [3] == [record.resource["training.rank"] for record in receiver.records("epoch")]


def test_importing_the_package_imports_no_sdk(run: Run) -> None:
    """All public names are available without it, and no others."""
    run("-c", "import sys, monitel_otlp; assert not {'requests', 'opentelemetry.sdk'} & {*sys.modules}")
    assert [] == [name for name in monitel_otlp.__all__ if name not in dir(monitel_otlp)]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        monitel_otlp.nothing  # type: ignore[attr-defined]  # noqa: B018  reading it raises
