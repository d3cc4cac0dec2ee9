"""Environment variables of two arguments that require each other: one alone is a warning."""

import pytest

from monitel.variables import Variable, positive, reads_variables

CHOICES: dict[str, Variable | str] = {
    "flops": positive()._replace(requires="peak"),
    "peak": positive()._replace(requires="flops"),
}


@reads_variables(CHOICES)
def train(*, flops: float | None = None, peak: float | None = None) -> tuple[float | None, float | None]:
    """Return the arguments; raise for one alone, as an instrumented function does."""
    if (flops is None) != (peak is None):
        raise ValueError("the arguments contradict each other")
    return flops, peak


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"FLOPS": "1e9"}, "FLOPS: flops requires peak, which is None, got '1e9'"),
        ({"PEAK": "1e12"}, "PEAK: peak requires flops, which is None, got '1e12'"),
        ({"FLOPS": "1e9", "PEAK": "fast"}, "PEAK: expected a positive number, got 'fast'"),
    ],
)
def test_one_alone_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, values: dict[str, str], problem: str
) -> None:
    """The variable is not used."""
    monkeypatch.setattr("monitel.process.failures._warned", set())
    for name, value in values.items():
        monkeypatch.setenv(f"MONITEL_{name}", value)
    assert (None, None) == train()
    assert f"MONITEL_{problem}; using " in caplog.records[0].getMessage()


def test_pair_of_variables_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Both may come from variables, or one of them from the caller."""
    monkeypatch.setenv("MONITEL_FLOPS", "1e9")
    assert (1e9, 1e12) == train(peak=1e12)
    monkeypatch.setenv("MONITEL_PEAK", "2e12")
    assert (1e9, 2e12) == train()
    assert [] == caplog.records
