"""Process requests: routing, validation of requests and answers, faults, counting."""

from __future__ import annotations

import json
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.emulator import failures
from tests.emulator.cloud import Call, Cloud
from tests.emulator.discovery import Discovery, Method, discovery
from tests.emulator.failures import Refusal, Violation
from tests.emulator.faults import Faults, Rule
from tests.emulator.grants import check_service_account
from tests.emulator.identity import identity_of
from tests.emulator.outage import check_zone
from tests.emulator.registry import METHODS, STARTING
from tests.emulator.services import Service, services

Json = dict[str, Any]


class Broken(Exception):
    """The connection ends without an answer.

    Args:
        reset: Whether it is reset instead of closed.
    """

    def __init__(self, *, reset: bool) -> None:
        super().__init__("reset" if reset else "lost")
        self.reset = reset


@dataclass(frozen=True)
class Request:
    """An HTTP request, or a part of a batch.

    Attributes:
        verb: ``POST``.
        target: Path and query.
        body: Its bytes.
        in_batch: Whether it is part of a batch.
        content_type: Media type of its body.
        token: Access token of the caller; empty: none.
        headers: Other headers, with names in lower case.
    """

    verb: str
    target: str
    body: bytes = b""
    in_batch: bool = False
    content_type: str = ""
    token: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Return its path."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters of its query; the last value if a name occurs several times."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))


@dataclass(frozen=True)
class Answer:
    """An HTTP answer.

    Attributes:
        status: HTTP status.
        body: Its bytes.
        headers: Headers in addition to those of the body.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def encode(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer in JSON."""
    return Answer(status, json.dumps(body).encode(), headers or {})


class Api:
    """Answers the requests of all clients.

    Args:
        cloud: The resources of the project.
        faults: The faults to inject.

    Attributes:
        needed: Permissions that the calls so far have needed; in other projects as ``PROJECT:PERMISSION``.
    """

    def __init__(self, cloud: Cloud, faults: Faults) -> None:
        self.cloud = cloud
        self.faults = faults
        self.calls: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.needed: set[str] = set()
        services()  # their modules register the methods

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            Broken: the connection must end without an answer.
        """
        try:
            return self._answer(request)
        except Refusal as refusal:
            return encode(refusal.status, refusal.body, refusal.headers)
        except Broken:
            raise
        except Exception:  # noqa: BLE001 - a bug of the emulator must not look like a fault that was asked for
            self._record("emulator", f"{request.verb} {request.path}", [traceback.format_exc()])
            return encode(500, failures.backend_error(500).body)

    def count(self, method: str, in_batch: bool = False) -> None:
        """Count a call."""
        with self.cloud.clock.lock:
            self.calls[f"batch.{method}" if in_batch else method] += 1

    def strike(self, rule: Rule | None, zone: str = "") -> None:
        """Let a fault strike before the effect.

        Raises:
            Refusal: it is an HTTP error.
            Broken: it breaks the connection.
        """
        if rule is None:
            return
        if rule.kind == "slow":
            time.sleep(rule.seconds)
        if rule.kind == "reset":
            raise Broken(reset=True)
        refusal = rule.refusal(self.cloud.project, zone)
        if refusal:
            raise refusal

    def _answer(self, request: Request) -> Answer:
        matches = []
        for service in services():
            match = discovery(service.DOCUMENT).match(request.verb, urlsplit(request.target).path)
            if match:
                matches.append((service, *match))
        matches.sort(key=lambda each: each[1].id not in METHODS)  # two APIs may have a method at the same path
        if matches:
            return self._call(*matches[0], request)
        raise Refusal(404, "notFound", f"No method is at {request.verb} {request.path}")

    def _call(self, service: Service, method: Method, path: Mapping[str, str], request: Request) -> Answer:
        document, query = discovery(service.DOCUMENT), request.query
        self.count(method.id, request.in_batch)
        body = self._check_request(document, method, {**query, **path}, request.body)
        place = path.get("zone") or path.get("region", "")
        rule = self.faults.draw(
            method.id, in_batch=request.in_batch, place=place, makes_operation=method.id in STARTING
        )
        self.strike(rule, place)
        call = Call(method, path, query, body or {}, rule, request.token)
        with self.cloud.clock.changed:
            self.cloud.clock.run_due()
            answer = encode(200, self._perform(service, call))
        if rule and rule.kind == "lost":
            raise Broken(reset=False)
        return answer

    def _perform(self, service: Service, call: Call) -> Json:
        """Do what the call asks; the lock is held."""
        method = METHODS.get(call.method.id)
        if method is None:
            raise Refusal(501, "notImplemented", f"The emulator does not know {call.method.id}.")
        self._check_access(service, call)
        check_zone(self.cloud, call)
        done = self._repeated(call)
        if done is None:
            done = method(self.cloud, call)
            self._remember(call, done)
        problems = discovery(service.DOCUMENT).check_response(call.method, done)
        if problems:
            self._record("emulator", call.method.id, problems)
            raise Refusal(500, "backendError", f"The emulator's answer is wrong: {'; '.join(problems)}")
        return done

    def _check_request(self, document: Discovery, method: Method, given: Mapping[str, str], raw: bytes) -> Any:
        """Parse and check the body of a request, like its parameters."""
        try:
            body = json.loads(raw) if raw.strip() else None
        except ValueError as error:
            raise Refusal(400, "parseError", "Parse Error") from error
        problems = document.check_parameters(method, given) + document.check_request(method, body)
        if given.get("requestId") and not _is_uuid(given["requestId"]):
            problems.append(f"parameter requestId: {given['requestId']!r} is not a UUID")
        if problems:
            self._record("client", method.id, problems)
            raise Refusal(400, "invalid", f"Invalid request: {'; '.join(problems)}")
        return body

    def _record(self, side: str, method: str, problems: list[str]) -> None:
        with self.cloud.clock.lock:
            self.violations.append(Violation(side, method, problems))

    def _check_access(self, service: Service, call: Call) -> None:
        self.cloud.governance.check_call(discovery(service.DOCUMENT).host, self.cloud.project)
        caller = identity_of(call.token)
        for project, permission in service.permissions(self.cloud, call):
            if caller is not None and service.DOCUMENT == "compute.v1":
                check_service_account(self.cloud, caller, permission)
                continue
            self.needed.add(permission if project == self.cloud.project else f"{project}:{permission}")
            if permission in self.cloud.denied or f"{project}:{permission}" in self.cloud.denied:
                raise failures.forbidden(permission, f"projects/{project}")

    def _repeated(self, call: Call) -> Json | None:
        """Return the operation that an earlier request with the same id started."""
        operation = self.cloud.requests.get(_request_key(call))
        return operation.body if operation else None

    def _remember(self, call: Call, started: Json) -> None:
        if call.query.get("requestId"):
            operation = self.cloud.operations.find(call.scope, started["name"])
            if operation:
                self.cloud.requests[_request_key(call)] = operation


def _is_uuid(text: str) -> bool:
    try:
        return uuid.UUID(text).int != 0
    except ValueError:
        return False


def _request_key(call: Call) -> tuple[str, ...]:
    return (call.method.id, *call.path.values(), call.query.get("requestId", ""))
