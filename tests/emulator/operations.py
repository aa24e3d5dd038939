"""Operations: work that the API has started and may not have completed."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.catalog import numeric_id
from tests.emulator.clock import Clock
from tests.emulator.errors import Failure

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


@dataclass(frozen=True)
class Launch:
    """The properties of an operation.

    Attributes:
        scope: Where it runs.
        kind: ``operationType``.
        target: URL of what it works on.
        target_id: Its numeric id.
        client_id: ``requestId`` of the request; empty: it had none.
        group: ``operationGroupId``; empty: none.
        user: The caller.
        extra_s: Additional duration.
    """

    scope: str
    kind: str
    target: str
    target_id: str = ""
    client_id: str = ""
    group: str = ""
    user: str = "you@example.com"
    extra_s: float = 0.0


class Operations:
    """The operations of the project.

    Args:
        clock: Emulator's time.
        operation_s: How long one takes.

    Attributes:
        kept_s: Time for which an ended one is known.
    """

    def __init__(self, clock: Clock, operation_s: float) -> None:
        self.base = ""
        self.operation_s = operation_s
        self.kept_s = KEPT_S
        self._clock = clock
        self._all: dict[tuple[str, str], Operation] = {}
        self._serial = itertools.count(1)

    def launch(self, launch: Launch, work: Work, after: Operation | None = None) -> Operation:
        """Start one; it begins when `after` is done."""
        operation = self._register(launch)
        length_s = self.operation_s + launch.extra_s

        def start() -> None:
            self._clock.call_in(0.2 * length_s, lambda: self._begin(operation, work, 0.8 * length_s))

        if after is None or after.done:
            start()
        else:
            after.followers.append(start)
        return operation

    def find(self, scope: str, name: str) -> Operation | None:
        """Return the operation with this name or id, if it exists."""
        named = self._all.get((scope, name))
        candidates = self.of(scope) if named is None else filter(self._is_known, (named,))
        return next((each for each in candidates if name in (each.body["name"], each.body["id"])), None)

    def of(self, scope: str = "") -> Iterator[Operation]:
        """Return the operations of a scope that are known; of all scopes if it is empty."""
        for operation in list(self._all.values()):
            if scope in ("", operation.scope) and self._is_known(operation):
                yield operation

    def _is_known(self, operation: Operation) -> bool:
        return not operation.ended or self._clock.now() < operation.ended + self.kept_s

    def clear(self) -> None:
        """Forget all."""
        self._all.clear()
        self.kept_s = KEPT_S

    def pending(self) -> list[str]:
        """Return the names of the operations that are not done."""
        return [operation.body["name"] for operation in self.of() if not operation.done]

    def _register(self, launch: Launch) -> Operation:
        name = f"operation-{int(self._clock.now() * 1000)}-{next(self._serial):08x}-{uuid.uuid4().hex[:16]}"
        kind = launch.scope.split("/", 1)[0].removesuffix("s")
        optional = {
            kind: f"{self.base}/{launch.scope}" if launch.scope != "global" else "",
            "targetId": launch.target_id,
            "clientOperationId": launch.client_id,
            "operationGroupId": launch.group,
        }
        body: Json = {
            "kind": "compute#operation",
            "id": numeric_id(name),
            "name": name,
            "operationType": launch.kind,
            "targetLink": launch.target,
            "status": "PENDING",
            "progress": 0,
            "user": launch.user,
            "insertTime": self._clock.stamp(),
            "selfLink": f"{self.base}/{launch.scope}/operations/{name}",
            **{key: value for key, value in optional.items() if value},
        }
        operation = self._all[launch.scope, name] = Operation(launch.scope, body)
        return operation

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
