"""Registry of the functions that answer each method; filled by the modules that define them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.emulator.cloud import Call, Cloud

Json = dict[str, Any]
Answer = Callable[[Cloud, Call], Json]

METHODS: dict[str, Answer] = {}
# Of those, the ones that start an operation.
STARTING: set[str] = set()


def method(*ids: str) -> Callable[[Answer], Answer]:
    """The decorated function answers these methods."""

    def register(answer: Answer) -> Answer:
        METHODS.update(dict.fromkeys(ids, answer))
        return answer

    return register


def starting(*ids: str) -> Callable[[Answer], Answer]:
    """The decorated function answers these methods, and starts an operation."""
    STARTING.update(ids)
    return method(*ids)
