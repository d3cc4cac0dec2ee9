"""Ranges: ``with record_function()`` while nobody listens and while a profile records."""

from typing import Any

from race import Contender, optional, race, timed
from row import report

from monitel.profiler import profile, record_function

_CODE = "with record_function('forward'): pass"
_TORCHS = "torch record_function"
_CALLS = 1000


def recording(make: Any, label: Any) -> Contender:
    """Time ranges within a profile, which starts before the clock does and stops with the next round."""
    running: list[Any] = []

    def prepare() -> dict[str, Any]:
        for prof in running:
            prof.stop()
        running[:] = [make()]
        running[0].start()
        return {"record_function": label}

    timing = timed(f"for _ in range({_CALLS}):\n    {_CODE}", prepare, calls=_CALLS)

    def one_round() -> float:
        cost = timing()
        running.pop().stop()
        return cost

    running.pop().stop()  # timed() asks for the names once
    return one_round


def main() -> None:
    torch = optional("torch.profiler")
    idle = {"monitel": timed(_CODE, lambda: {"record_function": record_function})}
    recorded = {"monitel": recording(profile, record_function)}
    if torch is not None:
        label = torch.record_function
        idle[_TORCHS] = timed(_CODE, lambda: {"record_function": label})
        recorded[_TORCHS] = recording(torch.profile, label)
    report("range, nobody listens", race(idle), {_TORCHS: None}, most=300)
    report("range, recorded", race(recorded), {_TORCHS: None}, most=1500)


if __name__ == "__main__":
    main()
