"""Client of Compute Engine, the only module that uses Google's library; resources are JSON of the REST API.

Source: https://cloud.google.com/compute/docs/reference/rest/v1 and the discovery document of that API.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from provision.gce.catalog.networks import network_of
from provision.gce.diagnosis import (
    Failure,
    expired_credentials,
    from_http,
    from_operation,
    no_credentials,
    no_project,
)
from provision.gce.rest.batch import CALLS_MAX, Answer, Call, decode, encode
from provision.gce.rest.clients import client_class, types
from provision.gce.rest.resources import last

T = TypeVar("T")
Json = dict[str, Any]

PUBLIC_ENDPOINT = "https://compute.googleapis.com"
RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
CALL_TIMEOUT_S = 60.0
# The server holds a call to `wait` for up to two minutes.
WAIT_TIMEOUT_S = 150.0
_RETRIED = (429, 500, 502, 503, 504)
_PAGE = 500
_PROJECT = re.compile(r"/projects/([^/]+)/")


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
        """Return the HTTP status; 0 if there was no answer."""
        return max((failure.http for failure in self.failures), default=0)


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
        confirm_s: Longest time from a change of an instance's metadata until the instance has confirmed it.
        again_s: Time after which the deletion of a resource that still exists is requested again.
    """

    first_poll_s: float = 0.25
    longest_poll_s: float = 5.0
    retry_s: float = 60.0
    contact_s: float = 8.0
    operation_s: float = 600.0
    boot_s: float = 300.0
    settle_s: float = 5.0
    again_s: float = 20.0
    confirm_s: float = 45.0

    def pauses(self) -> Iterator[float]:
        """Yield the intervals between polls, without end."""
        pause = self.first_poll_s
        while True:
            yield pause
            pause = min(self.longest_poll_s, pause * 1.5)


def is_loopback(endpoint: str) -> bool:
    """Return whether the API at this URL is on this computer."""
    name = urlsplit(endpoint).hostname or ""
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


