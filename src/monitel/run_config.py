"""Configuration of a run: the Event of one ``config()`` call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from monitel import clock
from monitel.attributes import checked_value, escape_surrogates
from monitel.event import Event
from monitel.handlers import log_event

if TYPE_CHECKING:
    from datetime import datetime

#: A part of a configuration: exact built-in types.
ConfigValue = Union[None, bool, int, float, str, "list[ConfigValue]", "dict[str, ConfigValue]"]

_EVENT = "run.config"
_DEEPEST = 20  # levels of nested values


class RunConfig(Event):
    """The Event of one :func:`monitel.config` call.

    ``config`` has everything. ``data`` has the values that an Event can hold, by dotted name: all but None and lists.

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

    def __init__(self, config: Mapping[str, Any], timestamp: datetime | None = None) -> None:
        plain = plain_config(config)
        super().__init__(_EVENT, clock.now() if timestamp is None else timestamp, dict(_scalars(plain, "")))
        self._config = plain

    @property
    def config(self) -> dict[str, ConfigValue]:
        """The configuration, in dicts and lists of None, bool, int (64 bits), float and str."""
        return self._config

    def __getstate__(self) -> tuple[Any, ...]:
        return super().__getstate__(), self._config

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        event, self._config = state
        super().__setstate__(event)


def config(values: Mapping[str, Any], /) -> None:
    """Record the configuration of a run.

    With monitel-otlp it is the structured body of one log record, with any number of values. With monitel-tensorboard
    it is a table and the hyperparameters of the run.

    Args:
        values: Nested mappings and sequences of str, numbers, bool and None. A value of another type, and an int beyond
            64 bits, is recorded as its ``str()``. Do not pass secrets.

    Raises:
        TypeError: ``values`` is not a mapping.

    Example:
        >>> import monitel
        >>> monitel.config({"lr": 1e-4, "model": {"layers": [2, 2], "dropout": None}})
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"config() takes a mapping of names to values, such as vars(arguments), got {type(values).__qualname__}: "
            f"{values!r:.80}"
        )
    log_event(RunConfig(values))


def plain_config(values: Mapping[Any, Any], depth: int = 1) -> dict[str, ConfigValue]:
    """Return a configuration as exact built-in values; ``depth`` is the level of its values.

    A value that raises when it is read is replaced by the name of the exception: OmegaConf raises at values that are
    missing or cannot be resolved.
    """
    return {escape_surrogates(str(key)): _item(values, key, depth) for key in values}


def _item(container: Any, key: Any, depth: int) -> ConfigValue:
    try:
        return _plain(container[key], depth)
    except Exception as error:  # raised by the class of the container or the value
        return f"<{type(error).__name__}>"


def _plain(value: Any, depth: int) -> ConfigValue:
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return plain_config(value, depth + 1)
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
            return [_item(value, index, depth + 1) for index in range(len(value))]
    if value is None:
        return None
    try:
        return checked_value("a value in config()", value)
    except Exception:  # of another type, or beyond 64 bits
        return escape_surrogates(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # raised by the class of the value
        return object.__repr__(value)


def _scalars(values: Mapping[str, ConfigValue], prefix: str) -> Iterator[tuple[str, str | bool | int | float]]:
    """Yield each value that is not None, a list or a mapping, with its dotted name."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{prefix}{key}.")
        elif value is not None and not isinstance(value, list):
            yield f"{prefix}{key}", value
