"""Cloud Storage: buckets, their objects, and who may use them.

Source: https://cloud.google.com/storage/docs/json_api/v1, https://cloud.google.com/storage/docs/uploads-downloads,
and https://cloud.google.com/storage/docs/access-control/iam-roles.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tests.emulator.governance import ANONYMOUS, EMAIL, Governance, identity_of
from tests.emulator.messages import Answer, Refusal, Request, bad_request, encode

if TYPE_CHECKING:
    from tests.emulator.cloud import Cloud

Json = dict[str, Any]
XML = "/storage-xml/"
"""Prefix of the paths of the XML API, which has a host name of its own."""
_URL = "https://www.googleapis.com"
_WRITE = ("cloud-platform", "devstorage.full_control", "devstorage.read_write")
_READ = (*_WRITE, "cloud-platform.read-only", "devstorage.read_only")
_UPLOAD = re.compile(r"(?:/resumable)?/upload/storage/v1/b/(?P<bucket>[^/]+)/o")
_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/(?P<bucket>[^/]+)/o/(?P<object>[^/]+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PART = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass
class Object:
    """An object; it never changes, another one of its name replaces it.

    Attributes:
        content: Its bytes.
        generation: Number of the version.
        updated: Time of its creation, RFC 3339.
    """

    content: bytes
    generation: int
    updated: str


@dataclass
class Bucket:
    """A bucket.

    Attributes:
        name: Its name.
        location: ``US-CENTRAL1``.
        members: Who has each role on it.
        objects: Its objects by name.
    """

    name: str
    location: str = "US-CENTRAL1"
    members: dict[str, set[str]] = field(default_factory=dict)
    objects: dict[str, Object] = field(default_factory=dict)


class Storage:
    """The buckets of all projects; the user of this computer may do everything with them that is not denied.

    Attributes:
        buckets: By name.
        uploads: Bucket, name, and bytes so far of the resumable uploads that are not complete, by ID.
    """

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, tuple[str, str, bytes]] = {}
        self._serial = 1_700_000_000_000_000

    def create(self, name: str, **roles: str) -> Bucket:
        """Create a bucket; `roles` are members by the role after ``roles/storage.``."""
        members = {f"roles/storage.{role}": {member} for role, member in roles.items()}
        self.buckets[name] = bucket = Bucket(name, members=members)
        return bucket

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; raise Refusal if it does not exist."""
        if name not in self.buckets:
            raise Refusal(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    def find(self, bucket: str, name: str, query: Mapping[str, str]) -> Object:
        """Return an object; raise Refusal if it does not exist, or is not the version that the query requires."""
        match = self.bucket(bucket).objects.get(name)
        if match is None or query.get("generation", str(match.generation)) != str(match.generation):
            raise Refusal(404, "notFound", f"No such object: {bucket}/{name}")
        _check_generation(match.generation, query)
        return match

    def put(self, bucket: str, name: str, content: bytes, query: Mapping[str, str], now: str) -> Json:
        """Create an object, in place of the one of this name if the query allows that; return it."""
        objects = self.bucket(bucket).objects
        _check_generation(objects[name].generation if name in objects else 0, query)
        self._serial += 1
        objects[name] = Object(content, self._serial, now)
        return self.body(bucket, name)

    def body(self, bucket: str, name: str) -> Json:
        """Return an object as the API shows it."""
        shown, path = self.buckets[bucket].objects[name], f"b/{bucket}/o/{quote(name, safe='')}"
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{shown.generation}",
            "selfLink": f"{_URL}/storage/v1/{path}",
            "mediaLink": f"{_URL}/download/storage/v1/{path}?generation={shown.generation}&alt=media",
            "name": name,
            "bucket": bucket,
            "generation": str(shown.generation),
            "metageneration": "1",
            "contentType": "application/octet-stream",
            "size": str(len(shown.content)),
            "md5Hash": base64.b64encode(hashlib.md5(shown.content, usedforsecurity=False).digest()).decode(),
            "storageClass": "STANDARD",
            "timeCreated": shown.updated,
            "updated": shown.updated,
            "etag": f"{shown.generation:x}",
        }

    def check(self, governance: Governance, token: str, denied: set[str], bucket: str, permission: str) -> None:
        """Raise Refusal unless the owner of an access token has a permission, such as ``storage.objects.get``.

        `denied` are the permissions that the user of this computer lacks.
        """
        noun, verb = permission.split(".")[1:]
        resource = "object" if noun == "objects" and verb != "list" else "bucket"
        caller = identity_of(token)
        if caller is None and token == ANONYMOUS:
            raise Refusal(401, "required", _denied("Anonymous caller", permission, resource))
        if caller is None:
            if permission in denied:
                raise Refusal(403, "forbidden", _denied(EMAIL, permission, resource))
            self.bucket(bucket)
            return
        if not caller.may(*(_READ if verb in ("get", "list", "getIamPolicy") else _WRITE)):
            raise Refusal(403, "insufficientPermissions", "Insufficient Permission")
        if permission not in governance.granted(caller.email, self.bucket(bucket).members):
            raise Refusal(403, "forbidden", _denied(caller.email, permission, resource))


