"""Masking of arguments of a command that look like secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MASK = "***"
_FOLDERS = {"PWD", "OLDPWD"}  # the shell's variables for folders
_SHORTEST = 6  # characters of a variable's value; shorter ones may be in other words

# The name of a secret. "tokens", "tokenizer" and "author" are not names of secrets.
_NAME = (
    r"token(?!i[sz]|s(?![a-z]))|secret|passw|passphrase|pwd|credential|authorization|auth(?![a-z])|cookie|signature"
    r"|(?:api|access|account|private|secret|license|encryption)[-_.]?key|apikey"
)
_OPTION = re.compile(rf"-+[\w.-]*(?:{_NAME})[\w.-]*", re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"([-+]*[\w.-]*(?:{_NAME})[\w.-]*[=:]).+", re.IGNORECASE | re.DOTALL)
_INSIDE = re.compile(rf"((?:{_NAME})[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;)}}\]]+", re.IGNORECASE)
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)[^\s\"']+", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_KNOWN = re.compile(r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abps]-|AKIA|eyJ)[\w.-]{8,}")


def mask_arguments(arguments: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of a command with ``***`` in the place of what looks like a secret.

    Masked are the values of options and keys whose names look like those of secrets (``--hf-token x``,
    ``db.password=x``), user names and passwords of URLs, tokens of well-known forms, and the values of environment
    variables whose names look like those of secrets.

    Args:
        arguments: The arguments.
        environment: The environment variables.
    """
    secrets = sorted(
        {value for name, value in environment.items() if _is_secret(name) and len(value) >= _SHORTEST},
        key=len,
        reverse=True,
    )
    masked = []
    follows = False  # the option before this argument is the name of a secret
    for argument in arguments:
        if follows and not argument.startswith("-"):
            masked.append(_MASK)
            follows = False
            continue
        follows = _OPTION.fullmatch(argument) is not None
        masked.append(argument if follows else _masked(argument, secrets))
    return masked


def _is_secret(name: str) -> bool:
    return name not in _FOLDERS and re.search(rf"(?:{_NAME})", name, re.IGNORECASE) is not None


def _masked(argument: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        argument = argument.replace(secret, _MASK)
    if assigned := _ASSIGNMENT.fullmatch(argument):
        return f"{assigned[1]}{_MASK}"
    argument = _SCHEME.sub(rf"\1\2{_MASK}", argument)
    argument = _INSIDE.sub(rf"\1{_MASK}", argument)
    return _KNOWN.sub(_MASK, _USER.sub(f"{_MASK}@", argument))
