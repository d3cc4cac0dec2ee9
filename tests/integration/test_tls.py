"""TLS between the run and the Collector, with a private authority, over HTTP and gRPC."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.integration.conftest import Prometheus, collector_program
from tests.integration.services import run_python
from tests.integration.training import check, train
from tests.support.receiver import Receiver

CERTIFICATES = {
    "OTEL_EXPORTER_OTLP_CERTIFICATE": "authority.pem",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "client.pem",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY": "client.key",
}


@pytest.fixture(params=["http/protobuf", "grpc"])
def encrypted(
    request: pytest.FixtureRequest, backends: Path, tmp_path: Path, prometheus: Prometheus, receiver: Receiver
) -> Iterator[Mapping[str, str]]:
    """The environment of a run that sends, by one protocol, to a Collector that knows its clients by certificate."""
    trustme = pytest.importorskip("trustme", reason="pip install trustme")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    for name, certificate in {
        "server": authority.issue_cert("127.0.0.1"),
        "client": authority.issue_cert("trainer@example.org"),
    }.items():
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        certificate.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    tls = {"cert_file": "server.pem", "key_file": "server.key", "client_ca_file": "authority.pem"}
    tls = {key: str(tmp_path / name) for key, name in tls.items()}
    overlay = tmp_path / "tls.yaml"
    overlay.write_text(json.dumps({"receivers": {"otlp": {"protocols": {"http": {"tls": tls}, "grpc": {"tls": tls}}}}}))
    _, program = collector_program(backends, tmp_path, prometheus.url, receiver, overlay)
    port = program.environment["OTLP_GRPC_PORT" if request.param == "grpc" else "OTLP_HTTP_PORT"]
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": request.param,
        **{variable: str(tmp_path / name) for variable, name in CERTIFICATES.items()},
    }
    with program:
        yield environment


def test_everything_arrives_over_tls(
    encrypted: Mapping[str, str], prometheus: Prometheus, receiver: Receiver, tmp_path: Path
) -> None:
    """The standard variables name the certificates."""
    run = train(tmp_path, environment={**os.environ, **encrypted})
    check(prometheus, run)
    assert run.checkpoints == [record.attributes["number"] for record in receiver.records("checkpoint")]


def test_doctor_says_what_is_missing(encrypted: Mapping[str, str], tmp_path: Path) -> None:
    """Without the authority nothing is sent, and the advice names the variable."""
    doctor, environment = ("-m", "monitel", "doctor"), {**os.environ, **encrypted}
    run_python(tmp_path, *doctor, environment=environment)
    del environment["OTEL_EXPORTER_OTLP_CERTIFICATE"]
    ended = run_python(tmp_path, *doctor, environment=environment, returncode=1)
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in ended.stdout
