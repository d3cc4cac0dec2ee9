"""Configuration: addresses, secrets, pairs of variables, and what host and launcher add to the resource."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.checks import SetEnv, Warned
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, emit
from tests.support.receiver import Receiver

import monitel_otlp
from monitel.variables import positive, reads_variables
from monitel_otlp.attempts import program_and_script
from monitel_otlp.config.endpoint import parse_address
from monitel_otlp.config.secret import MASKED, masker, parts_of_header
from monitel_otlp.transport.answer import error_text

TOKEN = "sesame-4711"
PARSED = {
    "http://localhost:4318": ("http://localhost:4318", None),
    "HTTPS://Host.example.": ("https://Host.example.", None),
    "http://[::1]:4318/base/": ("http://[::1]:4318/base/", None),
    "http://my_collector:4318?a=b": ("http://my_collector:4318", None),
    "http://user:p%40ss@host/x": ("http://host/x", ("user", "p@ss")),
    "http://user:p@ss@host/x": ("http://host/x", ("user", "p@ss")),
    "http://token@host": ("http://host", ("token", "")),
    "http://host:1/\u00e4": ("http://host:1/\u00e4", None),
    "http://host:": ("http://host", None),
}


def test_address_is_parsed() -> None:
    """The public form has neither user nor password nor query. The default port depends on the scheme."""
    for url, expected in PARSED.items():
        address = parse_address(url)
        assert expected == (address.public, address.credentials), url
    assert (80, 443, 1) == tuple(parse_address(url).effective_port for url in ("http://a", "https://a", "https://a:1"))
    joined = parse_address("http://host/base/?key=1").joined("/v1/logs")
    assert ("http://host/base/v1/logs", "key=1") == (joined.public, joined.query.reveal())


def test_mask_hides_parts_of_headers_and_short_secrets_as_words() -> None:
    """The token without its scheme, user and password of Basic; other words that contain a short secret stay."""
    mask = masker([*parts_of_header(f"Bearer {TOKEN}"), *parts_of_header("Basic bWU6b3BlbiBzZXNhbWU="), "47", ""])
    text = f"{TOKEN} open sesame Bearer me same 4711: 47"
    assert f"{MASKED} {MASKED} {MASKED} Bearer {MASKED} same 4711: {MASKED}" == mask(text)
    assert f"no user {MASKED}" == masker(parts_of_header(f'Token token="{TOKEN}", id="7"'))(f"no user {TOKEN}")


#: A password in texts of peers. They escape other characters than Python does, and some escape twice.
ESCAPED = [
    r'{"key": "an\"odd\\pass&word</4711"}',
    r'{"key": "an\"odd\\pass\u0026word\u003c\/4711"}',
    r'{"error": "{\"key\": \"an\\\"odd\\\\pass\"}"}',
    r"an&#34;odd\pass&amp;word&lt;/4711",
    "an%22odd%5Cpass&word%3C/4711",
    "an%2522odd%255Cpass%2526word",
]


@pytest.mark.parametrize("text", ESCAPED)
def test_mask_finds_a_secret_below_the_escapes_of_a_peer(text: str) -> None:
    """As a detail of gRPC, and quoted as the body of a response."""
    for shown in (text, error_text(text.encode())):
        masked = masker(['an"odd\\pass&word</4711'])(f"no access for {shown} today")
        assert (True, False) == (masked.startswith("no access for "), "odd" in masked)


def test_command_is_described_whatever_its_arguments_are() -> None:
    """Program and script; the text of ``-c`` may be longer than a file name."""
    assert f"python3 {__file__}" == program_and_script(["/usr/bin/python3", "-u", __file__, "--lr", "0.1"])
    assert "python3" == program_and_script(["python3", "-c", "print(1)\n" * 1000])


@reads_variables({"flops": positive()._replace(requires="peak"), "peak": positive()._replace(requires="flops")})
def train(*, flops: float | None = None, peak: float | None = None) -> tuple[float | None, float | None]:
    return flops, peak


def test_one_variable_of_a_pair_is_a_warning(setenv: SetEnv, caplog: pytest.LogCaptureFixture) -> None:
    """The variable is not used, unless the other one comes from a variable or from the caller."""
    setenv(MONITEL_FLOPS="1e9")
    assert [(None, None), (1e9, 1e12)] == [train(), train(peak=1e12)]
    setenv(MONITEL_PEAK="fast")
    assert (None, None) == train()
    setenv(MONITEL_PEAK="2e12")
    assert (1e9, 2e12) == train()
    problems = ("FLOPS: flops requires peak, which is None, got '1e9'", "PEAK: expected a positive number, got 'fast'")
    assert [True, True] == [f"MONITEL_{each}; using " in caplog.text for each in problems]


WARNING = "torch.distributed reports rank"


Initialize = Callable[[int, int], None]  # type of the fixture ``initialize``


@pytest.fixture(autouse=True)
def initialize(monkeypatch: pytest.MonkeyPatch) -> Initialize:
    """Return a function that makes a torch.distributed of a rank and a world size; until then there is none."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)

    def initialize(rank: int, world_size: int) -> None:
        functions = {"is_available": True, "is_initialized": True, "get_rank": rank, "get_world_size": world_size}
        fake = SimpleNamespace(**{name: lambda value=value: value for name, value in functions.items()})
        monkeypatch.setitem(sys.modules, "torch.distributed", fake)

    return initialize


