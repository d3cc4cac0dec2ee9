"""Stat.add: the call that a training loop makes at every step."""

from datetime import timedelta

from race import optional, race, timed, twin
from row import report

import monitel

_ROUNDS = 201
_IN_C = twin() == "C"
_NAMES = ("VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN")


def main() -> None:
    stat = monitel.stat("loss", window_size=1e9)
    contenders = {
        "monitel": timed("stat.add(0.25)", lambda: {"stat": stat}),
        "list.append": timed("samples.append(0.25)", lambda: {"samples": []}),
    }
    if torch := optional("torch.monitor"):
        torchs = torch.Stat("loss", [getattr(torch.Aggregation, each) for each in _NAMES], timedelta(days=1000))
        contenders["torch.monitor"] = timed("stat.add(0.25)", lambda: {"stat": torchs})
    budgets = {"list.append": 2.0, "torch.monitor": 1 / 8} if _IN_C else {"torch.monitor": 2.0}
    report(f"Stat.add, {twin()}", race(contenders, _ROUNDS), budgets)


if __name__ == "__main__":
    main()
