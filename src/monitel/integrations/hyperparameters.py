"""Conversion of a framework's hyperparameters to dicts and lists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from monitel.masking import mask_values
from monitel.run_config import plain_config


def as_dict(params: Any) -> dict[str, Any]:
    """Return hyperparameters as exact built-in values, with ``***`` in the place of what looks like a secret.

    Args:
        params: A mapping, or an object with attributes, such as a Namespace.

    Example:
        >>> from argparse import Namespace
        >>> from monitel.integrations.hyperparameters import as_dict
        >>> as_dict(Namespace(lr=1e-4, layers=(2, 2), api_key="x"))
        {'lr': 0.0001, 'layers': [2, 2], 'api_key': '***'}
    """
    return mask_values(plain_config(params if isinstance(params, Mapping) else vars(params)), os.environ)
