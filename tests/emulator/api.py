"""Process requests: routing, validation of requests and answers, faults, counting, and access tokens."""

from __future__ import annotations

import json
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.emulator import bulk, instances, resources  # these modules register methods
from tests.emulator.cloud import METHODS, STARTING, Call, Cloud
from tests.emulator.discovery import Discovery, Method, discovery
from tests.emulator.faults import Faults, Rule
from tests.emulator.governance import identity_of
from tests.emulator.messages import Answer, Broken, Refusal, Request, encode, refusal
from tests.emulator.services import SERVICES, NoTunnel, open_tunnel
from tests.emulator.storage import answer_content, serves_content

__all__ = ["Api", "bulk", "instances", "resources"]
Json = dict[str, Any]
_GRANTS = ("refresh_token", "urn:ietf:params:oauth:grant-type:jwt-bearer")


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
        self.violations: list[str] = []
        self.needed: set[str] = set()

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            Broken: the connection must end without an answer.
        """
        endpoints = {"/emulator/tunnel": self._open_tunnel, "/token": self._grant_token}
        call = self._serve_content if serves_content(request) else self._call
        try:
            return endpoints.get(request.path, call)(request)
        except Refusal as refused:
            return encode(refused.status, refused.body, refused.headers)
        except Broken:
            raise
        except Exception:  # noqa: BLE001 - a bug of the emulator must not look like a fault that was asked for
            self._record("emulator", f"{request.verb} {request.path}", [traceback.format_exc()])
            return encode(500, refusal("500").body)

    def _count(self, method: str) -> None:
        with self.cloud.clock.lock:
            self.calls[method] += 1

    def _strike(self, rule: Rule | None, place: str = "") -> None:
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
        if refused := rule.refusal(self.cloud.project, place):
            raise refused

    # --- calls

    def _call(self, request: Request) -> Answer:
        target = urlsplit(request.target).path
        matches = [(name, *match) for name in SERVICES if (match := discovery(name).match(request.verb, target))]
        matches.sort(key=lambda each: each[1].id not in METHODS)  # two APIs may have a method at the same path
        if not matches:
            raise Refusal(404, "notFound", f"No method is at {request.verb} {request.path}")
        service, method, path = matches[0]
        document, query = discovery(service), request.query
        self._count(method.id)
        body = self._check_request(document, method, {**query, **path}, request.body)
        place = path.get("zone") or path.get("region", "")
        starts = method.id in STARTING
        rule = self.faults.draw(method.id, place=place, makes_operation=starts)
        self._strike(rule, place)
        call = Call(method, path, query, body or {}, rule, request.token)
        with self.cloud.clock.changed:
            self.cloud.clock.run_due()
            answer = encode(200, self._perform(service, call))
        if rule and rule.kind == "lost":
            raise Broken(reset=False)
        return answer

    def _perform(self, service: str, call: Call) -> Json:
        """Do what the call asks; the lock is held."""
        cloud, method = self.cloud, METHODS.get(call.method.id)
        if method is None:
            raise Refusal(501, "notImplemented", f"The emulator does not know {call.method.id}.")
        self._check_access(service, call)
        if {call.path.get("zone"), call.path.get("region")} & cloud.silent:
            raise refusal("503")
        key = (call.method.id, *call.path.values(), call.query.get("requestId", ""))
        if key in cloud.requests:
            return cloud.requests[key].body  # an earlier request with this id has started it
        done = method(cloud, call)
        operation = cloud.operations.find(call.scope, done["name"]) if call.query.get("requestId") else None
        if operation:
            cloud.requests[key] = operation
        problems = discovery(service).check_response(call.method, done)
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
            self.violations.append(f"{side}: {method}: {'; '.join(problems)}")

    def _check_access(self, service: str, call: Call) -> None:
        cloud, caller = self.cloud, identity_of(call.token)
        cloud.governance.check_call(discovery(service).host, cloud.project)
        for project, permission in SERVICES[service](cloud, call):
            if caller is not None and service == "compute.v1":
                raise Refusal(403, "forbidden", "The emulator lets no instance call Compute Engine.")
            self.needed.add(permission if project == cloud.project else f"{project}:{permission}")
            if not cloud.denied.isdisjoint((permission, f"{project}:{permission}")):
                raise refusal("403-forbidden", permission=permission, path=f"projects/{project}")

    # --- endpoints that belong to no API

    def _grant_token(self, request: Request) -> Answer:
        """Return OAuth's answer to a refresh token, or to a service account's assertion."""
        self._count("oauth.token")
        rule = self.faults.draw("oauth.token")
        self._strike(rule)
        given = dict(parse_qsl(request.body.decode()))
        if rule and rule.kind == "invalid-grant":
            text = "Token has been expired or revoked."
            return encode(400, {"error": "invalid_grant", "error_description": text})
        if given.get("grant_type") not in _GRANTS:
            return encode(400, {"error": "unsupported_grant_type"})
        if rule and rule.kind == "lost":
            raise Broken(reset=False)
        self.cloud.scopes = given.get("scope", "https://www.googleapis.com/auth/cloud-platform")
        token = {"access_token": "emulated", "expires_in": 3599, "token_type": "Bearer"}
        return encode(200, {**token, "scope": self.cloud.scopes})

    def _serve_content(self, request: Request) -> Answer:
        """Upload or download an object."""
        self._count(f"storage.objects.{'download' if request.verb == 'GET' else 'insert'}")
        with self.cloud.clock.changed:
            return answer_content(self.cloud, request)

    def _open_tunnel(self, request: Request) -> Answer:
        """Return the address to which the stand-in for gcloud connects; Google's end is a WebSocket."""
        given = json.loads(request.body)
        self._count("iap.tunnel")
        with self.cloud.clock.changed:
            self.cloud.clock.run_due()
            try:
                target = (str(given["zone"]), str(given["instance"]), int(given["port"]))
                return encode(200, {"address": open_tunnel(self.cloud, request.token, *target)})
            except NoTunnel as refused:
                return encode(403, {"code": refused.code, "reason": refused.reason})


def _is_uuid(text: str) -> bool:
    try:
        return uuid.UUID(text).int != 0
    except ValueError:
        return False
