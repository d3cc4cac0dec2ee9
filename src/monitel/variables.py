"""Checks of arguments, and their environment variables: each is ``MONITEL_`` and the argument's name in capitals."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from inspect import signature
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from monitel.process.failures import enable_loggers, warn_once
from monitel.process.masking import mask_text
from monitel.process.os_threads import call_in_time

__all__ = ["BOOLEAN", "FOLDER", "Group", "Variable", "at_least", "defaults_of", "name_of_variable", "one_of"]
__all__ += ["positive", "read_variables", "reads_variables"]

_log = logging.getLogger("monitel")

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_SHOWN = 80  # characters of a value in a warning
_DISK_S = 1.0  # seconds that it may take to look at a folder
_BOOLEANS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


class Variable(NamedTuple):
    """The variable of an argument, and the check of the argument itself."""

    parse: Callable[[str], object]  # converts a text that is not empty; may raise ValueError
    expected: str  # the accepted texts, for the warning
    requires: str = ""  # another argument without which the function refuses this one
    check: Callable[[str, Any], object] | None = None  # gets name and value; raises TypeError or ValueError

    def convert(self, text: str) -> Any:
        """Convert the text of a variable; a ValueError has what was expected and given, with secrets masked."""
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            value = self.parse(text)
            if self.check is not None:
                self.check("it", value)
            return value
        raise ValueError(f"expected {self.expected}, got {_shown(text)}")


#: The variable of each argument that has one.
Choices = Mapping[str, Variable]


def _check_boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r:.80}")


def _check_folder(name: str, value: object) -> None:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, got {type(value).__qualname__}")
    path = Path(value)
    if "\0" in str(path):
        raise ValueError(f"{name} must not contain a null character, got {str(path)!r}")
    with suppress(TimeoutError):  # a disk that hangs is reported by the thread that waits for it
        if (part := call_in_time(lambda: _file_in(path), _DISK_S)) is not None:
            raise ValueError(f"{name} must be a folder, or a new path, got {str(path)!r}: {str(part)!r} is a file")


def _file_in(path: Path) -> Path | None:
    return next(filter(os.path.isfile, (path, *path.parents)), None)  # Path's own raises where it may not look


#: The variables of a boolean argument, in any case, and of the path of a folder.
BOOLEAN = Variable(lambda text: _BOOLEANS[text.lower()], "true or false", check=_check_boolean)
FOLDER = Variable(
    lambda text: Path(os.path.expanduser(text)),  # noqa: PTH111  Path's own raises without a home
    "the path of a folder, which may be new",
    check=_check_folder,
)


def one_of(words: Iterable[str]) -> Variable:
    """Return the variable of an argument that is one of some lower-case words. The variable accepts any case."""
    allowed = {word: word for word in words}

    def check(name: str, value: object) -> None:
        if value not in [*allowed]:  # it may have no hash
            raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r:.80}")

    return Variable(lambda text: allowed[text.lower()], " or ".join(allowed), check=check)


def at_least(least: int, noun: str = "an int") -> Variable:
    """Return the variable of an argument that is an int with a least value."""

    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__qualname__}: {value!r:.80}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")

    return Variable(int, f"{noun} of at least {least}", check=check)


def positive(
    allowed: str = "a positive number",
    *,
    below: float | None = math.inf,
    other: Callable[[Any], bool] = lambda _: False,
) -> Variable:
    """Return the variable of an argument that is a positive number, or a value for which ``other`` returns True.

    ``allowed`` is for the message. ``below`` is the limit; None accepts infinity.
    """

    def check(name: str, value: Any) -> None:
        if other(value):
            return
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be {allowed}, got {value!r:.80}")
        number: Any = value  # not as a float, which an int may exceed
        if not number > 0 or (below is not None and number >= min(below, sys.float_info.max)):
            raise ValueError(f"{name} must be {allowed}, got {value!r:.80}")

    return Variable(lambda text: int(text) if text.isdecimal() else float(text), allowed, check=check)


class Group(NamedTuple):
    """The options of an argument that is True, False, or a mapping of options, each with its own variable.

    A boolean option that is true switches the argument on.
    """

    options: Mapping[str, tuple[str, object]]  # by key of the mapping: name in the table of variables, default
    of_path: str | None = None  # the key for a path that is given instead of a mapping; None if a path is wrong

    def flat(self, name: str, value: object, choices: Choices) -> dict[str, object]:
        """Return the options that a value of the argument stands for, checked, and True or False under its name."""
        if self.of_path is not None and isinstance(value, (str, bytes, os.PathLike)):
            value = {self.of_path: value}
        if isinstance(value, bool):  # False also overrides the variables of the options
            return {name: value, **({} if value else dict(self.options.values()))}
        keys = f"a mapping with any of {', '.join(map(repr, self.options))}"
        if not isinstance(value, Mapping):
            path = "a path, " if self.of_path is not None else ""
            raise TypeError(f"{name} must be True or False, {path}or {keys}, got {value!r:.80}")
        if unknown := [key for key in value if key not in self.options]:
            raise TypeError(f"{name} must be {keys}, got the key {unknown[0]!r:.80}")
        for key, given in value.items():
            _check(f"{name}[{key!r}]", given, choices[self.options[key][0]], self.options[key][1])
        return {name: True, **{self.options[key][0]: given for key, given in value.items()}}


def _check(name: str, value: object, variable: Variable | None, default: object) -> None:
    if variable is not None and variable.check is not None and value is not default:
        variable.check(name, value)


def name_of_variable(argument: str) -> str:
    """Return the name of an argument's variable."""
    return f"MONITEL_{argument.upper()}"


