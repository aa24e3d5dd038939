"""Access to the instances of one owner in a project, shared by all operations of the provider."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.cloud import compute_v1

from provision.budget import CREATE, CREATED, START
from provision.gce.api.client import Api, ApiError, Call, from_json, from_operation, is_done, to_json
from provision.gce.api.prices import PriceList, Prices, table
from provision.gce.api.resources import created_count, in_order, instance, our_name, place_of, zone_of
from provision.gce.catalog.machines import resolved
from provision.gce.catalog.names import Fleet
from provision.gce.diagnosis import SILENT_ZONE, Diagnosis, Failure, diagnose
from provision.gce.options import GceOptions
from provision.ledger import entry, is_new
from provision.model import FleetSpec, Instance
from provision.provider import Journal, Progress

_OPERATIONS_KEPT_S = 7 * 24 * 3600
"""Time for which Compute Engine certainly lists an operation that has ended."""
# After one of these statuses, or 0 for no answer, it is unknown whether the call had an effect.
IN_DOUBT = (0, 429, 500, 502, 503, 504)


@dataclass
class Request:
    """A request to create or start instances.

    Attributes:
        id: Its identifier.
        created: Number of instances that it created, if it failed; None: all, or unknown.
        is_accepted: Its call was answered by an operation; an error afterwards is not that of the call.
    """

    id: str
    created: int | None = None
    is_accepted: bool = False


def require_success(errors: Collection[ApiError]) -> None:
    """Raise ApiError for the errors of many calls; one whose effect is unknown comes before all others.

    A call without an answer may still arrive, unlike one that was answered with a transient failure.
    """
    doubtful = [error for error in errors if error.status in IN_DOUBT]
    if doubtful:
        raise min(doubtful, key=lambda error: error.status)
    if errors:
        raise ApiError([failure for error in errors for failure in error.failures])


def separate_id(request_id: str, name: str) -> str:
    """Return the ID of the request for one of several instances that are requested one by one."""
    return str(uuid.uuid5(uuid.UUID(request_id), name))


def _created(intent: Mapping[str, Any], ended: Sequence[compute_v1.Operation], *, is_recent: bool) -> int | None:
    """Return the number of instances that the operations of an intent created; None: all, or unknown.

    Args:
        intent: The entry of the journal.
        ended: Its operations, which have ended.
        is_recent: Compute Engine would list its operations if there were any.
    """
    if intent["intent"] == START or not (ended or is_recent):
        return None
    if not ended:
        return 0
    if not intent.get("separate"):
        return created_count(ended[0])
    created = sum(not operation.error.errors for operation in ended)
    return created if created < len(intent["names"]) else None


@dataclass
class Account:
    """The owner of fleets in a project.

    Attributes:
        api: The client of Compute Engine.
        journal: Journal in which intents are written.
        owner: ID of the state directory; only `fleet gc` changes instances of other owners.
        user: Login and computer of the user, as a label.
        keys: Host keys that are known already, by the ID of the instance.
        logins: Login names that OS Login has assigned, by fleet.
        host_project: Project of a Shared VPC, which has the firewall rules; empty: the network is in the project.
        price_list: The price list of Google; None: it is not used.
        disk_type: Type of the disks of the instances; empty: the default of their machine type.
        silent: Zones and regions that did not answer the last list of resources of fleets.
        answered: Times of the last answers to creations whose effect is unknown, by the IDs of their requests.
        given_up: Times after which creations without an answer were not sent again, by the IDs of their requests.
        clock: Returns the time in seconds since the epoch, by the clock of this computer.
    """

    api: Api
    journal: Journal
    owner: str
    user: str
    keys: dict[str, str] = field(default_factory=dict)
    logins: dict[str, str] = field(default_factory=dict)
    host_project: str = ""
    price_list: PriceList | None = None
    disk_type: str = ""
    silent: frozenset[str] = frozenset()
    answered: dict[str, float] = field(default_factory=dict)
    given_up: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.time

    def fleet(self, spec: FleetSpec) -> Fleet:
        """Return a fleet of this owner; the options of its instances are completed."""
        return Fleet(spec, resolved(GceOptions.of(spec.options)), self.owner, self.user)

    def cloud_time(self) -> float:
        """Return the time by Google's clock, for what Google's computers and the instances read."""
        return self.clock() + self.api.ahead_s

    @cached_property
    def prices(self) -> Prices:
        """Return the latest prices on this computer."""
        return self.price_list.stored() if self.price_list else table()

    def update_prices(self) -> None:
        """Read the price list of Google, unless that was done today; if it does not answer, keep the prices."""
        if self.price_list:
            self.prices = self.price_list.current()

    def resources(self, fleet: str | None) -> list[compute_v1.Instance]:
        """Return the instances of a fleet of this owner, or of all its fleets for None, as the API lists them."""
        query = f"labels.fleet={fleet}" if fleet else "labels.fleet:*"
        listing = self.api.instances(query)
        self.silent = listing.silent
        self.require(listing.silent & self.tried(fleet) if fleet else listing.silent)
        return [resource for resource in listing if resource.labels.get("fleet-owner") == self.owner]

    def existing(self, targets: Iterable[compute_v1.Instance | Instance]) -> list[compute_v1.Instance]:
        """Return those of some instances of fleets that exist, as the API lists them now."""
        wanted = list(targets)
        ids = {str(each.id) for each in wanted}
        fleets = {each.fleet if isinstance(each, Instance) else each.labels["fleet"] for each in wanted}
        return [each for fleet in sorted(fleets) for each in self.resources(fleet) if str(each.id) in ids]

    def tried(self, fleet: str) -> frozenset[str]:
        """Return the zones in which instances of a fleet were requested, and the regions of its policies."""
        intents = self.journal.intents(fleet)
        regions = {each["region"] for each in intents if "region" in each}
        return frozenset(regions).union(*(each.get("zones", ()) for each in intents))

    @staticmethod
    def require(silent: Collection[str]) -> None:
        """Raise ApiError if zones did not answer that may have resources of a fleet."""
        if silent:
            raise ApiError([Failure(code=SILENT_ZONE, message=f"{', '.join(sorted(silent))} did not answer")])

    def named(self, fleet: str) -> dict[str, compute_v1.Instance]:
        """Return the instances of a fleet by their names within the fleet."""
        return {our_name(resource): resource for resource in self.resources(fleet)}

    def convert(self, resources: Iterable[compute_v1.Instance]) -> list[Instance]:
        """Return instances of the API as Instances, by fleet and index, with times of this computer's clock."""
        return in_order(
            instance(resource, self.prices, self.disk_type, ahead_s=self.api.ahead_s) for resource in resources
        )

    def observe(self, fleet: str) -> list[Instance]:
        """List the instances of a fleet, write them to its journal for its cost, and return them."""
        instances = self.convert(self.resources(fleet))
        listed = entry(instances, self.clock())
        if is_new(listed, self.journal.intents(fleet)):
            self.journal.intend(fleet, **listed)
        return instances

    @contextlib.contextmanager
    def request(self, fleet: str, kind: str, **details: Any) -> Iterator[Request]:
        """Yield a request with an ID to create resources or start instances; the ID is on disk before the call.

        If it remains unknown whether the call arrived or has ended, `settle` determines it later. If `details` has
        ``separate``, each of its ``names`` has a call with an ID from `separate_id`,
        of which some may arrive without the others.

        Args:
            fleet: Name of the fleet.
            kind: Type of the operation that the call starts, ``start`` or that of a creation.
            details: Description of the resources, for the journal.
        """
        request = Request(str(uuid.uuid4()))
        intent = START if kind == "start" else CREATE
        try:
            self.journal.intend(fleet, intent, at=self.clock(), request_id=request.id, kind=kind, **details)
            yield request
        except BaseException as error:
            status = error.status if isinstance(error, ApiError) else 0
            if status not in IN_DOUBT and not request.is_accepted:
                self.journal.intend(fleet, CREATED, request_id=request.id, created=request.created)
            else:
                (self.answered if status or request.is_accepted else self.given_up)[request.id] = self.clock()
            raise
        self.journal.intend(fleet, CREATED, request_id=request.id, created=request.created)

    def settle(self, fleet: str, *, arrived: bool = False) -> bool:
        """Wait for requests that an earlier command made without seeing their end, so that lists are complete.

        A call without an answer may arrive after this command; its effect remains unknown until it cannot.

        Args:
            fleet: Name of the fleet.
            arrived: Wait until no such call can arrive any more. Commands that made such calls must have ended.

        Returns:
            Whether the effects of all requests are known.

        Raises:
            ApiError: the API does not answer, or an operation does not end.
        """
        entries = self.journal.intents(fleet)
        over = {each.get("request_id") for each in entries if each["intent"] == CREATED}
        begun = [each for each in entries if "kind" in each and each["request_id"] not in over]
        is_complete = True
        for intent in begun if arrived else ():
            self.given_up.setdefault(intent["request_id"], min(self._given_up(intent), self.clock()))
        for intent in begun:
            activity = f"an operation of an earlier command for fleet {fleet}"
            ended = self._ended(intent, activity, arrived=arrived)
            if ended is None:
                continue  # its instances are listed, and wait for capacity
            count = len(intent["names"]) if intent.get("separate") else 1
            if len(ended) < count and self._may_arrive(intent):
                is_complete = False
                continue
            is_recent = self.clock() - float(intent.get("at", 0.0)) < _OPERATIONS_KEPT_S
            created = _created(intent, ended, is_recent=is_recent)
            self.journal.intend(fleet, CREATED, request_id=intent["request_id"], created=created)
        return is_complete

    def await_calls(self, fleet: str, progress: Progress) -> None:
        """Wait until no call that an earlier command made without an answer can arrive any more, and report it.

        Raises:
            ApiError: as `settle` does.
        """
        progress(fleet, "waiting for calls of an earlier command that may be delayed")
        self.settle(fleet, arrived=True)

    def _may_arrive(self, intent: Mapping[str, Any]) -> bool:
        """Return whether the call of an intent may still arrive, although its program has ended."""
        return intent["request_id"] not in self.answered and self.clock() < self._latest_arrival(intent)

    def _latest_arrival(self, intent: Mapping[str, Any]) -> float:
        return self._given_up(intent) + self.api.timing.lingering_s

    def _given_up(self, intent: Mapping[str, Any]) -> float:
        latest = float(intent.get("at", 0.0)) + self.api.timing.retry_s
        return self.given_up.get(intent["request_id"], latest)

    def _ended(self, intent: Mapping[str, Any], activity: str, *, arrived: bool) -> list[compute_v1.Operation] | None:
        """Wait for the operations of an intent, and return them; None: one of them is that of a queued instance."""
        begun = self._operations_of(intent, arrived=arrived)
        if not intent.get("separate"):
            return [self.api.wait(operation, activity) for operation in begun]
        self.await_operations(begun, activity, or_queued=True)
        ended = [operation for operation in self._operations_of(intent) if is_done(operation)]
        return ended if len(ended) >= len(begun) else None

    def _operations_of(self, intent: Mapping[str, Any], *, arrived: bool = False) -> list[compute_v1.Operation]:
        """Return the operations that a request started; Compute Engine may not list a new one yet.

        Args:
            intent: The entry of the journal about the request.
            arrived: Wait until its call cannot arrive any more.
        """
        ids, timing = {intent["request_id"]}, self.api.timing
        if intent.get("separate"):
            ids = {separate_id(intent["request_id"], name) for name in intent["names"]}
        sent = self.answered.get(intent["request_id"], float(intent.get("at", 0.0)))
        places = {*intent.get("zones", ()), intent.get("location"), intent.get("region")}
        left_s = min(timing.settle_s, sent + timing.settle_s - self.clock())  # the clock may have been set back
        if arrived and self._may_arrive(intent):
            left_s = self._latest_arrival(intent) - self.clock()
        matches: list[compute_v1.Operation] = []
        for _ in timing.polls(left_s):
            begun = self.api.operations(f'operationType="{intent["kind"]}"', str(intent.get("project", "")))
            matches = [operation for operation in begun if operation.client_operation_id in ids]
            if len(matches) >= len(ids):
                break
            self.require(begun.silent & places)
        return matches

    def queued(self) -> set[tuple[str, str]]:
        """Return zone and name of the instances of the project, of any owner, that wait for capacity."""
        return {(zone_of(resource), resource.name) for resource in self.api.instances("status=PENDING")}

    def await_operations(
        self, operations: Sequence[compute_v1.Operation], activity: str, *, or_queued: bool = False
    ) -> list[Failure]:
        """Wait until all of `operations` are done.

        Args:
            operations: The operations, as the API lists them.
            activity: Their name in the message of the error.
            or_queued: Do not wait for the operations of instances that wait for capacity: they may take hours.

        Returns:
            The failures that they report.

        Raises:
            ApiError: they take too long.
        """
        done = {operation.name: operation for operation in operations if is_done(operation)}
        left = {operation.name: operation for operation in operations if operation.name not in done}
        kinds = {operation.operation_type for operation in operations}

        def are_done() -> bool:
            for kind in kinds if left else ():
                for operation in self.api.operations(f'operationType="{kind}"'):
                    if operation.name in left and is_done(operation):
                        done[operation.name] = operation
                        del left[operation.name]
            if not left or not or_queued:
                return not left
            queued = self.queued()
            return all(place_of(operation.target_link) in queued for operation in left.values())

        self.api.until(are_done, activity)
        return [failure for operation in done.values() for failure in from_operation(operation)]

    def call(self, resource: compute_v1.Instance, method: str, message: Any = None, **query: str) -> Call:
        """Return the call of a method of an instance, for `change`; `query` has its parameters."""
        words = ("zones", zone_of(resource), "instances", resource.name, method)
        path = self.api.path(*words, **{"requestId": str(uuid.uuid4()), **query})
        return Call("POST", path, to_json(message) if message else None)

    def read(
        self, resources: Sequence[compute_v1.Instance], method: str, **query: str
    ) -> list[Mapping[str, Any] | ApiError]:
        """Return the answers to a reading method of instances, or its errors; `query` has its parameters."""
        paths = [("zones", zone_of(each), "instances", each.name, method) for each in resources]
        return [*self.api.each([Call("GET", self.api.path(*words, **query)) for words in paths])]

    def guest_attributes(
        self, resources: Sequence[compute_v1.Instance], namespace: str
    ) -> list[compute_v1.GuestAttributes | ApiError]:
        """Return the guest attributes of instances, or the errors of the calls."""
        answers = self.read(resources, "getGuestAttributes", queryPath=f"{namespace}/")
        return [
            each if isinstance(each, ApiError) else from_json(compute_v1.GuestAttributes, each) for each in answers
        ]

    def change(self, calls: Sequence[Call], activity: str, *, at_once: bool = True) -> None:
        """Make many calls, and wait for their operations; the status 404 counts as success.

        Args:
            calls: The calls.
            activity: Their name in the message of the error.
            at_once: As in `Api.each`.

        Raises:
            ApiError: a call failed; raised after all operations have ended.
        """
        if not calls:
            return
        errors, begun = self.begun(self.api.each(calls, at_once=at_once))
        failures = self.await_operations(begun, activity)
        require_success([error for error in errors if error.status != 404])
        if failures:
            raise ApiError(failures)

    @staticmethod
    def begun(answers: Iterable[Mapping[str, Any] | ApiError]) -> tuple[list[ApiError], list[compute_v1.Operation]]:
        """Return the errors among the answers to many calls, and the operations that the others began."""
        errors = [each for each in answers if isinstance(each, ApiError)]
        others = [each for each in answers if not isinstance(each, ApiError)]
        return errors, [from_json(compute_v1.Operation, each) for each in others]

    def diagnosis(self, failures: Sequence[Failure], doing: str, location: str = "") -> Diagnosis:
        """Return the diagnosis of the failures of one call."""
        api = self.api
        return diagnose(failures, project=api.project, location=location, doing=doing, member=api.member)

    @contextlib.contextmanager
    def errors_while(self, doing: str, location: str = "") -> Iterator[None]:
        """Convert errors of the API to the ProviderError that the user reads."""
        try:
            yield
        except ApiError as error:
            raise self.diagnosis(error.failures, doing, location) from error
