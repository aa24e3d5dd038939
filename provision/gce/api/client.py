"""Client of Compute Engine, over Google's library.

Source: https://cloud.google.com/compute/docs/reference/rest/v1 and the discovery document of that API.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import google.auth
import proto
import requests
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession
from google.auth.transport.requests import Request as AuthRequest
from google.cloud import compute_v1
from google.protobuf.json_format import ParseError
from requests import RequestException
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from provision.gce.catalog.names import last, network_of
from provision.gce.diagnosis import (
    EXPIRED,
    MISSING,
    RATE,
    UNKNOWN_MEMBER,
    UNUSABLE,
    VARIABLE,
    Failure,
    credentials_error,
    mapping,
    mappings,
    no_project,
)
from provision.gce.options import is_loopback
from provision.provider import ProviderError

Json = dict[str, Any]
M = TypeVar("M", bound=proto.Message)
_FORBIDDEN = 403
_RETRIED = (429, 500, 502, 503, 504)


class ApiError(Exception):
    """A call failed permanently.

    Attributes:
        failures: Failures that the answer reports.
    """

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("; ".join(failure.message for failure in failures) or "no answer")
        self.failures = tuple(failures)

    @property
    def status(self) -> int:
        """Return the HTTP status; 0 without an answer."""
        return max((failure.http for failure in self.failures), default=0)

    @property
    def is_forbidden(self) -> bool:
        """Return whether the caller lacks a permission; too many calls have the same status."""
        return self.status == _FORBIDDEN and not self._is_rate

    @property
    def is_transient(self) -> bool:
        """Return whether the call may succeed if it is repeated."""
        return self.status in (0, *_RETRIED) or self._is_rate

    @property
    def _is_rate(self) -> bool:
        """Return whether there were too many calls, https://cloud.google.com/compute/api-quota."""
        return any(failure.code in RATE.codes.split() for failure in self.failures)


class Listing(list[M]):
    """Resources of all zones and regions that answered.

    Attributes:
        silent: Zones and regions that did not answer.
    """

    def __init__(self, resources: Iterable[M] = (), silent: Iterable[str] = ()) -> None:
        super().__init__(resources)
        self.silent = frozenset(silent)


def to_json(message: proto.Message) -> Json:
    """Return a message of the library as JSON of the REST API, without unset fields."""
    text = type(message).to_json(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
        indent=None,
    )
    result: Json = json.loads(text)
    return result


def from_json(kind: type[M], content: Mapping[str, Any]) -> M:
    """Return JSON of the REST API as a message of the library; fields that this does not have are left out.

    Raises:
        ApiError: it does not have the form of the message.
    """
    try:
        message: M = kind.from_json(json.dumps(content), ignore_unknown_fields=True)
    except ParseError as error:
        raise ApiError([Failure(code="UNREACHABLE", message=f"an answer does not have its form: {error}")]) from error
    return message


def is_done(operation: compute_v1.Operation) -> bool:
    """Return whether an operation has ended, successfully or not."""
    return operation.status == compute_v1.Operation.Status.DONE


def from_http(status: int, body: Mapping[str, Any] | None) -> list[Failure]:
    """Return the failures that an HTTP error reports, one or more.

    Args:
        status: HTTP status, 400 or more.
        body: JSON of the answer; None if it is not JSON.
    """
    error = mapping(mapping(body).get("error"))
    message, details = str(error.get("message", "")), mappings(error.get("details"))
    failures = [
        Failure(
            code=str(item.get("reason", "")),
            message=str(item.get("message", "")) or message,
            http=status,
            domain=str(item.get("domain", "")),
            details=details,
        )
        for item in mappings(error.get("errors"))
    ]
    return failures or [Failure(code=str(error.get("status", "")), message=message, http=status, details=details)]