def defaults_of(function: Callable[..., object], groups: Mapping[str, Group] = MappingProxyType({})) -> dict[str, Any]:
    """Return the default of each argument of a function, and of each option of its groups."""
    defaults = {name: each.default for name, each in signature(function).parameters.items()}
    return defaults | {option: default for group in groups.values() for option, default in group.options.values()}


def reads_variables(
    choices: Choices, groups: Mapping[str, Group] = MappingProxyType({})
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Make a function check its arguments, which must be keywords, and read the variables of omitted ones.

    It receives False for a group that is off, and a mapping of all options for one that is on.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        defaults = defaults_of(function, groups)
        parameters = signature(function).parameters

        @wraps(function)
        def call(*positional: _Arguments.args, **given: _Arguments.kwargs) -> _Result:
            enable_loggers()
            flat: dict[str, Any] = {}
            for name, value in given.items():
                if name not in parameters:  # such as the name of an option
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
                flat |= groups[name].flat(name, value, choices) if name in groups else {name: value}
            for name, value in flat.items():
                _check(name, value, choices.get(name), defaults.get(name))
            flat |= read_variables(choices, defaults, flat)
            for name, group in groups.items():
                options = {key: flat.pop(option, default) for key, (option, default) in group.options.items()}
                is_on = flat.get(name, defaults[name]) or any(each is True for each in options.values())
                flat[name] = options if is_on else False
            given.update(flat)
            return function(*positional, **given)

        return call

    return decorate


def read_variables(
    choices: Choices, defaults: Mapping[str, object], given: Mapping[str, object] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the values of the variables that are set, of arguments that are not ``given``. Never raises.

    A variable with a wrong value, or that contradicts the other arguments, is left out, and a warning is logged once.
    An empty variable is not set.
    """
    found: dict[str, Any] = {}
    for argument, variable in choices.items():
        if argument not in given and (text := _text(argument)):
            try:
                found[argument] = variable.convert(text)
            except ValueError as error:
                _warn(argument, str(error), defaults[argument])
    for argument in [*found]:
        required = choices[argument].requires
        if required and {**defaults, **found, **given}.get(required) is None:
            del found[argument]
            problem = f"{argument} requires {required}, which is None, got {_shown(_text(argument))}"
            _warn(argument, problem, defaults[argument])
    return found


def _text(argument: str) -> str:
    return os.environ.get(name_of_variable(argument), "").strip()


def _shown(text: str) -> str:
    return repr(mask_text(text, os.environ)[:_SHOWN])


def _warn(argument: str, problem: str, default: object) -> None:
    used = "the default" if default is None else repr(default)
    name = name_of_variable(argument)
    warn_once(_log, "%s: %s; using %s", name, problem, used, key=(name, problem))  # once for all that read it
