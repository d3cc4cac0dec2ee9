"""The files of ``compose/``: what must hold of them whether or not something runs here."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import COMPOSE
from tests.integration.stack.filling import RULE_FILES

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")

SETTINGS = dict(re.findall(r"^([A-Z]\w*)=(.*)$", (COMPOSE / ".env").read_text(), re.MULTILINE))
FILE: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
PROFILES = ("default", "test", "tensorboard")
NO_HEALTHCHECK = {"otelcol", "tempo"}  # images without a shell whose programs do not ask themselves


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_bounded(name: str) -> None:
    """Pinned by version, on 127.0.0.1 only, with a memory limit, restarted, healthy or not.

    Data is in named volumes; what is mounted from the clone cannot be written, and exists before Docker makes it.
    """
    service = SERVICES[name]
    variable = re.fullmatch(r"[\w/-]+:\$\{(\w+_VERSION)\}", service["image"])
    assert variable
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", SETTINGS[variable[1]])
    assert service["ports"]
    for port in service["ports"]:
        published = re.fullmatch(r"127\.0\.0\.1:\$\{(\w+_PORT)\}:\d+", port)
        assert published, port
        assert SETTINGS[published[1]].isdecimal()
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert "unless-stopped" == service["restart"]
    assert ("healthcheck" in service) == (name not in NO_HEALTHCHECK)
    for volume in service["volumes"]:
        source, _, _ = volume.partition(":")
        if source.startswith("."):
            assert volume.endswith(":ro")
            assert (COMPOSE / source).exists()
        else:
            assert source in FILE["volumes"]


def test_profiles_settings_and_rules_are_complete() -> None:
    """The tests need three services; .env has nothing that no file reads; Prometheus has each rule file."""
    started = {profile: {name for name in SERVICES if profile in SERVICES[name]["profiles"]} for profile in PROFILES}
    assert {"otelcol", "prometheus", "loki"} == started["test"]
    assert {"otelcol", "prometheus", "loki", "tempo", "grafana"} == started[SETTINGS["COMPOSE_PROFILES"]]
    assert set(SERVICES) == started["test"] | started["default"] | started["tensorboard"]
    read = "".join((COMPOSE / name).read_text() for name in ("compose.yaml", "loki.yaml"))
    assert [] == [name for name in SETTINGS if f"${{{name}" not in read and name != "COMPOSE_PROFILES"]
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"] if ".yml:" in volume}
    assert {f"/etc/prometheus/{name}" for name in ("prometheus.yml", *RULE_FILES)} == mounted


def test_programs_have_the_same_ports_without_compose() -> None:
    """Their own defaults are those of .env, on 127.0.0.1; in a container, rules and data are where they are mounted."""
    defaults = dict(re.findall(r"\$\{env:(\w+):-([^}]*)\}", (COMPOSE / "otelcol.yaml").read_text()))
    own = {"OTELCOL_HOST": "127.0.0.1", **{name: SETTINGS[name] for name in ("OTLP_HTTP_PORT", "OTLP_GRPC_PORT")}}
    urls = {f"{name}_URL": f"http://127.0.0.1:{SETTINGS[f'{name}_PORT']}" for name in ("PROMETHEUS", "LOKI")}
    assert (own | urls).items() <= defaults.items()
    read = (COMPOSE / "loki.yaml").read_text()
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", read))
    own = {"LOKI_HOST": "127.0.0.1", "LOKI_DIR": "/loki", "LOKI_RULES": "/etc/loki/rules"}
    assert (own | {name: SETTINGS[name] for name in ("LOKI_PORT", "LOKI_GRPC_PORT")}).items() <= defaults.items()
    assert read.count("${") == len(re.findall(r"\$\{\w+:-[^}]+\}", read))
    assert {f"./loki-rules:{own['LOKI_RULES']}:ro", f"loki:{own['LOKI_DIR']}"} <= {*SERVICES["loki"]["volumes"]}


def test_grafana_lets_nobody_log_in() -> None:
    """Anonymous viewers only: no account, no form, no password."""
    environment = SERVICES["grafana"]["environment"]
    expected = {
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
    }
    assert expected.items() <= environment.items()
    assert not [name for name in environment if "PASSWORD" in name]


def test_grafana_finds_what_it_is_given() -> None:
    """Each source of data is a service on its own port, and the folder of the dashboards is mounted there."""
    provisioning = COMPOSE / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "datasources.yaml").read_text())["datasources"]
    ports = {name: service["ports"][0].rpartition(":")[2] for name, service in SERVICES.items()}
    assert {name: f"http://{name}:{ports[name]}" for name in ("prometheus", "loki", "tempo")} == {
        each["uid"]: each["url"] for each in sources
    }
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "dashboards.yaml").read_text())["providers"]
    folder = Path(provider["options"]["path"])
    assert f"./grafana/dashboards:{folder}:ro" in SERVICES["grafana"]["volumes"]
