"""Checks of arguments, and their environment variables: each is ``MONITEL_`` and the argument's name in capitals."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import wraps
from inspect import signature
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from monitel.process.failures import enable_loggers, warn_once
from monitel.process.masking import mask_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "BOOLEAN",
    "FOLDER",
    "Group",
    "Variable",
    "at_least",
    "check_arguments",
    "defaults_of",
    "name_of_variable",
    "one_of",
    "positive",
    "read_variables",
    "reads_variables",
]

_log = logging.getLogger("monitel")

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_SHOWN = 80  # characters of a value in a warning
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class Variable(NamedTuple):
    """The variable of an argument, and the check of the argument itself.

    Attributes:
        parse: Converts the text, which is not empty, to a value of the argument, which is checked then. It may raise
            ValueError for a wrong text.
        expected: The accepted texts, for the warning, e.g. ``"an int of at least 1"``.
        requires: Another argument without which the function refuses this one; empty if there is none.
        check: Checks a given argument, which is not the default: it receives name and value, and raises TypeError or
            ValueError for a wrong one. None: the function checks it.
    """

    parse: Callable[[str], object]
    expected: str
    requires: str = ""
    check: Callable[[str, Any], object] | None = None

    def convert(self, text: str) -> Any:
        """Convert the text of a variable.

        Raises:
            ValueError: It is wrong. The message has what was expected and given, except what looks like a secret.
        """
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            value = self.parse(text)
            if self.check is not None:
                self.check("it", value)
            return value
        raise ValueError(f"expected {self.expected}, got {_shown(text)}")


#: The variable of each argument. A str stands for an argument without such a variable: it is the name of the standard
#: variable that has the same meaning, or the reason.
Choices = Mapping[str, Variable | str]


class Group(NamedTuple):
    """The options of an argument that is True, False, or a mapping of options, each with its own variable.

    Attributes:
        options: By key of the mapping: the name of the option in the table of variables, and its default. A boolean
            option that is true switches the argument on.
        of_path: The key for a path that is given instead of a mapping; None if a path is wrong.
    """

    options: Mapping[str, tuple[str, object]]
    of_path: str | None = None

    def flat(self, name: str, value: object, choices: Choices) -> dict[str, object]:
        """Return the options that a value of the argument ``name`` stands for, and True or False under its name.

        Raises:
            TypeError: The argument, or an option in it, has a wrong type.
            ValueError: An option has a wrong value.
        """
        if self.of_path is not None and isinstance(value, (str, bytes, os.PathLike)):
            value = {self.of_path: value}
        if isinstance(value, bool):  # False also overrides the variables of the options
            return {name: value, **({} if value else dict(self.options.values()))}
        keys = ", ".join(map(repr, self.options))
        if not isinstance(value, Mapping):
            path = "a path, " if self.of_path is not None else ""
            raise TypeError(f"{name} must be True or False, {path}or a mapping with any of {keys}, got {value!r:.80}")
        found: dict[str, object] = {name: True}
        for key, given in value.items():
            if key not in self.options:
                raise TypeError(f"{name} must be a mapping with any of {keys}, got the key {key!r:.80}")
            option, default = self.options[key]
            variable = choices[option]
            if isinstance(variable, Variable) and variable.check is not None and given is not default:
                variable.check(f"{name}[{key!r}]", given)
            found[option] = given
        return found


def _boolean(text: str) -> bool:
    if text.lower() not in {*_TRUE, *_FALSE}:
        raise ValueError("not a boolean")
    return text.lower() in _TRUE


def _check_boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r:.80}")


#: The variable of a boolean argument: true or false, 1 or 0, yes or no, on or off, in any case.
BOOLEAN = Variable(_boolean, "true or false", check=_check_boolean)


def one_of(words: Iterable[str]) -> Variable:
    """Return the variable of an argument that is one of some lower-case words. The variable accepts any case."""
    allowed = {word: word for word in words}

    def check(name: str, value: object) -> None:
        if value not in allowed:
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
    allowed: str = "a positive number", *, below: float | None = math.inf, other: Callable[[Any], bool] | None = None
) -> Variable:
    """Return the variable of an argument that is a positive number.

    Args:
        allowed: The accepted values, for the message.
        below: The limit; None to accept infinity.
        other: Returns True for further values that the argument may have.
    """

    def check(name: str, value: Any) -> None:
        if other is not None and other(value):
            return
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be {allowed}, got {value!r:.80}")
        if not float(value) > 0 or (below is not None and float(value) >= below):
            raise ValueError(f"{name} must be {allowed}, got {value!r}")

    return Variable(lambda text: int(text) if text.isdecimal() else float(text), allowed, check=check)


def _check_folder(name: str, value: object) -> None:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, got {type(value).__qualname__}")
    path = Path(value)
    if "\0" in str(path):
        raise ValueError(f"{name} must not contain a null character, got {str(path)!r}")
    for part in (path, *path.parents):
        if os.path.isfile(part):  # noqa: PTH113  Path's own raises where it may not look
            raise ValueError(f"{name} must be a folder, or a new path, got {str(path)!r}: {str(part)!r} is a file")


#: The variable of an argument that is the path of a folder.
FOLDER = Variable(Path, "the path of a folder, which may be new", check=_check_folder)


def check_arguments(choices: Choices, defaults: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Check the arguments that a caller has given. A default is right.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """
    for name, value in given.items():
        variable = choices.get(name)
        if isinstance(variable, Variable) and variable.check is not None and value is not defaults.get(name):
            variable.check(name, value)


