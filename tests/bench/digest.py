"""What a digest costs: the rank that hands over, and rank zero, which hears 64 ranks of 50 Stats.

CPU and bytes are of the code that does the work, run here without a network in between. docs/distributed.md reckons on.
"""

from __future__ import annotations

import time
import tracemalloc
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from race import optional
from row import Row

import monitel
from monitel.aggregation import TORCHS

if TYPE_CHECKING:
    from collections.abc import Callable

_RANKS, _RANKS_A_NODE, _STATS, _NAMED = 64, 8, 50, 4
_ROUNDS = 20
_WINDOW_NS = 60 * 10**9
_BUDGET_NS = 20e3  # of rank zero, for a window of a rank


def definitions() -> list[monitel.StatDefinition]:
    """Four Stats with names of their own; the others share one, and differ by an attribute."""
    names: list[tuple[str, dict[str, int]]] = [
        (name, {}) for name in ("loss", "step.time", "throughput", "gradient.norm")
    ]
    layers = [("layer.gradient.norm", {"layer": layer}) for layer in range(_STATS - _NAMED)]
    asked = TORCHS
    return [monitel.StatDefinition(n, asked, "s", "", MappingProxyType(a), False) for n, a in [*names, *layers]]


def windows(number: int, rank: int) -> list[monitel.Window]:
    """A rank's windows that end at one grid line."""
    end_ns = time.time_ns() // _WINDOW_NS * _WINDOW_NS + number * _WINDOW_NS
    values = 0.1 + rank / 7, 0.01, 0.2, 0.15
    return [
        monitel.Window(each, end_ns - _WINDOW_NS, end_ns, 500, *values, 0, 100 * number, 100 * number + 99)
        for each in DEFINITIONS
    ]


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time in ns, and what came of it."""
    begin = time.thread_time_ns()
    result = work()
    return time.thread_time_ns() - begin, result


DEFINITIONS = definitions()


def letters_of_node(node: int, number: int) -> tuple[float, list[bytes], list[bytes]]:
    """What its ranks write in a minute, and the CPU time that it takes; and what its first rank makes of it."""
    from monitel_otlp import letters
    from monitel_otlp.cells import Row as Given
    from monitel_otlp.digest import Share

    def write(rows: list[Given]) -> list[bytes]:
        parts = range(0, len(rows), letters.ROWS)
        return [letters.write(begin, range(_RANKS_A_NODE), rows[begin : begin + letters.ROWS]) for begin in parts]

    def hand_over(rank: int, closed: list[monitel.Window]) -> tuple[list[Given], list[bytes]]:
        rows = [Given(window.definition, Share.of(rank, window)) for window in closed]
        return rows, write(rows)

    every, single, spent = [], [], 0.0
    for rank in range(node * _RANKS_A_NODE, (node + 1) * _RANKS_A_NODE):
        closed = windows(number, rank)
        more, (rows, written) = cpu(lambda: hand_over(rank, closed))  # noqa: B023  called here
        spent += more
        single += written
        every += rows
    every.sort(key=lambda row: id(row.definition))
    return spent, single, write(every)


def main() -> None:
    """Measure each part by itself, per window of a rank."""
    from monitel_otlp import letters
    from monitel_otlp.cells import Cells, Closed
    from monitel_otlp.digest import RanksMapping
    from monitel_otlp.mapping import CumulativeMapping, Points
    from monitel_otlp.place import Place
    from monitel_otlp.windows import WindowQueue

    place = Place("run", 0, _RANKS, "node", (), ())
    cells = Cells(15.0, frozenset(range(_RANKS)))
    known: dict[str, monitel.StatDefinition] = {}
    mapping, queue = RanksMapping(CumulativeMapping(0)), WindowQueue(100_000)

    def take(lines: list[bytes]) -> None:
        for line in lines:
            for each in letters.read(line, place, known).rows:
                cells.add(each, 0.0)

    def export() -> tuple[list[Closed], bytes]:
        points, closed = Points(), list(cells.close(0.0, frozenset()))
        for each in closed:
            queue.put(each.digest)
        mapping.write(queue.take(_STATS), points)
        return closed, points.request.SerializeToString()

    handing, hearing, whole = [], [], []
    every = _RANKS * _STATS
    for number in range(_ROUNDS):
        nodes = [letters_of_node(node, number) for node in range(_RANKS // _RANKS_A_NODE)]
        lines = [line for _, _, written in nodes for line in written]
        heard, _ = cpu(lambda: take(lines))  # noqa: B023  called here
        exported, (closed, body) = cpu(export)
        if [_RANKS] * _STATS != [each.digest.ranks for each in closed]:
            raise SystemExit("not all ranks are in the digest")
        handing.append(sum(spent for spent, _, _ in nodes) / every)
        hearing.append(heard / every)
        whole.append((heard + exported) / every)
    Row("digest: a rank hands over a window", median(handing)).put()
    Row("digest: rank zero takes in a window", median(hearing)).put()
    Row("digest: rank zero, a window from letter to request", median(whole), most=_BUDGET_NS).put()
    Row("digest: a rank's letters, a window", sum(len(line) for _, own, _ in nodes for line in own) / every, "B").put()
    Row("digest: a node's letters, a window", sum(map(len, lines)) / every, "B").put()
    Row("digest: the request of 50 Stats", len(body), "B").put()
    lines = [line for node in range(_RANKS // _RANKS_A_NODE) for line in letters_of_node(node, _ROUNDS)[2]]
    tracemalloc.start()
    take(lines)
    Row("digest: memory of a window until its cell is over", tracemalloc.get_traced_memory()[0] / every, "B").put()


if __name__ == "__main__":
    if optional("monitel_otlp") is None:
        Row("what a digest costs", None).put()
    else:
        main()
