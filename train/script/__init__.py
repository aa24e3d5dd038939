"""Analyze a training script and its requirements without executing it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

NEWEST_TF_KERAS = "2.21.0"
"""The newest release of tf-keras. It requires the TensorFlow of the same minor version, which is released earlier."""


def read_rows(file: str) -> list[list[str]]:
    """Return the words of each line of a file of this package, without lines that begin with ``#``."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a text in TOML.

    Raises:
        ValueError: It is invalid.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    tables: dict[str, Any] = tomllib.loads(text)
    return tables