def from_operation(operation: compute_v1.Operation) -> list[Failure]:
    """Return the failures that an operation reports; empty if there are none."""
    status = operation.http_error_status_code
    failures = [
        Failure(
            code=item.code,
            message=item.message,
            http=status,
            details=tuple(to_json(detail) for detail in item.error_details),
            of_operation=True,
        )
        for item in operation.error.errors
    ]
    if not failures and status >= 400:
        message = operation.http_error_message
        return [Failure(code=message.replace(" ", "_"), message=message, http=status)]
    return failures


T = TypeVar("T")

PUBLIC_ENDPOINT = "https://compute.googleapis.com"
GOOGLE_APIS = "https://www.googleapis.com"
CALL_TIMEOUT_S = 60.0
# The server holds a call to `wait` for up to two minutes.
WAIT_TIMEOUT_S = 150.0
_PAGE = 500
_PARALLEL = 32
"""Largest number of calls at the same time."""
_PROJECT = re.compile(r"/projects/([^/]+)/")


@dataclass(frozen=True)
class Timing:
    """Timeouts and intervals in seconds.

    Attributes:
        first_poll_s: Interval between the first two polls; each further interval is 1.5 times as long.
        longest_poll_s: Longest interval between two polls.
        retry_s: Time for which calls with transient failures are repeated.
        contact_s: Such time while no call has been answered yet.
        operation_s: Longest duration of an operation.
        boot_s: Longest time from the start of an instance until it has published its host key.
        settle_s: Time after a call during which Compute Engine may not list its operation yet.
        lingering_s: Time for which the system sends a call on that its program does not repeat, or whose program has
            ended, if packets are not acknowledged.
        confirm_s: Longest time from a change of an instance's metadata until the instance has confirmed it.
        again_s: Time after which the deletion of a resource that still exists is requested again.
        prices_s: Longest wait for the price list.
    """

    first_poll_s: float = 0.25
    longest_poll_s: float = 5.0
    retry_s: float = 60.0
    contact_s: float = 8.0
    operation_s: float = 600.0
    boot_s: float = 300.0
    settle_s: float = 5.0
    lingering_s: float = 20.0
    again_s: float = 20.0
    confirm_s: float = 45.0
    prices_s: float = 20.0

    def pauses(self) -> Iterator[float]:
        """Yield the intervals between polls, without end."""
        pause = self.first_poll_s
        while True:
            yield pause
            pause = min(self.longest_poll_s, pause * 1.5)

    def polls(self, limit_s: Callable[[], float] | float, *, jitter: bool = False) -> Iterator[None]:
        """Yield before each poll, and sleep between polls, the last time when the limit has passed.

        Args:
            limit_s: Seconds after which no other poll begins, or a function that returns them.
            jitter: Shorten the intervals at random, so that several callers do not poll at the same time.
        """
        begun = time.monotonic()
        for pause in self.pauses():
            yield
            left_s = begun + (limit_s() if callable(limit_s) else limit_s) - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, pause * (random.uniform(0.5, 1.0) if jitter else 1.0)))  # noqa: S311 - no secret


class _Adapter(HTTPAdapter):
    """Connections that the system drops if packets are not acknowledged in time, also after the end of this program.

    Otherwise a call could arrive about 100 s after its program was ended: tcp_orphan_retries in
    https://docs.kernel.org/networking/ip-sysctl.html. Systems other than Linux do not have this option.
    """

    def __init__(self, limit_s: float) -> None:
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        self._options = [(socket.IPPROTO_TCP, option, round(1000 * limit_s))] if option else []
        super().__init__(pool_maxsize=_PARALLEL)

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        options = [*HTTPConnection.default_socket_options, *self._options]
        super().init_poolmanager(*args, socket_options=options, **more)


class Call(NamedTuple):
    """One of many calls: HTTP method, path with query, and body; None: no body."""

    verb: str
    path: str
    body: Json | None = None


