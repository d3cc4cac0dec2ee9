"""Configuration of a run: the Event of one ``config()`` call."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import UserString
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any, Union

from monitel import clock
from monitel.attributes import checked_value, escape_surrogates
from monitel.event import Event
from monitel.handlers import log_event
from monitel.process.failures import ignored, pass_on

#: A part of a configuration: exact built-in types.
ConfigValue = Union[None, bool, int, float, str, "list[ConfigValue]", "dict[str, ConfigValue]"]

_EVENT = "run.config"
_DEEPEST = 20  # levels of nested values
_LARGEST = 100  # elements of an array that is recorded as a list
_MOST = 100_000  # values with parts; those that refer to each other could give any number
_NOTHING: dict[str, Any] = {}
_LEAVES = (str, int, float, bytes, bytearray, range, type, Enum, UserString)
_ADDRESS = r"(?:(?: at)? |(?<==))0x[\da-fA-F]{6,}"


class RunConfig(Event):
    """The Event of one :func:`monitel.config` call.

    ``config`` has everything, with ``***`` in the place of what looks like a secret. ``data`` has the values that an
    Event can hold, by dotted name: all but None and lists.

    Example:
        >>> import monitel
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.config({"lr": 1e-4, "model": {"layers": [2, 2], "dropout": None, "width": 64}})
        >>> events[0].config
        {'lr': 0.0001, 'model': {'layers': [2, 2], 'dropout': None, 'width': 64}}
        >>> events[0].data
        {'lr': 0.0001, 'model.width': 64}
    """

    __slots__ = ("_config",)

    _config: dict[str, ConfigValue]

    def __init__(self, config: Any) -> None:
        tree = _plain(config)
        if not isinstance(tree, dict):
            raise TypeError(
                "config() takes a mapping of names to values, such as vars(arguments), or the values by keyword, "
                f"as in config(lr=0.1), got {type(config).__qualname__}: {config!r:.80}"
            )
        from monitel.process.masking import mask_values  # late: its patterns take a tenth of the import of monitel

        plain = mask_values(tree, os.environ)
        data = {name: value for name, value in flat(plain) if value is not None and not isinstance(value, list)}
        super().__init__(_EVENT, clock.now(), data)
        self._config = plain

    @property
    def config(self) -> dict[str, ConfigValue]:
        """The configuration, in dicts and lists of None, bool, int (64 bits), float and str."""
        return self._config

    def _fields(self) -> tuple[Any, ...]:
        return *super()._fields()[:5], {}, self._config


def config(values: Any = _NOTHING, /, **named: Any) -> None:
    """Record the configuration of a run.

    With monitel-otlp it is the structured body of one log record, with any number of values. With monitel-tensorboard
    it is a table and the hyperparameters of the run.

    Equal configurations are recorded as equal values in each run: sets are sorted, functions and classes are their
    names, and no text has an address. What looks like a secret is masked, as in the command of the run. This is a
    precaution: do not pass secrets.

    Args:
        values: A mapping, a Namespace, a dataclass, or another object with ``to_dict()``, such as the configuration of
            a model. Nested ones, sequences and sets are kept. Arrays and tensors of at most 100 elements are lists,
            larger ones have ``shape`` and ``dtype``. Other values are recorded as their ``str()``.
        **named: Further values; they replace items of ``values`` with the same name.

    Raises:
        TypeError: ``values`` has no names.
        Exception: A handler has raised it, as in :func:`monitel.log_event`.

    Example:
        >>> import monitel
        >>> monitel.config({"lr": 1e-4, "model": {"layers": [2, 2], "dropout": None}})
        >>> monitel.config(lr=1e-4)
    """
    log_event(config_event(values, named))


def config_event(values: Any, named: dict[str, Any]) -> RunConfig:
    """Return the event of a call of :func:`config`."""
    if values is _NOTHING:
        values, named = named, {}
    event = RunConfig(values)
    return RunConfig({**event.config, **named}) if named else event


def _tree(read: Callable[[], Any], outer: tuple[int, ...], budget: Iterator[int]) -> ConfigValue:
    """Return what a function returns as a tree of exact built-in values; the name of the exception if it raises.

    ``outer`` has the ids of the values around it; ``budget`` is used up by values that may have parts.
    """
    try:
        value = read()
        if value is None:
            return None
        if id(value) in outer:
            return "<cycle>"
        if not isinstance(value, _LEAVES) and (parts := _parts(value, outer, budget)) is not None:
            return parts
        with ignored:  # of another type, or beyond 64 bits
            return checked_value("a value in config()", value)
        return escape_surrogates(_text(value))
    except Exception as error:  # raised by the class of the container or the value
        pass_on()
        return f"<{type(error).__name__}>"


def _plain(value: Any, outer: tuple[int, ...] = (), budget: Iterator[int] | None = None) -> ConfigValue:
    return _tree(lambda: value, outer, iter(range(_MOST)) if budget is None else budget)


def _parts(value: Any, outer: tuple[int, ...], budget: Iterator[int]) -> ConfigValue:
    """Return the parts of a value, by name or in their order; None for a value without parts."""
    if len(outer) == _DEEPEST or next(budget, None) is None:
        return "<left out>"
    outer = *outer, id(value)
    if (members := _members(value)) is not None:
        return {str(_plain(key)): _tree(read, outer, budget) for key, read in members.items()}
    if isinstance(value, Sequence):
        return [_tree(partial(value.__getitem__, index), outer, budget) for index in range(len(value))]
    if isinstance(value, AbstractSet):
        items: list[Any] = [_plain(each, outer, budget) for each in value]
        with suppress(TypeError):  # of several types
            items.sort(key=repr)
            items.sort(key=lambda item: (item != item, item))  # noqa: PLR0124  NaN differs from itself
        return items
    return _array(value, outer, budget) if hasattr(type(value), "tolist") and hasattr(value, "shape") else None


def _array(value: Any, outer: tuple[int, ...], budget: Iterator[int]) -> ConfigValue:
    with ignored:  # sparse, or without a device
        if math.prod(value.shape) <= _LARGEST:
            return _plain(value.tolist(), outer, budget)
    return {"shape": [int(each) for each in value.shape], "dtype": str(value.dtype)}


def _members(value: Any) -> dict[Any, Callable[[], Any]] | None:
    """Return functions that read a value's parts, by name; None for a value without names.

    OmegaConf raises where a value that is missing, or cannot be resolved, is read.
    """
    kind = type(value)
    if isinstance(value, Mapping) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__")):
        return {key: partial(value.__getitem__, key) for key in value.keys()}  # noqa: SIM118  not each iterates its keys
    if isinstance(value, partial):  # the names are Hydra's
        return _members({"_target_": value.func, **({"_args_": value.args} if value.args else {}), **value.keywords})
    for method in ("to_dict", "model_dump"):
        with ignored:  # needs arguments
            if hasattr(kind, method) and not hasattr(value, "shape"):  # else a table of data
                return _members(dict(getattr(value, method)()))
    names: Iterable[str] | None = getattr(kind, "_fields", None) if isinstance(value, tuple) else None
    if hasattr(kind, "__dataclass_fields__"):
        from dataclasses import fields  # late: whoever has defined the class has imported it

        names = [each.name for each in fields(value) if each.repr]
    elif isinstance(value, (SimpleNamespace, getattr(sys.modules.get("argparse"), "Namespace", SimpleNamespace))):
        names = vars(value)
    return None if names is None else {name: partial(getattr, value, name) for name in names}


def _text(value: Any) -> str:
    """Return the name of a function or a class, or the text of another value, without addresses."""
    name, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
    if callable(value) and isinstance(name, str) and not hasattr(value, "__origin__"):  # not list[int]
        return name if module in {None, "builtins"} else f"{module}.{name}"
    text = object.__repr__(value)
    with ignored:  # what the class of the value raises
        text = str(value)
    return re.sub(_ADDRESS, "", text)


def flat(config: Mapping[str, ConfigValue], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is not a mapping, with its dotted name."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