def name_of_variable(argument: str) -> str:
    """Return the name of an argument's variable.

    Example:
        >>> from monitel.variables import name_of_variable
        >>> name_of_variable("span_budget")
        'MONITEL_SPAN_BUDGET'
    """
    return f"MONITEL_{argument.upper()}"


def defaults_of(function: Callable[..., object], groups: Mapping[str, Group] = MappingProxyType({})) -> dict[str, Any]:
    """Return the default of each argument of a function, and of each option of its groups."""
    defaults = {name: each.default for name, each in signature(function).parameters.items()}
    return defaults | {option: default for group in groups.values() for option, default in group.options.values()}


def reads_variables(
    choices: Choices, groups: Mapping[str, Group] = MappingProxyType({})
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Make a function check its arguments, and read the variables of omitted ones, as :func:`read_variables` does.

    The signature of the function, with types and defaults, stays as it is. It receives False for a group that is off,
    and a mapping of all options for one that is on.

    Args:
        choices: The variables of the function's arguments, which must be keywords, and possibly of others.
        groups: The arguments that are groups of options.

    Example:
        >>> import os
        >>> from monitel.variables import BOOLEAN, reads_variables
        >>> @reads_variables({"spans": BOOLEAN})
        ... def export(*, spans: bool = False) -> bool:
        ...     return spans
        >>> os.environ["MONITEL_SPANS"] = "yes"
        >>> export(), export(spans=False)
        (True, False)
        >>> del os.environ["MONITEL_SPANS"]
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        defaults = defaults_of(function, groups)
        renamed = {
            option: f"{name}={{{key!r}: ...}}"
            for name, group in groups.items()
            for key, (option, _) in group.options.items()
        }

        @wraps(function)
        def call(*positional: _Arguments.args, **given: _Arguments.kwargs) -> _Result:
            enable_loggers()
            flat: dict[str, Any] = {}
            for name, value in given.items():
                if name in renamed:
                    unexpected = f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    raise TypeError(f"{unexpected}: use {renamed[name]}")
                flat |= groups[name].flat(name, value, choices) if name in groups else {name: value}
            check_arguments(choices, defaults, flat)
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
    choices: Choices, defaults: Mapping[str, object], given: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Return the values of the variables that are set. Never raises.

    An empty variable is not set. A variable with a wrong value, or one that contradicts the other arguments, is left
    out. A warning is logged once per process: it names the variable, its value (except what looks like a secret), the
    accepted values, and the value that is used instead.

    Args:
        choices: The variables.
        defaults: The arguments whose variables are read, each with its default.
        given: The arguments that the caller has given. Their variables are not read.

    Example:
        >>> import os
        >>> from monitel.variables import read_variables, one_of
        >>> os.environ["MONITEL_RANKS"] = "zero"
        >>> read_variables({"ranks": one_of(["all", "zero"])}, {"ranks": "all"})
        {'ranks': 'zero'}
        >>> del os.environ["MONITEL_RANKS"]
    """
    given = given or {}
    found: dict[str, Any] = {}
    for argument in defaults:
        variable = choices.get(argument)
        if argument in given or not isinstance(variable, Variable) or not (text := _text(argument)):
            continue
        try:
            found[argument] = variable.convert(text)
        except ValueError as error:
            _warn(argument, str(error), defaults[argument])
    for argument in [*found]:
        required = choices[argument].requires  # type: ignore[union-attr]  # it has a variable
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
    message = f"{name_of_variable(argument)}: {problem}; using {used}"
    warn_once(_log, "%s", message, key=message)