class Api:
    """Calls to Compute Engine in one project; constructing it makes none.

    Calls with transient failures (429, 5xx, a broken connection) are repeated. Each call that changes a resource
    has a request ID, so that its repetition is the same request.

    Args:
        project: The project; empty: the project of the credentials.
        endpoint: URL of a private API, without a path; empty: the public one.
        timing: Timeouts and intervals.
        clock: Returns the time in seconds since the epoch, by the clock of this computer.
        report: Takes why a call is repeated.

    Attributes:
        ahead_s: Seconds by which Google's clock was ahead of this one at the last answer, at least, in multiples of
            10: an answer shows its time without fractions of a second.
    """

    def __init__(
        self,
        project: str,
        endpoint: str,
        timing: Timing,
        clock: Callable[[], float] = time.time,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._project = project
        self.endpoint = endpoint.rstrip("/") or PUBLIC_ENDPOINT
        self._private = bool(endpoint)
        self.timing = timing
        self.ahead_s = 0.0
        self._clock = clock
        self._report = report
        self._reported = ""
        self._answered = False
        self._clients: dict[str, Any] = {}
        self._making = threading.Lock()

    # --- credentials ------------------------------------------------------------------------------------------

    @cached_property
    def _credentials(self) -> tuple[Any, str]:
        """Return refreshed credentials, so that expired ones fail early, and their project."""
        file = os.environ.get(VARIABLE, "")
        if is_loopback(self.endpoint) and not file:
            return AnonymousCredentials(), ""  # type: ignore[no-untyped-call]
        try:
            credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        except DefaultCredentialsError as error:
            problem = MISSING if "not found" in _plain(error) else UNUSABLE
            raise credentials_error(problem, _plain(error), file) from error
        except OSError as error:
            raise credentials_error(UNUSABLE, f"{error.filename}: {error.strerror}", file) from error
        except (ValueError, AttributeError, TypeError, LookupError) as error:  # which the library does not expect
            raise credentials_error(UNUSABLE, "the file does not have the form of credentials", file) from error
        with _translated():
            credentials.refresh(AuthRequest())  # type: ignore[no-untyped-call]
        return credentials, project or ""

    def authenticate(self) -> None:
        """Obtain credentials, if that was not done before.

        Raises:
            ProviderError: credentials are missing, or they are not accepted.
            ApiError: the server does not answer.
        """
        _ = self._credentials

    @cached_property
    def project(self) -> str:
        """Return the project of all calls.

        Raises:
            ProviderError: credentials are missing, or neither they nor the settings name a project.
        """
        project = self._project or self._credentials[1]
        if not project:
            raise no_project()
        return project

    @cached_property
    def account(self) -> str:
        """Return the account in use as a member of IAM policies, ``user:me@example.com``; empty if it is unknown."""
        try:
            return member_of(self._credentials[0], self.base(GOOGLE_APIS))
        except (ApiError, ProviderError):
            return ""

    def member(self) -> str:
        """Return the account in use as a member of IAM policies, quoted for a shell."""
        return shlex.quote(self.account) if self.account else UNKNOWN_MEMBER

    def _client(self, name: str) -> Any:
        with self._making:
            if name not in self._clients:
                options = ClientOptions(api_endpoint=self.endpoint) if self._private else None
                kind = getattr(compute_v1, name)
                self._clients[name] = kind(credentials=self._credentials[0], client_options=options)
            return self._clients[name]

    @cached_property
    def _session(self) -> AuthorizedSession:
        session = AuthorizedSession(self._credentials[0])  # type: ignore[no-untyped-call]
        for scheme in ("https://", "http://"):
            session.mount(scheme, _Adapter(self.timing.lingering_s))
        return session

    # --- making calls -----------------------------------------------------------------------------------------

    def _call(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, which is repeated after transient failures.

        Raises:
            ApiError: it failed permanently, or for too long.
            ProviderError: the credentials are not accepted.
        """
        failed: ApiError | None = None

        def limit_s() -> float:
            return self.timing.retry_s if self._answered else self.timing.contact_s

        for _ in self.timing.polls(limit_s, jitter=True):
            if failed is not None:
                self._report_retry(failed)
            try:
                with _translated():
                    result = action()
            except ApiError as error:
                self._answered = self._answered or error.status > 0
                failed = error
                if not error.is_transient:
                    raise
            else:
                self._answered = True
                return result
        raise failed or AssertionError("there is at least one attempt")

    def _report_retry(self, failed: ApiError) -> None:
        why = f"after HTTP {failed.status}" if failed.status else "because it did not answer"
        if why != self._reported:
            self._reported = why
            self._report(f"asking Compute Engine; retrying {why}")

    def _request(self, client: str, method: str, *, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        """Make one call, and return the message of its answer."""
        request = {"project": self.project, **fields}
        return self._call(
            lambda: getattr(self._client(client), method)(request=request, retry=None, timeout=timeout_s)
        )

    def _list(self, client: str, **fields: Any) -> list[Any]:
        """Return the resources of a list that is neither of a zone nor of a region, from all of its pages."""
        request = {"project": self.project, "max_results": _PAGE, **fields}
        return self._call(
            lambda: list(self._client(client).list(request=request, retry=None, timeout=CALL_TIMEOUT_S))
        )

    def _aggregated(self, kind: type[M], collection: str, query: str = "", project: str = "") -> Listing[M]:
        """Return the resources of all zones and regions, from all pages of the list.

        Google's library does not have returnPartialSuccess, without which a zone that does not answer fails the call.

        Args:
            kind: Class of the resources.
            collection: Name of the collection, ``instances``.
            query: Filter of the list; empty: none.
            project: The project; empty: this one.
        """
        given = {"maxResults": str(_PAGE), "returnPartialSuccess": "true", **({"filter": query} if query else {})}
        resources: list[M] = []
        silent: set[str] = set()
        token = ""
        while True:
            page = given if not token else {**given, "pageToken": token}
            path = self.path("aggregated", collection, project=project, **page)
            try:
                answer = self.ask(self.endpoint, path)
            except ApiError as error:
                # The parameter is not in the discovery document of November 2026.
                if error.status != 400 or given.pop("returnPartialSuccess", None) is None:
                    raise
                continue
            silent |= {last(str(scope)) for scope in answer.get("unreachables", ())}
            for scope, scoped in answer.get("items", {}).items():
                resources += [from_json(kind, each) for each in scoped.get(collection, ())]
                if scoped.get("warning", {}).get("code") == "UNREACHABLE":
                    silent.add(last(scope))
            token = str(answer.get("nextPageToken", ""))
            if not token:
                return Listing(resources, silent)

    def together(self, *calls: Callable[[], Any]) -> list[Any]:
        """Make several calls at the same time, and return their results; raise the first error in their order.

        Raises:
            ApiError: a call failed.
            ProviderError: the credentials are not accepted.
        """
        with _translated():
            _ = self.project, self._credentials  # in one thread before others start
        futures, slots = [Future[Any]() for _ in calls], threading.BoundedSemaphore(_PARALLEL)

        def work(future: Future[Any], call: Callable[[], Any]) -> None:
            with slots:
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(call())
                    except BaseException as error:  # noqa: BLE001 - raised again below
                        future.set_exception(error)

        # Daemon threads instead of a pool: after Ctrl-C, the program does not wait for them.
        for pair in zip(futures, calls, strict=True):
            threading.Thread(target=work, args=pair, daemon=True).start()
        try:
            wait(futures)
        finally:
            for future in futures:  # after Ctrl-C, no further call begins
                future.cancel()
        return [future.result() for future in futures]

    def each(self, calls: Sequence[Call], *, at_once: bool = True) -> list[Json | ApiError]:
        """Make many calls that may fail separately, and return the answer to each, or its error.

        Args:
            calls: The calls.
            at_once: Make them at the same time. Calls that create or start something are made one after another
                instead, so that none is made after an interruption of this program.

        Raises:
            ProviderError: the credentials are not accepted.
        """

        def answer(call: Call) -> Json | ApiError:
            try:
                return self.ask(self.endpoint, call.path, call.body, verb=call.verb)
            except ApiError as error:
                return error

        return self.together(*(partial(answer, call) for call in calls)) if at_once else list(map(answer, calls))

    # --- reading resources ------------------------------------------------------------------------------------

    def get_project(self) -> compute_v1.Project:
        """Return the project, with its quotas."""
        project: compute_v1.Project = self._request("ProjectsClient", "get")
        return project

    def host_project(self) -> str:
        """Return the host project of the Shared VPC that the project belongs to; empty: none."""
        return str(self._request("ProjectsClient", "get_xpn_host").name)

    def regions(self) -> list[compute_v1.Region]:
        """Return the regions, with their quotas and zones."""
        return self._list("RegionsClient")

    def accelerator_types(self, name: str) -> Listing[compute_v1.AcceleratorType]:
        """Return the type of accelerators of this name, once for each zone that has it."""
        return self._aggregated(compute_v1.AcceleratorType, "acceleratorTypes", f"name={name}")

    def machine_types(self, name: str) -> Listing[compute_v1.MachineType]:
        """Return the machine type of this name, once for each zone that has it."""
        return self._aggregated(compute_v1.MachineType, "machineTypes", f"name={name}")

    def machine_type_names(self, zone: str) -> list[str]:
        """Return the names of all machine types of a zone."""
        return [str(machine_type.name) for machine_type in self._list("MachineTypesClient", zone=zone)]

    def reservations(self, name: str, project: str = "") -> Listing[compute_v1.Reservation]:
        """Return the reservations of this name, of which each zone may have one, in this project or another one."""
        return self._aggregated(compute_v1.Reservation, "reservations", f"name={name}", project)

    def image(self, path: str) -> compute_v1.Image:
        """Return the image that ``projects/P/global/images/family/F`` or ``projects/P/global/images/I`` names."""
        words = path.removeprefix("https://www.googleapis.com/compute/v1/").split("/")
        method, field = ("get_from_family", "family") if words[-2] == "family" else ("get", "image")
        fields: dict[str, Any] = {"project": words[1], field: words[-1]}
        image: compute_v1.Image = self._request("ImagesClient", method, **fields)
        return image

    def images(self, query: str) -> list[compute_v1.Image]:
        """Return the images of the project itself."""
        return self._list("ImagesClient", filter=query)

    def network(self, path: str) -> compute_v1.Network:
        """Return a VPC network, of this project or of a host project."""
        project, name = network_of(path)
        network: compute_v1.Network = self._request(
            "NetworksClient", "get", project=project or self.project, network=name
        )
        return network

    def effective_firewalls(self, path: str) -> compute_v1.NetworksGetEffectiveFirewallsResponse:
        """Return the firewall rules and policies of a network, of this project or of a host project."""
        project, name = network_of(path)
        effective: compute_v1.NetworksGetEffectiveFirewallsResponse = self._request(
            "NetworksClient", "get_effective_firewalls", project=project or self.project, network=name
        )
        return effective

    def instances(self, query: str) -> Listing[compute_v1.Instance]:
        """Return the instances of all zones, with one call per page."""
        return self._aggregated(compute_v1.Instance, "instances", query)

    def disks(self, query: str) -> Listing[compute_v1.Disk]:
        """Return the disks of all zones."""
        return self._aggregated(compute_v1.Disk, "disks", query)

    def addresses(self, query: str) -> Listing[compute_v1.Address]:
        """Return the reserved addresses of all regions."""
        return self._aggregated(compute_v1.Address, "addresses", query)

    def resource_policies(self) -> Listing[compute_v1.ResourcePolicy]:
        """Return the resource policies of all regions."""
        return self._aggregated(compute_v1.ResourcePolicy, "resourcePolicies")

    def firewalls(self, project: str = "") -> list[compute_v1.Firewall]:
        """Return the firewall rules of this project, or of another one."""
        return self._list("FirewallsClient", project=project or self.project)

    def routers(self, project: str = "") -> Listing[compute_v1.Router]:
        """Return the Cloud Routers of all regions, of this project or of another one."""
        return self._aggregated(compute_v1.Router, "routers", project=project)

    def operations(self, query: str = "", project: str = "") -> Listing[compute_v1.Operation]:
        """Return the operations of the last days, of all zones and regions."""
        return self._aggregated(compute_v1.Operation, "operations", query, project)

    # --- changing resources -----------------------------------------------------------------------------------

    def create(
        self, words: Sequence[str], message: Any, request_id: str, *, project: str = "", verb: str = ""
    ) -> compute_v1.Operation:
        """Create something, or change it; return the operation, which is not done yet.

        The library's clients have no option for their sockets, which keeps a call from arriving late.

        Args:
            words: Words of the path, ``("zones", "us-central1-a", "instances", "bulkInsert")``.
            message: The body.
            request_id: ID of the request.
            project: The project; empty: this one.
            verb: HTTP method; empty: POST.
        """
        path = self.path(*words, project=project, requestId=request_id)
        return from_json(compute_v1.Operation, self.ask(self.endpoint, path, to_json(message), verb=verb))

    # --- operations -------------------------------------------------------------------------------------------

    def until(self, is_done: Callable[[], bool], activity: str, extra_s: float = 0.0) -> None:
        """Poll until `is_done` returns True.

        Raises:
            ApiError: it takes longer than `timing.operation_s` and `extra_s`; `activity` names it in the message.
        """
        limit_s = self.timing.operation_s + extra_s
        for _ in self.timing.polls(limit_s):
            if is_done():
                return
        message = f"{activity} is not done after {limit_s:g} s"
        raise ApiError([Failure(code="DEADLINE", message=message)])

    def wait(self, operation: compute_v1.Operation, activity: str) -> compute_v1.Operation:
        """Wait for an operation, and return it when it is done, even if it failed.

        Raises:
            ApiError: it takes longer than `timing.operation_s`; `activity` names it in the message.
        """
        current = operation

        def has_ended() -> bool:
            nonlocal current
            if not is_done(current):
                current = self._wait_once(current)
            return is_done(current)

        self.until(has_ended, f"{activity} (operation {operation.name})")
        return current

    def _wait_once(self, operation: compute_v1.Operation) -> compute_v1.Operation:
        scope = "zone" if operation.zone else "region" if operation.region else ""
        place = {scope: last(operation.zone or operation.region)} if scope else {}
        match = _PROJECT.search(operation.self_link)
        fields = {"project": match[1] if match else self.project, "operation": operation.name, **place}
        client = f"{(scope or 'global').title()}OperationsClient"
        try:
            current: compute_v1.Operation = self._request(client, "wait", timeout_s=WAIT_TIMEOUT_S, **fields)
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            return current
        # Compute Engine forgets operations that have ended; the lists of resources show their effect.
        listed = self.operations(f'name="{operation.name}"', fields["project"])
        if not listed and not listed.silent:
            return compute_v1.Operation(operation, status=compute_v1.Operation.Status.DONE)
        return next(iter(listed), operation)

    def done(self, operation: compute_v1.Operation, activity: str) -> None:
        """Wait for an operation that must succeed.

        Raises:
            ApiError: it failed, or takes too long.
        """
        failures = from_operation(self.wait(operation, activity))
        if failures:
            raise ApiError(failures)

    # --- calls over HTTP --------------------------------------------------------------------------------------

    def path(self, *words: str, project: str = "", **query: str) -> str:
        """Return the path of a resource in the project, or in another one, for `ask` or a `Call`."""
        query_text = f"?{urlencode(query)}" if query else ""
        return f"/compute/v1/projects/{project or self.project}/{'/'.join(words)}{query_text}"

    def _accepted(self, send: Callable[[], Any]) -> Any:
        """Return the answer of a successful call, and compare the clocks.

        Raises:
            ApiError: it is an error.
        """
        asked_at = self._clock()
        answer = send()
        with contextlib.suppress(ValueError):
            sent_at = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
            nearest = min(max(sent_at, asked_at), self._clock())  # this computer's time when the answer was sent
            self.ahead_s = round(sent_at - nearest, -1)
        if answer.status_code != 200:
            raise ApiError(from_http(answer.status_code, _body(answer)))
        return answer

    def base(self, public: str) -> str:
        """Return the URL of another API of Google; an emulator has all of them at one address."""
        return self.endpoint if is_loopback(self.endpoint) else public

    def ask(self, service: str, path: str, body: Json | None = None, *, verb: str = "", token: str = "") -> Json:
        """Return the answer of another API of Google; a call with a transient failure is repeated.

        Args:
            service: URL of the API; an emulator has all of them at one address.
            path: Path of the call, ``/v1/projects/p/billingInfo``.
            body: JSON of the call.
            verb: HTTP method; empty: POST with a body, otherwise GET.
            token: Access token of another account; empty: the credentials are used.

        Raises:
            ApiError: the call failed, for example because that API is disabled.
        """
        url, method = f"{self.base(service)}{path}", verb or ("GET" if body is None else "POST")
        session: Any = self._session
        request = partial(_request_as, token) if token else session.request
        send = partial(request, method, url, json=body, timeout=CALL_TIMEOUT_S)
        answer = self._call(lambda: self._accepted(send))
        result: Json = answer.json()
        return result


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Convert errors of Google's library and its transport to ApiError or ProviderError."""
    try:
        yield
    except GoogleAPICallError as error:
        raise ApiError(from_http(int(error.code or 0), _body(error.response))) from error
    except (requests.exceptions.RequestException, TransportError) as error:
        raise ApiError([Failure(code="UNREACHABLE", message=_plain(error))]) from error
    except RefreshError as error:
        raise credentials_error(EXPIRED, _plain(error), os.environ.get(VARIABLE, "")) from error
    except GoogleAuthError as error:
        raise credentials_error(UNUSABLE, _plain(error), os.environ.get(VARIABLE, "")) from error


def _request_as(token: str, method: str, url: str, *, json: Json | None, timeout: float) -> Any:
    """Return the answer to a request with an access token; ~/.netrc cannot replace a header that `auth` sets."""

    def authorize(request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return requests.request(method, url, json=json, timeout=timeout, auth=authorize)


def _body(answer: Any) -> Mapping[str, Any] | None:
    try:
        content = answer.json()
    except (ValueError, AttributeError):
        return None
    return content if isinstance(content, dict) else None


def _plain(error: Exception) -> str:
    """Return the innermost reason of an error; those of libraries contain each other."""
    reason: object = error
    while isinstance(reason, Exception):
        inner = getattr(reason, "reason", None) or next(iter(reason.args), None)
        if inner is None:
            break
        reason = inner
    return str(reason)


_SCOPE = "https://www.googleapis.com/auth/userinfo.email"
_TIMEOUT_S = 10.0


def member_of(credentials: Any, base: str) -> str:
    """Return the account of `credentials` as a member of IAM policies; empty if it cannot be determined.

    Credentials of a user do not contain it, and an access token for Compute Engine does not permit the question; so
    another one is requested.

    Args:
        credentials: Application Default Credentials.
        base: URL of the API that answers, without a path.

    Returns:
        ``user:me@example.com`` or ``serviceAccount:fleet@p.iam.gserviceaccount.com``.

    Source: https://developers.google.com/identity/openid-connect/openid-connect#obtaininguserprofileinformation.
    """
    address = str(getattr(credentials, "service_account_email", None) or "")
    if address:
        return f"serviceAccount:{address}"
    if not getattr(credentials, "refresh_token", None):
        return ""
    try:
        session = AuthorizedSession(google.auth.default(scopes=[_SCOPE])[0])  # type: ignore[no-untyped-call]
        answer = session.get(f"{base}/oauth2/v2/userinfo", timeout=_TIMEOUT_S)
        profile = answer.json() if answer.status_code == 200 else {}
    except (GoogleAuthError, RequestException):
        return ""
    return f"user:{profile['email']}" if profile.get("email") else ""
