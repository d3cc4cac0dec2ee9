"""The resource of a process, and its secrets; the detector of ranks; and monitel without the packages of gRPC."""

from pathlib import Path

import pytest
from tests.processes.patience import with_patience
from tests.support.canary import assert_canary_unseen, new_canary
from tests.support.receiver import Receiver
from tests.support.scripts import RECORD, TRAIN, Run, write_script
from tests.support.spools import folders

SCRIPT = """\
with monitel_otlp.configure(spool_dir="spool", endpoint=sys.argv[1] if sys.argv[1] != "offline" else None) as pipeline:
    monitel.stat("loss", [COUNT], 1e9).add(1)
    monitel.emit("epoch")
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("mine"):
        pass
"""


@pytest.mark.parametrize("detectors", ["", "*"])
def test_secret_on_the_command_line_stays_in_the_process(
    receiver: Receiver, run: Run, tmp_path: Path, detectors: str
) -> None:
    """No request, file or output has it, even if the application asks the SDK for its detectors."""
    secret = new_canary()
    path = write_script(tmp_path, with_patience(SCRIPT))
    variables = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": detectors, "MONITEL_RUN_EVENTS": "1"}
    for where in (receiver.url, "offline"):
        ended = run(path, where, "--api-key", secret, f"--password={secret}", env=variables, fresh=True)
        assert_canary_unseen(secret, ended.stdout, ended.stderr)
    assert ["epoch", "run.ended", "run.started"] == sorted(receiver.record_names())
    assert {"metrics", "logs", "traces"} == {request.signal for request in receiver.requests}
    assert folders(tmp_path / "spool")
    assert_canary_unseen(secret, *(request.body for request in receiver.requests), tmp_path / "spool")


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


#: Read by every Python below it: the packages of gRPC cannot be found.
SITE = """\
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    missing = name.split(".")[0] == "grpc" or name.startswith("google.rpc")
    return None if missing else found(name, path, target)
PathFinder.find_spec = find_spec
"""
INSTALL = "pip install 'monitel-otlp[grpc]'"


def test_without_the_packages_of_grpc_everything_else_works(
    receiver: Receiver, train: Run, run: Run, tmp_path: Path
) -> None:
    """Over HTTP; ``grpc`` is an error as an argument, and one warning as a variable, with the command to install it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SITE, encoding="utf-8")
    site = {"PYTHONPATH": str(tmp_path / "site")}
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
