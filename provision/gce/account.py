"""Whose instances these are, and what they look like now; shared by all that the provider does."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from provision.gce.diagnosis import Diagnosis, Failure, diagnose
from provision.gce.rest import batch
from provision.gce.rest.api import Api, ApiError, Json, RefusedError, answer_failures
from provision.gce.rest.resources import our_name, owned
from provision.provider import Journal, ProviderError

INSERT = "insert"
INSERTED = "inserted"
# With these, or with no answer at all, it is not known whether a call has had its effect.
IN_DOUBT = (0, 429, 500, 502, 503, 504)


@dataclass
class Account:
    """The owner of fleets in a project.

    Attributes:
        api: The edge to Compute Engine.
        journal: Where intents are written.
        owner: Of the state directory; no other owner's instances are ever touched, but by `fleet gc`.
        user: Who and where, as a label.
        keys: Host keys found so far, by the id of the instance.
        host_project: Project of a Shared VPC, which has the firewall rules; empty: the network is of the project.
    """

    api: Api
    journal: Journal
    owner: str
    user: str
    keys: dict[str, str] = field(default_factory=dict)
    host_project: str = ""

    def resources(self, fleet: str | None) -> list[Json]:
        """Instances of a fleet of ours, of all of them where it is None, as the API tells them."""
        query = f"labels.fleet={fleet}" if fleet else "labels.fleet:*"
        return owned(self.api.instances(query), self.owner)

    def named(self, fleet: str) -> dict[str, Json]:
        """Instances of a fleet by our name."""
        return {our_name(one): one for one in self.resources(fleet)}

    @contextlib.contextmanager
    def insertion(self, fleet: str, kind: str, **details: Any) -> Iterator[str]:
        """Make something under a request id that is on disk before the call; yields that id.

        Where it stays in doubt whether the call arrived or has ended, `settle` finds out.

        Args:
            fleet: What it is for.
            kind: Type of the operation that the call begins.
            details: What is made, for the journal.
        """
        request_id = str(uuid.uuid4())
        self.journal.intend(fleet, INSERT, request_id=request_id, kind=kind, **details)
        try:
            yield request_id
        except ApiError as error:
            if error.status not in IN_DOUBT:
                self.journal.intend(fleet, INSERTED, request_id=request_id)
            raise
        self.journal.intend(fleet, INSERTED, request_id=request_id)

    def settle(self, fleet: str) -> None:
        """Wait for the end of insertions that a program began and did not see end, so that a list tells the truth.

        Raises:
            ApiError: nobody can tell, or one does not end.
        """
        entries = self.journal.intents(fleet)
        over = {entry.get("request_id") for entry in entries if entry["intent"] == INSERTED}
        begun = [entry for entry in entries if entry["intent"] == INSERT and entry.get("request_id") not in over]
        for entry in begun:
            for operation in self._operations_of(entry):
                self.api.wait(operation, f"what an earlier command began for fleet {fleet}")
            self.journal.intend(fleet, INSERTED, request_id=entry["request_id"])

    def _operations_of(self, entry: Mapping[str, Any]) -> list[Json]:
        """The operations that a request became; a fresh one may not be known yet."""
        known_by = float(entry.get("at", 0.0)) + self.api.timing.settle_s
        for pause in self.api.timing.pauses():
            begun = self.api.operations(f'operationType="{entry["kind"]}"', str(entry.get("project", "")))
            found = [one for one in begun if one.get("clientOperationId") == entry["request_id"]]
            if found or time.time() > known_by:
                return found
            time.sleep(pause)
        raise AssertionError("pauses have no end")

    def await_operations(self, operations: Sequence[Json], what: str) -> list[Failure]:
        """Wait until all of many operations of one kind are done.

        Returns:
            What they say went wrong.

        Raises:
            ApiError: they take too long; `what` names them.
        """
        from provision.gce.diagnosis import from_operation

        names = {one["name"] for one in operations}
        kinds = {one.get("operationType", "") for one in operations}
        deadline = time.monotonic() + self.api.timing.operation_s
        done: dict[str, Json] = {one["name"]: one for one in operations if one.get("status") == "DONE"}
        for pause in self.api.timing.pauses():
            if len(done) == len(names):
                break
            if time.monotonic() > deadline:
                message = f"{what} is not done after {self.api.timing.operation_s:g} s"
                raise ApiError([Failure(code="DEADLINE", message=message)])
            time.sleep(pause)
            for kind in kinds:
                for one in self.api.operations(f'operationType="{kind}"'):
                    if one["name"] in names and one.get("status") == "DONE":
                        done[one["name"]] = one
        return [failure for one in done.values() for failure in from_operation(one)]

    def change(self, calls: Sequence[batch.Call], what: str) -> None:
        """Make many calls in one request, and wait for all that they started; what is not found is done.

        Raises:
            ApiError: one failed, after all have ended.
        """
        if not calls:
            return
        answers = self.api.batch(calls)
        refused = [failure for answer in answers if answer.status != 404 for failure in answer_failures(answer)]
        begun = [answer.body for answer in answers if answer.status < 400]
        refused += self.await_operations(begun, what)
        if refused:
            raise ApiError(refused)

    @contextlib.contextmanager
    def told(self, doing: str, place: str = "") -> Iterator[None]:
        """Raise what goes wrong as the error that the user reads."""
        try:
            yield
        except ApiError as error:
            raise_told(diagnose(error.failures, project=self.api.project, place=place, doing=doing), error)
        except RefusedError as error:
            raise_told(error.diagnosis, error)


def raise_told(diagnosis: Diagnosis, error: Exception | None = None) -> NoReturn:
    """Raise `diagnosis` as ProviderError."""
    raise ProviderError(
        diagnosis.kind,
        diagnosis.message,
        cause=diagnosis.cause,
        hint=diagnosis.hint,
        again=diagnosis.again,
        next_step=diagnosis.next_step,
    ) from error