class Api:
    """Calls to Compute Engine in one project; constructing it makes none.

    Calls with transient failures (429, 5xx, a broken connection) are repeated. Each call that changes a resource
    has a request ID, so that its repetition is the same request.

    Args:
        project: The project; empty: the project of the credentials.
        endpoint: URL of a private API, without a path; empty: the public one.
        timing: Timeouts and intervals.
    """

    def __init__(self, project: str, endpoint: str, timing: Timing) -> None:
        self._project = project
        self.endpoint = endpoint.rstrip("/") or PUBLIC_ENDPOINT
        self._private = bool(endpoint)
        self.timing = timing
        self._answered = False
        self._loading = threading.Lock()

    # --- credentials ------------------------------------------------------------------------------------------

    @cached_property
    def _credentials(self) -> tuple[Any, str]:
        """Return refreshed credentials, so that expired ones fail early, and their project."""
        from google.auth import default
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError

        if is_loopback(self.endpoint) and not os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            return AnonymousCredentials(), ""  # type: ignore[no-untyped-call]
        try:
            credentials, project = default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        except DefaultCredentialsError as error:
            raise no_credentials(str(error)) from error
        with _translated():
            from google.auth.transport.requests import Request

            credentials.refresh(Request())  # type: ignore[no-untyped-call]
        return credentials, project or ""

    def authenticate(self) -> None:
        """Obtain credentials, if that was not done before.

        Raises:
            ProviderError: there are no credentials, or they are not accepted.
            ApiError: the server does not answer.
        """
        _ = self._credentials

    @cached_property
    def project(self) -> str:
        """Return the project of all calls.

        Raises:
            ProviderError: there are no credentials, or neither they nor the settings name a project.
        """
        project = self._project or self._credentials[1]
        if not project:
            raise no_project()
        return project

    def _client(self, name: str) -> Any:
        # Threads that import modules of one package at the same time can block each other.
        with self._loading:
            clients = self.__dict__.setdefault("_clients", {})
            if name not in clients:
                from google.api_core.client_options import ClientOptions

                options = ClientOptions(api_endpoint=self.endpoint) if self._private else None
                clients[name] = client_class(name)(credentials=self._credentials[0], client_options=options)
            return clients[name]

    @cached_property
    def _session(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self._credentials[0])  # type: ignore[no-untyped-call]

    # --- making calls -----------------------------------------------------------------------------------------

    def _call(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, which is repeated after transient failures.

        Raises:
            ApiError: it failed permanently, or for too long.
            ProviderError: the credentials are not accepted.
        """
        begun = time.monotonic()
        for pause in self.timing.pauses():
            try:
                with _translated():
                    result = action()
            except ApiError as error:
                self._answered = self._answered or error.status > 0
                limit_s = self.timing.retry_s if self._answered else self.timing.contact_s
                if error.status not in (0, *_RETRIED) or time.monotonic() > begun + limit_s:
                    raise
            else:
                self._answered = True
                return result
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads callers, no secret
        raise AssertionError("pauses have no end")

    def _get(self, client: str, method: str, **fields: Any) -> Json:
        message = self._call(
            lambda: getattr(self._client(client), method)(
                request={"project": self.project, **fields}, retry=None, timeout=CALL_TIMEOUT_S
            )
        )
        return to_json(message)

    def _list(self, client: str, **fields: Any) -> list[Json]:
        """Return the resources of one list, from all of its pages."""

        def action() -> list[Json]:
            request = {"project": self.project, "max_results": _PAGE, **fields}
            pages = self._client(client).list(request=request, retry=None, timeout=CALL_TIMEOUT_S)
            return [to_json(item) for item in pages]

        return self._call(action)

    def _aggregated(self, client: str, field: str, **fields: Any) -> list[Json]:
        """Return the resources of all zones and regions, with one call per page."""

        def action() -> list[Json]:
            request = {"project": self.project, "max_results": _PAGE, **fields}
            pages = self._client(client).aggregated_list(request=request, retry=None, timeout=CALL_TIMEOUT_S)
            return [to_json(item) for _, scoped in pages for item in getattr(scoped, field)]

        return self._call(action)

    def together(self, *calls: Callable[[], Any]) -> list[Any]:
        """Make several calls at the same time, and return their results; raise the first error in their order.

        Raises:
            ApiError: a call failed.
            ProviderError: the credentials are not accepted.
        """
        with _translated():
            self._prepare()
        ended: dict[int, tuple[Any, BaseException | None]] = {}

        def call(number: int) -> None:
            try:
                ended[number] = (calls[number](), None)
            except BaseException as error:  # noqa: BLE001 - raised again below
                ended[number] = (None, error)

        # Daemon threads instead of a pool: after Ctrl-C, the program does not wait for them.
        threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(len(calls)):
            error = ended[number][1]
            if error is not None:
                raise error
        return [ended[number][0] for number in range(len(calls))]

    def _prepare(self) -> None:
        """Determine the project and credentials, and import shared modules, in one thread before others start."""
        import encodings.idna  # noqa: F401 - of getaddrinfo

        _ = self.project, self._credentials
        types()

    # --- reading resources ------------------------------------------------------------------------------------

    def get_project(self) -> Json:
        """Return the project, with its quotas."""
        return self._call(
            lambda: to_json(
                self._client("ProjectsClient").get(project=self.project, retry=None, timeout=CALL_TIMEOUT_S)
            )
        )

    def regions(self) -> list[Json]:
        """Return the regions, with their quotas and zones."""
        return self._list("RegionsClient")

    def accelerator_zones(self, name: str) -> list[str]:
        """Return the zones that have accelerators of this type."""
        accelerators = self._aggregated("AcceleratorTypesClient", "accelerator_types", filter=f"name={name}")
        return [last(item["zone"]) for item in accelerators if item.get("zone")]

    def machine_types(self, name: str) -> list[Json]:
        """Return the machine type of this name, once for each zone that has it."""
        return self._aggregated("MachineTypesClient", "machine_types", filter=f"name={name}")

    def machine_zones(self, name: str) -> list[str]:
        """Return the zones that have machines of this type."""
        return [last(item["zone"]) for item in self.machine_types(name) if item.get("zone")]

    def image(self, path: str) -> Json:
        """Return the image that ``projects/P/global/images/family/F`` or ``projects/P/global/images/I`` names."""
        words = path.removeprefix("https://www.googleapis.com/compute/v1/").split("/")
        client, project = self._client("ImagesClient"), words[1]
        if words[-2] == "family":
            return self._call(
                lambda: to_json(
                    client.get_from_family(project=project, family=words[-1], retry=None, timeout=CALL_TIMEOUT_S)
                )
            )
        return self._call(
            lambda: to_json(client.get(project=project, image=words[-1], retry=None, timeout=CALL_TIMEOUT_S))
        )

    def network(self, path: str) -> Json:
        """Return a VPC network, of this project or of a host project."""
        project, name = network_of(path)
        return self._get("NetworksClient", "get", project=project or self.project, network=name)

    def instances(self, query: str) -> list[Json]:
        """Return the instances of all zones, with one call per page."""
        return self._aggregated("InstancesClient", "instances", filter=query)

    def disks(self, query: str) -> list[Json]:
        """Return the disks of all zones."""
        return self._aggregated("DisksClient", "disks", filter=query)

    def addresses(self, query: str) -> list[Json]:
        """Return the reserved addresses of all regions."""
        return self._aggregated("AddressesClient", "addresses", filter=query)

    def firewalls(self, project: str = "") -> list[Json]:
        """Return the firewall rules of this project, or of another one."""
        return self._list("FirewallsClient", project=project or self.project)

    def operations(self, query: str = "", project: str = "") -> list[Json]:
        """Return the operations of the last days, of all zones and regions."""
        return self._aggregated("GlobalOperationsClient", "operations", filter=query, project=project or self.project)

    # --- changing resources -----------------------------------------------------------------------------------

    def bulk_insert(self, place: str, body: Json, request_id: str, *, regional: bool) -> Json:
        """Create instances in one zone, or in one zone of a region; return the operation, which is not done yet.

        Source: instances.bulkInsert and regionInstances.bulkInsert.
        """
        messages = types()
        resource = messages.BulkInsertInstanceResource.from_json(json.dumps(body))
        fields = {
            "project": self.project,
            "request_id": request_id,
            "region" if regional else "zone": place,
            "bulk_insert_instance_resource_resource": resource,
        }
        kind = messages.BulkInsertRegionInstanceRequest if regional else messages.BulkInsertInstanceRequest
        client = self._client("RegionInstancesClient" if regional else "InstancesClient")
        return self._call(
            lambda: to_json(client.bulk_insert_unary(request=kind(fields), retry=None, timeout=CALL_TIMEOUT_S))
        )

    def insert_firewall(self, body: Json, request_id: str, project: str = "") -> Json:
        """Create a firewall rule; return the operation."""
        messages = types()
        request = messages.InsertFirewallRequest(
            project=project or self.project,
            request_id=request_id,
            firewall_resource=messages.Firewall.from_json(json.dumps(body)),
        )
        client = self._client("FirewallsClient")
        return self._call(lambda: to_json(client.insert_unary(request=request, retry=None, timeout=CALL_TIMEOUT_S)))

    def patch_firewall(self, body: Json, request_id: str, project: str = "") -> Json:
        """Change a firewall rule to `body`; return the operation."""
        messages = types()
        request = messages.PatchFirewallRequest(
            project=project or self.project,
            request_id=request_id,
            firewall=body["name"],
            firewall_resource=messages.Firewall.from_json(json.dumps(body)),
        )
        client = self._client("FirewallsClient")
        return self._call(lambda: to_json(client.patch_unary(request=request, retry=None, timeout=CALL_TIMEOUT_S)))

    # --- operations -------------------------------------------------------------------------------------------

    def wait(self, operation: Json, activity: str) -> Json:
        """Wait for an operation, and return it when it is done, even if it failed.

        Raises:
            ApiError: it takes longer than `timing.operation_s`; `activity` names it in the message.
        """
        deadline = time.monotonic() + self.timing.operation_s
        pauses = self.timing.pauses()
        while operation.get("status") != "DONE":
            if time.monotonic() > deadline:
                message = (
                    f"{activity} is not done after {self.timing.operation_s:g} s (operation {operation['name']})"
                )
                raise ApiError([Failure(code="DEADLINE", message=message)])
            before = time.monotonic()
            operation = self._wait_once(operation)
            if operation.get("status") != "DONE" and time.monotonic() - before < self.timing.first_poll_s:
                time.sleep(next(pauses))  # the server may answer early
        return operation

    def _wait_once(self, operation: Json) -> Json:
        if operation.get("zone"):
            client, place = "ZoneOperationsClient", {"zone": last(operation["zone"])}
        elif operation.get("region"):
            client, place = "RegionOperationsClient", {"region": last(operation["region"])}
        else:
            client, place = "GlobalOperationsClient", {}
        match = _PROJECT.search(operation.get("selfLink", ""))
        project = match[1] if match else self.project
        request = {"project": project, "operation": operation["name"], **place}
        return self._call(
            lambda: to_json(self._client(client).wait(request=request, retry=None, timeout=WAIT_TIMEOUT_S))
        )

    def done(self, operation: Json, activity: str) -> None:
        """Wait for an operation that must succeed.

        Raises:
            ApiError: it failed, or takes too long.
        """
        failures = from_operation(self.wait(operation, activity))
        if failures:
            raise ApiError(failures)

    # --- many calls in one request ----------------------------------------------------------------------------

    def path(self, *words: str, project: str = "", **query: str) -> str:
        """Return the path of a resource in the project, or in another one, for a call in a batch."""
        asked = f"?{urlencode(query)}" if query else ""
        return f"/compute/v1/projects/{project or self.project}/{'/'.join(words)}{asked}"

    def batch(self, calls: Sequence[Call]) -> list[Answer]:
        """Return the answers to many calls, in their order; calls with transient failures are repeated.

        Source: https://cloud.google.com/compute/docs/api/how-tos/batch

        Raises:
            ApiError: the request as a whole failed.
        """
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + self.timing.retry_s
        for pause in self.timing.pauses():
            left = [n for n in range(len(calls)) if n not in answers or answers[n].status in _RETRIED]
            if not left or (answers and time.monotonic() > deadline):
                break
            if answers:
                time.sleep(pause)
            for part in _slices(left, CALLS_MAX):
                part_answers = self._call(lambda part=part: self._post_batch([calls[n] for n in part]))  # type: ignore[misc]
                answers.update(zip(part, part_answers, strict=True))
        return [answers[n] for n in range(len(calls))]

    def _post_batch(self, calls: Sequence[Call]) -> list[Answer]:
        content_type, body = encode(calls)
        answer = self._session.post(
            f"{self.endpoint}/batch/compute/v1",
            data=body,
            headers={"Content-Type": content_type},
            timeout=CALL_TIMEOUT_S,
        )
        if answer.status_code != 200:
            raise ApiError(from_http(answer.status_code, _body(answer)))
        return decode(answer.headers["Content-Type"], answer.content)

    # --- permissions ------------------------------------------------------------------------------------------

    def permitted(self, permissions: Sequence[str]) -> set[str]:
        """Return those of `permissions` that the caller has in the project.

        Source: cloudresourcemanager.projects.testIamPermissions.

        Raises:
            ApiError: the call failed, for example because that API is disabled.
        """
        base = self.endpoint if is_loopback(self.endpoint) else RESOURCE_MANAGER

        def action() -> set[str]:
            answer = self._session.post(
                f"{base}/v1/projects/{self.project}:testIamPermissions",
                json={"permissions": list(permissions)},
                timeout=CALL_TIMEOUT_S,
            )
            if answer.status_code != 200:
                raise ApiError(from_http(answer.status_code, _body(answer)))
            return set(answer.json().get("permissions", ()))

        return self._call(action)


def to_json(message: Any) -> Json:
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


def answer_failures(answer: Answer) -> list[Failure]:
    """Return the failures that the answer to a call in a batch reports; empty if it succeeded."""
    return [] if answer.status < 400 else from_http(answer.status, answer.body)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Convert errors of Google's library and its transport to ApiError or ProviderError."""
    import requests
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError

    try:
        yield
    except GoogleAPICallError as error:
        raise ApiError(from_http(int(error.code or 0), _body(error.response))) from error
    except (requests.exceptions.RequestException, TransportError) as error:
        raise ApiError([Failure(code="UNREACHABLE", message=_plain(error))]) from error
    except RefreshError as error:
        raise expired_credentials(_plain(error)) from error
    except GoogleAuthError as error:
        raise no_credentials(_plain(error)) from error


def _body(answer: Any) -> Mapping[str, Any] | None:
    try:
        content = answer.json()
    except (ValueError, AttributeError):
        return None
    return content if isinstance(content, dict) else None


def _plain(error: Exception) -> str:
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", cause))


def _slices(numbers: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))
