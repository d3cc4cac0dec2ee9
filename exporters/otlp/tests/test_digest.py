"""The digest of many ranks' windows: the exact numbers, whichever way they come together."""

from __future__ import annotations

import math
import random
from types import MappingProxyType

import pytest

import monitel
from monitel_otlp.digest import Share, digest, quantile

numpy = pytest.importorskip("numpy")

DEFINITION = monitel.StatDefinition("step.time", tuple(monitel.Aggregation), "s", "", MappingProxyType({}), False)
RANDOM = range(30)  # seeds


def share(rank: int, samples: list[float], end_ns: int = 1000) -> Share:
    """A rank's window with these samples."""
    numbers = math.fsum(samples), min(samples), max(samples), samples[-1]
    with numpy.errstate(all="ignore"):
        stddev, histogram = float(numpy.std(samples)), monitel.Histogram.of(samples)
    return Share(rank, end_ns - 60, end_ns, len(samples), *numbers, 0, rank, stddev, histogram)


def drawn(rng: random.Random) -> dict[int, list[float]]:
    """Some ranks, and some samples of each."""
    scale = 10.0 ** rng.randint(-300, 300)
    ranks = rng.sample(range(10_000), rng.randint(1, 80))
    return {rank: [rng.gauss(0, scale) for _ in range(rng.randint(1, 9))] for rank in ranks}


@pytest.mark.parametrize("seed", RANDOM)
def test_it_is_exact(seed: int) -> None:
    """As numpy has it, over all samples and over the ranks' means."""
    samples = drawn(random.Random(seed))
    found = digest(DEFINITION, {rank: share(rank, own) for rank, own in samples.items()})
    every = [sample for own in samples.values() for sample in own]
    assert (len(every), len(samples)) == (found.count, found.ranks)
    assert (min(every), max(every)) == (found.min, found.max)
    assert pytest.approx(math.fsum(every), rel=1e-12, abs=1e-12 * max(map(abs, every))) == found.sum
    means = [math.fsum(own) / len(own) for own in samples.values()]
    assert [min(means), max(means)] == [found.lowest, found.highest]
    expected = numpy.quantile(means, [0.5, 0.99])
    assert pytest.approx(list(expected), rel=1e-12, abs=1e-12 * max(map(abs, means))) == [found.p50, found.p99]


@pytest.mark.parametrize("seed", RANDOM)
def test_the_order_does_not_matter(seed: int) -> None:
    """Not a bit of it: whoever is heard first."""
    rng = random.Random(seed)
    shares = [share(rank, own, end_ns=1000 + rng.randrange(3)) for rank, own in drawn(rng).items()]
    first = digest(DEFINITION, {each.rank: each for each in shares})
    rng.shuffle(shares)
    assert first == digest(DEFINITION, {each.rank: each for each in shares})


@pytest.mark.parametrize("seed", RANDOM)
def test_windows_of_one_rank_are_added_up(seed: int) -> None:
    """Whichever comes first, and however its samples are parted into windows."""
    rng = random.Random(seed)
    samples = [float(rng.randrange(1000)) for _ in range(rng.randint(2, 50))]
    cut = rng.randrange(1, len(samples))
    earlier, later = share(7, samples[:cut], 1000), share(7, samples[cut:], 1060)
    whole = share(7, samples, 1060)._replace(start_ns=940)
    for joined in (earlier.joined(later), later.joined(earlier)):
        assert pytest.approx(whole.stddev, rel=1e-9) == joined.stddev
        assert whole == joined._replace(stddev=whole.stddev)


def test_distributions_are_of_all_samples() -> None:
    """Buckets and standard deviation, of samples that have no neat sums too; None where a rank has sent none."""
    samples = drawn(random.Random(1))
    shares = {rank: share(rank, own) for rank, own in samples.items()}
    every = [sample for own in samples.values() for sample in own]
    found = digest(DEFINITION, shares)
    expected = monitel.Histogram.of(every)
    assert pytest.approx(float(numpy.std(every)), rel=1e-9) == found.stddev
    assert found.histogram is not None
    assert (expected.scale, expected.positive, expected.negative) == (
        found.histogram.scale,
        found.histogram.positive,
        found.histogram.negative,
    )
    shares[max(shares)] = shares[max(shares)]._replace(stddev=None, histogram=None)
    assert (None, None) == (digest(DEFINITION, shares).stddev, digest(DEFINITION, shares).histogram)


def test_nan_spoils_the_mean_alone() -> None:
    """It is seen there; the spread over ranks is that of the others."""
    shares = {0: share(0, [1.0]), 1: share(1, [math.nan]), 2: share(2, [3.0])}
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        found = digest(DEFINITION, {rank: shares[rank] for rank in order})
        assert math.isnan(found.mean)
        assert (3, 1.0, 3.0) == (found.ranks, found.min, found.max)
        assert (1.0, 2.0, 3.0) == (found.lowest, found.p50, found.highest)


def test_nothing_but_nan() -> None:
    """NaN it is, everywhere."""
    found = digest(DEFINITION, {0: share(0, [math.nan])})
    assert all(map(math.isnan, (found.mean, found.min, found.max, found.lowest, found.p50, found.p99, found.highest)))


@pytest.mark.parametrize("sums", [[math.inf, 1.0], [-math.inf, math.inf], [1e308, 1e308, -1e308], [5e-324, 5e-324]])
def test_the_ends_of_the_numbers(sums: list[float]) -> None:
    """Infinities, sums beyond what a float holds, and the smallest ones raise nothing."""
    found = digest(DEFINITION, {rank: share(rank, [value]) for rank, value in enumerate(sums)})
    assert (len(sums), min(sums), max(sums)) == (found.ranks, found.min, found.max)


def test_all_equal_is_equal() -> None:
    """No rounding on the way."""
    found = digest(DEFINITION, {rank: share(rank, [0.1]) for rank in range(1000)})
    assert {0.1} == {found.lowest, found.p50, found.p99, found.highest, found.min, found.max, found.mean}


@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.99, 1.0])
def test_quantiles_are_numpys(q: float) -> None:
    """Of any number of values."""
    rng = random.Random(0)
    for length in range(1, 40):
        values = sorted(rng.random() for _ in range(length))
        assert pytest.approx(float(numpy.quantile(values, q)), rel=1e-14) == quantile(values, q)


def test_times_and_steps() -> None:
    """From the first start to the last end; the step is the furthest, and the last sample that of the last end."""
    one, other = share(3, [1.0], 1000)._replace(discarded=2), share(1, [2.0], 1010)._replace(discarded=3)
    found = digest(DEFINITION, {3: one, 1: other})
    assert (940, 1010, 2.0, 5, 3) == (found.start_ns, found.end_ns, found.last, found.discarded, found.last_step)
