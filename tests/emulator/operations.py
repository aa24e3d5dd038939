"""Operations: work that the API has started and may not have completed."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.catalog import numeric_id
from tests.emulator.clock import Clock
from tests.emulator.messages import Failure

KEPT_S = 14 * 86400.0
"""Time for which ended operations are known: https://cloud.google.com/compute/docs/api/how-tos/api-requests-responses."""
SYSTEM = "system"

Json = dict[str, Any]
Done = Callable[[Failure | None], None]


def at_once(done: Done) -> None:
    """Report that all is done."""
    done(None)


@dataclass(frozen=True)
class Work:
    """The work of an operation.

    Attributes:
        begin: Called when it starts to run; a failure ends it there.
        finish: Called when its time is over; it calls what it is given when all is done, with the failure if there
            was one.
    """

    begin: Callable[[], Failure | None] = lambda: None
    finish: Callable[[Done], None] = at_once


@dataclass
class Operation:
    """One operation.

    Attributes:
        scope: ``zones/us-central1-a``, ``regions/us-central1`` or ``global``.
        body: As the API shows it.
        followers: Called when it is done.
        ended: Time of its end, in seconds since the epoch; 0: it is not done.
    """

    scope: str
    body: Json
    followers: list[Callable[[], None]] = field(default_factory=list)
    ended: float = 0.0

    @property
    def done(self) -> bool:
        """Return whether it has ended."""
        return bool(self.body["status"] == "DONE")


class Operations:
    """The operations of the project.

    Args:
        clock: Emulator's time.
        operation_s: How long one takes.

    Attributes:
        kept_s: Time for which an ended one is known.
    """

    def __init__(self, clock: Clock, operation_s: float) -> None:
        self.operation_s = operation_s
        self._clock = clock
        self._serial = itertools.count(1)
        self.clear()

    def launch(
        self,
        scope: str,
        kind: str,
        target: str,
        work: Work,
        *,
        after: Operation | None = None,
        extra_s: float = 0.0,
        **fields: str,
    ) -> Operation:
        """Start one; it begins when `after` is done.

        Args:
            scope: Where it runs.
            kind: Its ``operationType``.
            target: URL of what it works on.
            work: What it does.
            after: The one before it; None: it begins at once.
            extra_s: Additional duration.
            fields: Further fields of its body; empty ones are left out.
        """
        name = f"operation-{int(self._clock.now() * 1000)}-{next(self._serial):08x}-{uuid.uuid4().hex[:16]}"
        root, _, path = target.partition("/projects/")
        base = f"{root}/projects/{path.partition('/')[0]}/{scope}"
        place, is_global = scope.partition("/")[0].removesuffix("s"), scope == "global"
        body: Json = {
            "kind": "compute#operation",
            "id": numeric_id(name),
            "name": name,
            "operationType": kind,
            "targetLink": target,
            "status": "PENDING",
            "progress": 0,
            "user": "you@example.com",
            "insertTime": self._clock.stamp(),
            "selfLink": f"{base}/operations/{name}",
            **({} if is_global else {place: base}),
            **{key: value for key, value in fields.items() if value},
        }
        operation = self._all[scope, name] = Operation(scope, body)
        length_s = self.operation_s + extra_s

        def start() -> None:
            self._clock.call_in(0.2 * length_s, lambda: self._begin(operation, work, 0.8 * length_s))

        if after is None or after.done:
            start()
        else:
            after.followers.append(start)
        return operation

    def find(self, scope: str, name: str) -> Operation | None:
        """Return the operation with this name, if it is known."""
        operation = self._all.get((scope, name))
        return operation if operation and self._is_known(operation) else None

    def retained(self) -> list[Operation]:
        """Return the operations of all scopes that are known."""
        return list(filter(self._is_known, self._all.values()))

    def _is_known(self, operation: Operation) -> bool:
        return not operation.ended or self._clock.now() < operation.ended + self.kept_s

    def clear(self) -> None:
        """Forget all."""
        self._all: dict[tuple[str, str], Operation] = {}
        self.kept_s = KEPT_S

    def pending(self) -> list[str]:
        """Return the names of the operations that are not done."""
        return [operation.body["name"] for operation in list(self._all.values()) if not operation.done]

    def _begin(self, operation: Operation, work: Work, rest_s: float) -> None:
        operation.body.update(status="RUNNING", startTime=self._clock.stamp())
        failure = work.begin()
        if failure:
            self._complete(operation, failure)
        else:
            self._clock.call_in(rest_s, lambda: work.finish(lambda failure: self._complete(operation, failure)))

    def _complete(self, operation: Operation, failure: Failure | None) -> None:
        if operation.done:
            return
        operation.ended = self._clock.now()
        operation.body.update(status="DONE", progress=100, endTime=self._clock.stamp(operation.ended))
        operation.body.update(failure.fields() if failure else {})
        for follower in operation.followers:
            follower()
        operation.followers.clear()
        with self._clock.changed:
            self._clock.changed.notify_all()
