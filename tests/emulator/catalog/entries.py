"""Fields that all entries of the catalog have."""

from __future__ import annotations

import hashlib
from typing import Any

Json = dict[str, Any]

CREATED = "2026-01-05T08:00:00.000-08:00"


def numeric_id(text: str) -> str:
    """Return a numeric id, the same for the same text."""
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") + 10**17)


def entry(kind: str, name: str) -> Json:
    """Return the fields of an entry."""
    return {
        "kind": f"compute#{kind}",
        "id": numeric_id(f"{kind} {name}"),
        "name": name,
        "description": name,
        "creationTimestamp": CREATED,
    }
