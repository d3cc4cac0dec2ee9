"""Ranges: ``with record_function()`` while nobody listens and while a profile records."""

import sys
from typing import Any

from race import Contender, optional, race, timed
from row import report

from monitel.profiler import profile, record_function

_CODE = "with record_function('forward'): pass"
_RECORD_FUNCTION = "torch record_function"
_CALLS = 1000


class Recording:
    """A contender that records so many ranges per round, inside a separate profile."""

    def __init__(self, make: Any, label: Any) -> None:
        self._make, self._label = make, label

    def contender(self) -> Contender:
        """Time the ranges only: the profile starts before the clock does, and stops with the next round."""
        running: list[Any] = []

        def prepare() -> dict[str, Any]:
            for prof in running:
                prof.stop()
            running[:] = [self._make()]
            running[0].start()
            return {"record_function": self._label}

        timing = timed(f"for _ in range({_CALLS}):\n    {_CODE}", prepare, calls=_CALLS)

        def one_round() -> float:
            cost = timing()
            running.pop().stop()
            return cost

        running.pop().stop()  # timed() asks for the names once
        return one_round


def idle(loaded: str, *, most: float | None) -> None:
    """Measure while nobody listens."""
    contenders = {"monitel": timed(_CODE, lambda: {"record_function": record_function})}
    torch = sys.modules.get("torch")
    if torch is not None:
        label = torch.profiler.record_function
        contenders[_RECORD_FUNCTION] = timed(_CODE, lambda: {"record_function": label})
    report(f"range, nobody listens{loaded}", race(contenders), {_RECORD_FUNCTION: None} if torch else {}, most=most)


def main() -> None:
    idle("", most=300)
    torch = optional("torch")
    if torch is not None:
        idle(", torch loaded", most=None)
        optional("torch._dynamo")
        idle(", torch.compile loaded", most=None)

    contenders = {"monitel": Recording(profile, record_function).contender()}
    if torch is not None:
        contenders[_RECORD_FUNCTION] = Recording(torch.profiler.profile, torch.profiler.record_function).contender()
    report("range, recorded", race(contenders), {_RECORD_FUNCTION: None}, most=1500)


if __name__ == "__main__":
    main()
