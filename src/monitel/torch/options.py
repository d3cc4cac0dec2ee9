"""Options of :func:`monitel.torch.instrument`: the sources that it may install, checks of arguments, variables."""

from __future__ import annotations

from collections.abc import Collection

from monitel.attributes import checked_text
from monitel.stats.arguments import window_length_ns
from monitel.variables import Variable, positive

#: The names of the sources, and whether each one is installed by default.
SOURCES = {
    "stages_on_device": False,  # before the stages and the steps: the range of an optimizer has the step of its start
    "stages": True,
    "steps": True,
    "loading": True,
    "waits": True,
    "stuck": True,
    "monitor": True,
    "compilation": True,
    "failures": True,
    "checkpoints": True,
    "process_groups": True,
    "tensors": True,
}


def chosen_sources(sources: str | Collection[str] | None) -> frozenset[str]:
    """Return the names of the sources that an argument chooses.

    Args:
        sources: Names, or a str with commas between them. If all of them have a sign, ``+name`` or ``-name``, they
            change the default; otherwise they replace it. None: the default.

    Raises:
        TypeError: It is not a str or a collection of str: an iterator would give its names only once.
        ValueError: A name is unknown, only some have a sign, or ``stages_on_device`` is without ``stages``.
    """
    default = frozenset(name for name, installed in SOURCES.items() if installed)
    if sources is None:
        return default
    given = sources.split(",") if isinstance(sources, str) else sources
    if not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"sources must be names of sources, got {sources!r:.80}")
    names = [name.strip() for name in given]
    signs = {name.startswith(("+", "-")) for name in names}
    if len(signs) > 1:
        raise ValueError(f"sources must all have a sign, to change the default, or none, got {sources!r:.80}")
    changes = signs == {True}
    chosen = set(default if changes else ())
    for name in names:
        bare = name[1:] if changes else name
        if bare not in SOURCES:
            raise ValueError(f"sources must be names of {', '.join(SOURCES)}, got {name!r:.80}")
        if name.startswith("-"):
            chosen.discard(bare)
        else:
            chosen.add(bare)
    if "stages_on_device" in chosen and "stages" not in chosen:
        raise ValueError("stages_on_device requires stages: it measures the same stages")
    return frozenset(chosen)


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be None or a str, got {value!r:.80}")
    if not checked_text(name, value):
        raise ValueError(f"{name} must be None or a name, got an empty str")


_AMOUNT = positive("a positive and finite number")
_AMOUNT_OR_FUNCTION = _AMOUNT._replace(
    check=positive("a positive and finite number, or callable", other=callable).check
)
_SECONDS = positive("None or a positive number of seconds", below=None, other=lambda value: value is None)

#: The variable of each argument.
CHOICES: dict[str, Variable | str] = {
    "sources": Variable(str, f"names of {', '.join(SOURCES)}", check=lambda _, value: chosen_sources(value)),
    "stuck_after": _SECONDS._replace(parse=lambda text: None if text.lower() == "none" else _SECONDS.parse(text)),
    "rank_group": Variable(str, "a name", check=_check_name),
    "samples_per_step": _AMOUNT_OR_FUNCTION,
    "tokens_per_step": _AMOUNT_OR_FUNCTION,
    "flops_per_step": _AMOUNT_OR_FUNCTION._replace(requires="peak_flops"),
    "peak_flops": _AMOUNT._replace(requires="flops_per_step"),
    "window_size": Variable(
        float, "a number of seconds, at least 0.001", check=lambda _, value: window_length_ns(value)
    ),
}
