"""Choices about the C extension that pyproject.toml cannot make: the pure wheel, and the C library on Windows."""

from __future__ import annotations

import os
import sys
from typing import Any

from setuptools import Distribution, setup


class _Monitel(Distribution):
    def parse_config_files(self, *arguments: Any, **options: Any) -> None:
        super().parse_config_files(*arguments, **options)
        if os.environ.get("MONITEL_PURE_WHEEL") == "1":
            self.ext_modules = []
        if sys.platform == "win32":  # its C library includes these; a missing library would leave the extension out
            for extension in self.ext_modules or []:
                extension.libraries = []
                extension.extra_compile_args = []  # gcc's


setup(distclass=_Monitel)
