"""One line of the table: what a subject prints, as JSON, and what the table makes of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

HEADER = ("what", "monitel", "peer", "ratio", "budget", "ok")
_SCALES = {"ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")), "B": ((1, "B"),), "": ((1, ""),)}


@dataclass
class Row:
    """A number of monitel's, beside a peer's where there is one."""

    what: str  # what was measured
    value: float | None  # monitel's number; None where the package it needs is not installed
    unit: str = "ns"  # ``"ns"``, ``"B"`` or ``""`` of both numbers
    peer: str = ""  # what it is compared with
    peer_value: float | None = None  # the peer's number; None where the peer is not installed
    ratio: float | None = None  # monitel's number in the peer's, the median of the rounds' ratios
    most_ratio: float | None = None  # budget for the ratio
    most: float | None = None  # budget for the value

    @property
    def kept(self) -> bool | None:
        """True if the budget is kept; None without a budget, or without a number to compare."""
        if self.most is not None and self.value is not None:
            return self.value <= self.most
        if self.most_ratio is not None and self.ratio is not None:
            return self.ratio <= self.most_ratio
        return None

    def cells(self) -> tuple[str, ...]:
        peer = f"{self.peer}: {_quantity(self.peer_value, self.unit)}" if self.peer else ""
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}"
        budget = ""
        if self.most is not None:
            budget = f"<= {_quantity(self.most, self.unit)}"
        elif self.most_ratio is not None:
            budget = f"ratio <= {self.most_ratio:g}"
        ok = {True: "yes", False: "NO", None: ""}[self.kept]
        return self.what, _quantity(self.value, self.unit), peer, ratio, budget, ok

    def put(self) -> None:
        print(json.dumps(asdict(self)), flush=True)


def report(
    what: str, costs: Mapping[str, Sequence[float]], peers: Mapping[str, float | None], most: float | None = None
) -> None:
    """Put a row for each peer, with the budget for the ratio, or one without a peer; ``most`` is the budget in ns."""
    own = costs["monitel"]
    if not peers:
        Row(what, median(own), most=most).put()
    for peer, most_ratio in peers.items():
        row = Row(what, median(own), peer=peer, most_ratio=most_ratio, most=most)
        if peer in costs:
            row.peer_value = median(costs[peer])
            row.ratio = median(mine / others for mine, others in zip(own, costs[peer], strict=True))
        row.put()


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "not installed"
    scale, name = next((entry for entry in _SCALES[unit] if value >= entry[0]), _SCALES[unit][-1])
    number = value / scale
    return f"{number:.0f} {name}".rstrip() if number >= 1000 else f"{number:.3g} {name}".rstrip()
