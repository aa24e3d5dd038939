"""Errors of Google's APIs from public threads, one per file, each with its address and the expected diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BODIES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("*.json"))
}
"""By name: the public `source` of a body, the glob of the `method` that returned it, its HTTP `status`, whether an
`operation` failed with it, and the `expected` class, message, and fix."""
