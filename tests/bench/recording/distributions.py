"""Distributions: what a sample costs with a histogram."""

import random
from collections.abc import Callable
from typing import Any

from race import race, timed, twin
from row import report

import monitel
from monitel import HISTOGRAM, STDDEV
from monitel.stats.definition import TORCHS


def main() -> None:
    """Measure samples that spread over three octaves, as step times do; and some that hardly differ."""
    rng = random.Random(1)
    samples = [rng.lognormvariate(0, 0.3) for _ in range(1000)]
    adding("histogram", samples, HISTOGRAM)
    adding("histogram and stddev", samples, HISTOGRAM, STDDEV)
    adding("stddev", samples, STDDEV)
    # So close together that a table does not have their buckets.
    adding("histogram, samples within 1 %", [rng.uniform(0.995, 1.005) for _ in range(1000)], HISTOGRAM)


def adding(what: str, samples: list[float], *extra: monitel.Aggregation) -> None:
    """One thread that adds to one Stat, with different samples: the same one again would be foretold by the CPU."""

    def calling(add: Callable[[float], object]) -> Callable[[], float]:
        names: dict[str, Any] = {"samples": samples, "add": add}
        return timed("for sample in samples: add(sample)", lambda: names, len(samples))

    stat, kept = monitel.Stat("loss", [*TORCHS, *extra], 1e9), list[float]()
    costs = race({"monitel": calling(stat.add), "list.append": calling(kept.append)}, 201)
    report(f"Stat.add, {what}, {twin()}", costs, {"list.append": 3.0 if twin() == "C" else None})


if __name__ == "__main__":
    main()
