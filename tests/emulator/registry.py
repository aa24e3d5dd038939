"""Registries of the functions that answer requests; the modules in `services` and `methods` fill them."""

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