@pytest.mark.parametrize(
    ("variables", "run"),
    [
        ({"JOB_NAME": "train-nightly", "BUILD_NUMBER": "7", "JOB_ID": "of something else"}, None),
        ({"RAY_JOB_ID": "01000000"}, None),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "4711"}, None),
        ({"TORCHELASTIC_RUN_ID": "run-7", "SLURM_JOB_ID": "4711"}, "run-7"),  # the innermost launcher
        ({"SLURM_JOB_ID": " 4711\n"}, "4711"),
        ({"JOB_NAME": "train.sh", "JOB_ID": "31", "SGE_TASK_ID": "undefined"}, "31"),
        ({"JOB_NAME": "train.sh", "JOB_ID": "31", "SGE_TASK_ID": "4"}, "31.4"),
    ],
)
def test_id_of_a_run_names_one_run(setenv: SetEnv, variables: dict[str, str], run: str | None) -> None:
    """The name of a job, a number of each cluster and torchrun's default are the same in independent runs."""
    setenv(variables)
    assert run == monitel_otlp.RankResourceDetector().detect().attributes.get("training.run.id")


def test_rank_of_torch_comes_first(setenv: SetEnv, initialize: Initialize, receiver: Receiver, start: Start) -> None:
    """A spawned process inherits variables, but initializes torch.distributed. A group of one process counts not."""
    setenv(RANK="0", WORLD_SIZE="1")
    for rank, world_size in ((3, 4), (0, 1)):
        initialize(rank, world_size)
        assert emit(start(), "epoch")
        resource = receiver.records("epoch")[-1].resource
        assert (rank, world_size) == (resource["training.rank"], resource["training.world_size"])


@pytest.mark.parametrize(
    ("variables", "expected"), [({}, "no training.rank"), ({"RANK": "0"}, "training.rank=0"), ({"RANK": "2"}, None)]
)
def test_warning_if_torch_reports_another_rank(
    *, setenv: SetEnv, initialize: Initialize, start: Start, warned: Warned, variables: dict[str, str], expected: Any
) -> None:
    """One warning names both ranks and what to do."""
    setenv(variables)
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    assert [] == warned(WARNING)
    initialize(2, 4)
    for _ in range(3):
        assert pipeline.force_flush(DEADLINE)
    message = (
        "torch.distributed reports rank 2 of 4, but the telemetry of this process has {}: call configure() or start() "
        "after init_process_group(), or start the ranks with torchrun"
    )
    assert [message.format(expected)] * (expected is not None) == warned(WARNING)
