"""Healthy jobs in large numbers: none of them gets another verdict."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.promises.test_verdict import synchronous, verdict_of


@pytest.mark.parametrize("part", range(4))
def test_noisy_jobs_are_healthy(part: int) -> None:
    """A thousand jobs of 1 to 32 ranks, with noise of up to 30 % and rare pauses of ten times a stage."""
    wrong = []
    for seed in range(part, 1000, 4):
        random = Random(seed)
        ranks, steps = random.choice((1, 2, 2, 3, 4, 8, 32)), random.choice((20, 30, 50, 100))
        noise, pauses = random.choice((0.02, 0.05, 0.1, 0.2, 0.3)), random.choice((0.0, 0.0, 0.0003))
        found = verdict_of(synchronous(random, ranks, steps, noise=noise, pauses=pauses, late={}))
        if found.kind != "healthy":
            wrong.append((seed, ranks, steps, noise, pauses, found))
    assert [] == wrong
