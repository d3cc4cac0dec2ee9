"""Hidden late ranks in real jobs of two to eight ranks, and what other methods name in the same measurements.

    .venv-torch/bin/python -m tests.bench.pytorch.late_ranks

takes about three minutes on two cores, and prints a row for each job, and the other methods. With a folder
as argument, measurements are kept there, and those that it has are not made again.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.integration.nightly import late_verdicts
from tests.integration.nightly.late_measurements import Measured, measure
from tests.integration.nightly.late_rows import WORLDS
from tests.integration.nightly.late_verdicts import Suspect

from monitel.console import lateness

ATTEMPTS = 20
METHODS: dict[str, Callable[[Measured], list[Suspect]]] = {
    "monitel": lambda each: [(rank, stage) for _, rank, stage in lateness.suspects(each.times)],
    "frontier of the timers, cut at the batch": lambda each: late_verdicts.usual_frontier(each.sections),
    "maximum of each timer less its median": lambda each: late_verdicts.largest_excess(each.sections),
    "nvidia-resiliency-ext, lowest relative score": lambda each: late_verdicts.nvrx(each.sections),
    "one-logger, longest mean iteration": lambda each: late_verdicts.longest_iteration(each.sections),
}


def all_measured(folder: Path) -> list[Measured]:
    found: list[Measured] = []
    for ranks in WORLDS:
        kept = folder / f"{ranks}.pickle"
        if not kept.exists():
            print(f"{ranks} ranks ...", file=sys.stderr, flush=True)
            kept.write_bytes(pickle.dumps(measure(ranks, folder / str(ranks), ATTEMPTS)))
        found += pickle.loads(kept.read_bytes())
    return found


def rows(found: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    yield "ranks", "injected", "ms a step", "named, largest first", "off", "exposed / step"
    for each in found:
        suspects = lateness.suspects(each.times)
        late = {(rank, stage): seconds for seconds, rank, stage in suspects}
        injected = [delay for delay in each.row.delays if (delay.rank, delay.stage) in late]
        off = [late[delay.rank, delay.stage] / (each.row.shown * delay.mean) - 1 for delay in injected]
        yield (
            str(each.row.ranks),
            str(each.row),
            "; ".join(f"{1000 * delay.mean:.1f}" for delay in each.row.delays),
            "; ".join(f"rank {rank}, {stage}, {1000 * seconds:.1f} ms" for seconds, rank, stage in suspects)
            or "nobody",
            "; ".join(f"{share:+.1%}" for share in off),
            f"{lateness.cycle(each.times) / each.seconds:.2%}",
        )


def methods(found: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the comparison: the number of rows in which each method is right."""
    one = [each for each in found if len(each.row.delays) == 1]
    two = [each for each in found if len(each.row.delays) == 2 and not each.row.hidden]
    yield "method", "rank and stage", "in its first two", "rank", "both of two delays"
    for name, verdict in METHODS.items():
        first = second = rank = both = 0
        for each in one:
            suspects, delay = verdict(each), each.row.delays[0]
            first += suspects[:1] == [(delay.rank, delay.stage)]
            second += (delay.rank, delay.stage) in suspects[:2]
            rank += bool(suspects) and suspects[0][0] == delay.rank
        for each in two:
            both += {(delay.rank, delay.stage) for delay in each.row.delays} == {*verdict(each)[:2]}
        yield name, *(f"{right} of {len(one)}" for right in (first, second, rank)), f"{both} of {len(two)}"


def thresholds(found: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    one, none = ([each for each in found if len(each.row.delays) == number] for number in (1, 0))
    yield (
        "method",
        "the late rank and nobody else",
        "the late rank and others",
        "only others",
        "nobody",
        "no delay: somebody",
    )
    named: dict[str, Callable[[Measured], set[Suspect]]] = {
        "monitel, above 2 % of the step": lambda each: {*METHODS["monitel"](each)},
        "nvidia-resiliency-ext, score below 0.75": lambda each: late_verdicts.nvrx_stragglers(each.sections),
    }
    for name, verdict in named.items():
        alone = among = others = nobody = 0
        for each in one:
            suspects, delay = verdict(each), each.row.delays[0]
            right = (delay.rank, delay.stage) in suspects
            alone += right and len(suspects) == 1
            among += right and len(suspects) > 1
            others += not right and bool(suspects)
            nobody += not suspects
        false = sum(bool(verdict(each)) for each in none)
        yield name, *(f"{number} of {len(one)}" for number in (alone, among, others, nobody)), f"{false} of {len(none)}"


def table(lines: Iterator[tuple[str, ...]]) -> str:
    head, *body = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ("---",) * len(head), *body])


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        found = all_measured(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
    for lines in (rows(found), methods(found), thresholds(found)):
        print(table(lines), end="\n\n")
    off = [
        abs(seconds / each.row.delays[0].mean - 1)
        for each in found
        if len(each.row.delays) == 1
        for seconds, rank, stage in lateness.suspects(each.times)[:1]
        if (rank, stage) == (each.row.delays[0].rank, each.row.delays[0].stage)
    ]
    clean = [max(lateness.stage_late(each.times).values()) for each in found if not each.row.delays]
    adds = [abs(lateness.cycle(each.times) / each.seconds - 1) for each in found]
    print(f"lateness off by {median(off):.1%} (median), at most {max(off):.1%}")
    print(f"largest lateness without a delay {1000 * max(clean):.1f} ms")
    print(f"exposed times and the step differ by at most {max(adds):.2%}")
    print(f"measured more than once: {sum(each.attempts > 1 for each in found)} of {len(found)} rows")
    print(f"measured on a busy machine: {sum(not each.quiet for each in found)} of {len(found)} rows")


if __name__ == "__main__":
    main()
