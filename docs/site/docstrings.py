"""Docstrings as the site shows them: Sphinx roles become links, and examples become code blocks.

A class that exists in C and in Python is documented by its Python twin. Enums get a list of their members.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLE = re.compile(r":(?:class|meth|func|attr|mod|data|exc):`(~?)([\w.]+)`")
PACKAGES = ("monitel.", "monitel_otlp.", "monitel_otel.", "monitel_tensorboard.")
C_TWIN = re.compile(r"(_\w+)_c(?=\.\w+$)")
ENUMS = {"Enum", "IntEnum", "_Numbered"}
EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)  # the site's parser knows the plural only


class Docstrings(griffe.Extension):  # type: ignore[misc]  # griffe is not installed where mypy runs
    """Rewrites docstrings and aliases while the sources are read."""

    def on_object(self, *, obj: griffe.Object, **_arguments: Any) -> None:
        """Replace each role by a link, or by code if the target is in another project."""
        if obj.docstring:
            text = ROLE.sub(_link, obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", text)

    def on_package(self, *, pkg: griffe.Module, **_arguments: Any) -> None:
        """Replace each import from a C module by its Python twin, and list the members of enums."""
        for module in _modules(pkg):
            for name, member in list(module.members.items()):
                if isinstance(member, griffe.Alias) and C_TWIN.search(member.target_path):
                    module.members[name] = griffe.Alias(name, C_TWIN.sub(r"\1_py", member.target_path), parent=module)
                elif isinstance(member, griffe.Class) and ENUMS.intersection(map(str, member.bases)):
                    _list_members(member)


def _link(role: re.Match[str]) -> str:
    name = role[2].rpartition(".")[2] if role[1] else role[2]
    return f"[`{name}`][{role[2]}]" if role[2].startswith(PACKAGES) else f"`{name}`"


def _list_members(enum: griffe.Class) -> None:
    members = [f"`{each.name}` = {each.value}" for each in enum.attributes.values() if each.name.isupper()]
    if enum.docstring and members:
        enum.docstring.value += f"\n\nMembers: {', '.join(members)}."


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for each in module.modules.values():
        if not each.is_alias:
            yield from _modules(each)
