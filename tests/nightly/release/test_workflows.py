"""The workflow that publishes has only the rights that it needs."""

import pytest
from tests.support.paths import ROOT

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")


def test_only_publishing_has_an_identity() -> None:
    """The job that publishes gets a token of a few minutes, only for a tag, after all files were built and checked."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))["jobs"]
    assert ["publish"] == [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert "github.ref_type == 'tag'" == jobs["publish"]["if"]
    assert {"same-everywhere", "wheels"} == set(jobs["publish"]["needs"])
    assert not any("run" in step for step in jobs["publish"]["steps"])
