"""Masking of what looks like a secret, by one rule for the arguments of a command and for a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: Takes the place of a secret. Whether two values that hold it were equal is unknown.
MASK = "***"
_FOLDERS = {"PWD", "OLDPWD"}  # the shell's variables for folders
_SHORTEST = 6  # characters of a variable's value; shorter ones may be in other words

#: The parts of names that make them names of secrets, and what is in such names without a secret, for tokenizers.
_NAME = re.compile(
    r"token|secret|passw|passphrase|pwd|credential|authorization|auth(?![a-z])|cookie|signature|bearer|webhook|apikey"
    r"|(?<![a-z])(?:pass|pw|sig|pat)$|(?:^|\.)key$|(?:api|app|access|account|private|secret|license|encryption|signing"
    r"|shared|storage|ssh|wandb|hf|hub|openai|anthropic|aws|azure|gcp|master|service|client)[-_.]?key",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"(?<![a-z])(?:[es]o[sitdm]|bo[si]|pad|unk|sep|cls|mask|special|start|begin|end|stop|first|last|next|image|audio"
    r"|video)[-_.]?token|tokeni[sz]|tokens(?![a-z])|signature[-_.]?columns"
    r"|token[-_.]?(?:type|ids|count|limit|budget|len|size|dropout|level|loss|weight|rate|prob|embed|mask|pos)",
    re.IGNORECASE,
)
#: A token of a tokenizer, such as "</s>" and "[CLS]", but not "<HUB_TOKEN>", by which transformers masks.
_SPECIAL = re.compile(r"(?!<[A-Z_]+>)<[^<>\s]{1,60}>|\[[A-Z]{1,30}\]")
_OPTION = re.compile(r"-[\w.-]+")
_ASSIGNMENT = re.compile(r"([-+\w.]+)([=:])(.+)", re.DOTALL)
_NAMED = re.compile(r"(?<![\w.-])([\w.-]+)\\*[\"']?\s*[=:]\s*")  # inside of a text; a value follows
_VALUE = re.compile(r"(?P<quote>\\*[\"'])(?:(?!(?P=quote))(?:\\.|.))*|[^\s\"'&,;)}\]]+", re.DOTALL)  # it may be open
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)[^\s\"']+", re.IGNORECASE)
# A password may hold "/" and "@". A path may have only one slash of a URL.
_USER = re.compile(r"(?<=:/)(/?)(?:[^/?#\s\"']{0,1000}|[^/:\s]{0,200}:[^\s\"']{0,1000})@")
_HOOK = re.compile(r"(?i)(://[^\s\"'/]{0,200}hook[^\s\"'/]{0,200}/|://[^\s\"'/]{1,200}/(?:api/)?webhooks?/)[^\s\"']+")
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abeprs]-|xapp-|A[KS]IA|AIza|nvapi-|ya29\.|eyJ|npm_|pypi-)[\w.-]{8,}"
    r"|(?<=PRIVATE KEY-----).+",
    re.DOTALL,
)


def mask_arguments(arguments: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of a command with ``***`` in the place of what looks like a secret.

    These are values whose options or keys have names of secrets, the values of such environment variables, users and
    passwords of URLs, addresses of webhooks, and tokens of well-known forms.
    """
    secrets = _secrets_of(environment)
    masked = []
    name = ""  # of a secret: the option before this argument
    for argument in arguments:
        is_option = _OPTION.fullmatch(argument) is not None and _is_secret(argument)
        if name and not is_option and not argument.startswith("--"):
            masked.append(MASK if _is_secret(name, argument) else argument)
        else:
            masked.append(argument if is_option else _masked(argument, secrets))
        name = argument if is_option else ""
    return masked


def mask_values(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration, masked as :func:`mask_arguments` does. Numbers stay: ``pad_token_id`` is not a secret."""
    secrets = _secrets_of(environment)

    def masked(value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {str(key): masked(each, str(key) if _is_secret(str(key)) else name) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            if all(isinstance(each, str) for each in value) and any(each.startswith("-") for each in value):
                value = mask_arguments(value, environment)
            return [masked(each, name) for each in value]
        if not value or isinstance(value, (bool, int, float)):
            return value
        if name and _is_secret(name, str(value)):
            return MASK
        return _masked(value, secrets) if isinstance(value, str) else value

    return dict(masked(values, ""))


def mask_text(text: str, environment: Mapping[str, str]) -> str:
    """Return a text, such as a path or a message, with ``***`` in the place of what looks like a secret."""
    return _masked(text, _secrets_of(environment))


def _secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables with the names of secrets, the longest first."""
    secrets = {value for name, value in environment.items() if _is_secret(name) and len(value) >= _SHORTEST}
    return sorted(secrets, key=len, reverse=True)


def _is_secret(name: str, value: str = "") -> bool:
    """Return True if a name looks like that of a secret, and the value, if it is known, not like a special token."""
    rest = _HARMLESS.sub(" ", name.lstrip("-+"))
    if _SPECIAL.fullmatch(value):
        rest = re.sub("token", " ", rest, flags=re.IGNORECASE)
    return name not in _FOLDERS and _NAME.search(rest) is not None


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    assigned = _ASSIGNMENT.fullmatch(text)
    if assigned and _is_secret(assigned[1], assigned[3]):
        return f"{assigned[1]}{assigned[2]}{MASK}"
    text = _SCHEME.sub(rf"\1\2{MASK}", text)
    parts, end = [], 0
    for named in _NAMED.finditer(text):
        value = _VALUE.match(text, named.end()) if named.start() >= end and _is_secret(named[1]) else None
        if value and _is_secret(named[1], value[0].strip("\\\"'")):
            parts += [text[end : value.start()], value["quote"] or "", MASK]
            end = value.end()
    text = "".join([*parts, text[end:]])
    return _KNOWN.sub(MASK, _HOOK.sub(rf"\1{MASK}", _USER.sub(rf"\1{MASK}@", text)))
