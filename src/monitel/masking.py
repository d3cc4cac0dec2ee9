"""Masking of what looks like a secret, in the arguments of a command and in a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_MASK = "***"
_FOLDERS = {"PWD", "OLDPWD"}  # the shell's variables for folders
_SHORTEST = 6  # characters of a variable's value; shorter ones may be in other words

# The name of a secret. "tokens", "tokenizer", "author" and "design" are not names of secrets.
_NAME = (
    r"token(?!i[sz]|s(?![a-z]))|secret|passw|passphrase|pwd|credential|authorization|auth(?![a-z])|cookie|signature"
    r"|(?<![a-z])(?:pass|sig)(?![\w.-])|apikey"
    r"|(?:api|access|account|private|secret|license|encryption|signing|shared|storage|ssh|wandb)[-_.]?key"
)
# The lengths of names are limited, so that the time for a long text is proportional to its length.
_OPTION = re.compile(rf"-[\w.-]{{0,200}}(?:{_NAME})[\w.-]{{0,200}}", re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"([-+\w.]{{0,200}}(?:{_NAME})[\w.-]{{0,200}}[=:]).+", re.IGNORECASE | re.DOTALL)
_QUOTED = r"(?P<quote>\\*[\"'])(?:(?!(?P=quote))(?:\\.|.))*"  # to the closing quote, or the end
_INSIDE = re.compile(
    rf"((?:{_NAME})[\w.-]{{0,200}}\\*[\"']?\s*[=:]\s*)(?:{_QUOTED}|[^\s\"'&,;)}}\]]+)", re.IGNORECASE | re.DOTALL
)
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)[^\s\"']+", re.IGNORECASE)
# A password may hold "/" and "@". A path may have only one slash of a URL.
_USER = re.compile(r"(?<=:/)(/?)(?:[^/?#\s\"']{0,1000}|[^/:\s]{0,200}:[^\s\"']{0,1000})@")
_KNOWN = re.compile(r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abps]-|A[KS]IA|AIza|nvapi-|ya29\.|eyJ)[\w.-]{8,}")


def mask_arguments(arguments: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of a command with ``***`` in the place of what looks like a secret.

    Masked are the values of options and keys whose names look like those of secrets (``--hf-token x``,
    ``db.password=x``), user names and passwords of URLs, tokens of well-known forms, and the values of environment
    variables whose names look like those of secrets.

    Args:
        arguments: The arguments.
        environment: The environment variables.
    """
    secrets = _secrets_of(environment)
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


def mask_values(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration with ``***`` in the place of what looks like a secret, as :func:`mask_arguments` does.

    Numbers, bools and None are never masked: ``pad_token_id`` is not a secret.

    Args:
        values: Nested mappings and lists.
        environment: The environment variables.

    Example:
        >>> from monitel.masking import mask_values
        >>> mask_values({"hub_token": "x", "pad_token_id": 0, "data": {"url": "https://me:password@host"}}, {})
        {'hub_token': '***', 'pad_token_id': 0, 'data': {'url': 'https://***@host'}}
    """
    secrets = _secrets_of(environment)

    def masked(value: Any, *, secret: bool) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping):
            return {str(key): masked(each, secret=secret or _is_secret(str(key))) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [masked(each, secret=secret) for each in value]
        if secret:
            return _MASK
        return _masked(value, secrets) if isinstance(value, str) else value

    return dict(masked(values, secret=False))


def _secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables with the names of secrets, the longest first."""
    secrets = {value for name, value in environment.items() if _is_secret(name) and len(value) >= _SHORTEST}
    return sorted(secrets, key=len, reverse=True)


def _is_secret(name: str) -> bool:
    return name not in _FOLDERS and re.search(rf"(?:{_NAME})", name, re.IGNORECASE) is not None


def _masked(argument: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        argument = argument.replace(secret, _MASK)
    if assigned := _ASSIGNMENT.fullmatch(argument):
        return f"{assigned[1]}{_MASK}"
    argument = _SCHEME.sub(rf"\1\2{_MASK}", argument)
    argument = _INSIDE.sub(rf"\1\g<quote>{_MASK}", argument)
    return _KNOWN.sub(_MASK, _USER.sub(rf"\1{_MASK}@", argument))