def _check_generation(generation: int, query: Mapping[str, str]) -> None:
    """Raise Refusal if the version of an object, 0 if it does not exist, is not the one that a query requires."""
    required, excluded = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    if required not in (None, str(generation)) or excluded == str(generation):
        message = "At least one of the pre-conditions you specified did not hold."
        raise Refusal(412, "conditionNotMet", message)


def _denied(caller: str, permission: str, resource: str) -> str:
    return (
        f"{caller} does not have {permission} access to the Google Cloud Storage {resource}. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )


# --- the content of objects: uploads and downloads


def serves_content(request: Request) -> bool:
    """Return whether a request uploads or downloads an object, so that it is not a call of the JSON API."""
    is_media = request.path.startswith("/storage/v1/") and request.query.get("alt") == "media"
    return is_media or request.path.startswith((XML, "/download/", "/upload/", "/resumable/upload/"))


def answer_content(cloud: Cloud, request: Request) -> Answer:
    """Return the answer to an upload or a download; the lock is held."""
    path = urlsplit(request.target).path
    if match := _UPLOAD.fullmatch(path):
        return _upload(cloud, request, unquote(match["bucket"]))
    if match := _OBJECT.fullmatch(path):
        return _download(cloud, request, unquote(match["bucket"]), unquote(match["object"]))
    if request.path.startswith(XML) and request.verb == "GET":
        bucket, _, name = request.path.removeprefix(XML).partition("/")
        return _download(cloud, request, bucket, name)
    raise bad_request("Invalid path.")


def _upload(cloud: Cloud, request: Request, bucket: str) -> Answer:
    """Create an object in one request, or begin or continue a resumable upload, whose URL is its authorization."""
    query, storage = request.query, cloud.storage
    if "upload_id" in query:
        return _continue(cloud, request, query["upload_id"])
    storage.check(cloud.governance, request.token, cloud.denied, bucket, "storage.objects.create")
    name = query.get("name", "")
    if query.get("uploadType") == "media":
        return encode(200, storage.put(bucket, name, request.body, query, cloud.clock.stamp()))
    if query.get("uploadType") != "resumable":
        raise bad_request("The emulator only has uploads of the types media and resumable.")
    number = uuid.uuid4().hex
    name = name or json.loads(request.body)["name"]
    storage.uploads[number] = (bucket, name, b"")
    host = request.headers.get("host", "")
    scheme = "https" if host.endswith(".googleapis.com") else "http"
    url = f"{scheme}://{host}{urlsplit(request.target).path}?uploadType=resumable&upload_id={number}"
    return Answer(200, b"", {"Location": url})


def _continue(cloud: Cloud, request: Request, number: str) -> Answer:
    """Add a part to a resumable upload, or report how much of it arrived."""
    storage = cloud.storage
    if number not in storage.uploads:
        raise Refusal(404, "notFound", "No such upload session.")
    bucket, name, received = storage.uploads[number]
    part = _PART.fullmatch(request.headers.get("content-range", ""))
    if part is not None and part[1] is not None and int(part[1]) != len(received):
        raise bad_request("The part does not begin where the last one ended.")
    received += request.body
    if part is not None and part[3] != str(len(received)):
        storage.uploads[number] = (bucket, name, received)
        return Answer(308, b"", {"Range": f"bytes=0-{len(received) - 1}"} if received else {})
    del storage.uploads[number]
    return encode(200, storage.put(bucket, name, received, {}, cloud.clock.stamp()))


def _download(cloud: Cloud, request: Request, bucket: str, name: str) -> Answer:
    cloud.storage.check(cloud.governance, request.token, cloud.denied, bucket, "storage.objects.get")
    content = cloud.storage.find(bucket, name, request.query).content
    headers, size = {"Content-Type": "application/octet-stream"}, len(content)
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if wanted is None:
        return Answer(200, content, headers)
    start, end = int(wanted[1]), min(int(wanted[2] or size), size - 1)
    if start >= size:
        return Answer(416, b"", {**headers, "Content-Range": f"bytes */{size}"})
    return Answer(206, content[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{size}"})
