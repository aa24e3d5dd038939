"""Buckets of Cloud Storage and their objects, and who may use them.

Source: https://cloud.google.com/storage/docs/json_api/v1 and https://cloud.google.com/storage/docs/access-control/iam-roles.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tests.emulator.failures import Refusal
from tests.emulator.identity import ANONYMOUS, identity_of
from tests.emulator.services.oauth2 import EMAIL

Json = dict[str, Any]
_URL = "https://www.googleapis.com"
SCOPES = "https://www.googleapis.com/auth/"
_OBJECTS = ("create", "delete", "get", "list", "update")
ROLES: Mapping[str, frozenset[str]] = {
    role: frozenset(f"storage.{permission}" for permission in permissions)
    for role, permissions in {
        "roles/storage.objectUser": [f"objects.{verb}" for verb in _OBJECTS],
        "roles/storage.objectAdmin": [f"objects.{verb}" for verb in (*_OBJECTS, "getIamPolicy", "setIamPolicy")],
        "roles/storage.objectViewer": ["objects.get", "objects.list"],
        "roles/storage.objectCreator": ["objects.create"],
        "roles/storage.legacyBucketReader": ["buckets.get", "objects.list"],
        "roles/storage.legacyBucketWriter": ["buckets.get", "objects.list", "objects.create", "objects.delete"],
        "roles/storage.admin": [
            *(f"objects.{verb}" for verb in (*_OBJECTS, "getIamPolicy", "setIamPolicy")),
            *(f"buckets.{verb}" for verb in (*_OBJECTS, "getIamPolicy", "setIamPolicy")),
        ],
    }.items()
}
# Scopes that allow writing, and those that allow reading.
_WRITE = ("cloud-platform", "devstorage.full_control", "devstorage.read_write")
_READ = (*_WRITE, "cloud-platform.read-only", "devstorage.read_only")
_READING = ("get", "list", "getIamPolicy")


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
class Upload:
    """A resumable upload.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object.
        query: Parameters of the request, with preconditions.
        received: Bytes so far.
    """

    bucket: str
    name: str
    query: Mapping[str, str]
    received: bytes = b""


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

    def permissions(self, member: str) -> set[str]:
        """Return what a member of its policy may do."""
        granted: set[str] = set()
        for role, members in self.members.items():
            granted |= ROLES.get(role, frozenset()) if member in members else frozenset()
        return granted


class Storage:
    """The buckets of all projects; the user of this computer may do everything with them that is not denied.

    Attributes:
        buckets: By name.
        uploads: Resumable uploads that are not complete, by ID.
        project: Roles on the project of the buckets, by role.
    """

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, Upload] = {}
        self.project: dict[str, set[str]] = {"roles/owner": {f"user:{EMAIL}"}}
        self._serial = 1_700_000_000_000_000

    def create(self, name: str, **roles: str) -> Bucket:
        """Create a bucket; `roles` are members by the role after ``roles/storage.``."""
        members = {f"roles/storage.{role}": {member} for role, member in roles.items()}
        self.buckets[name] = bucket = Bucket(name, members=members)
        return bucket

    def bucket(self, name: str) -> Bucket:
        """Return a bucket.

        Raises:
            Refusal: it does not exist.
        """
        if name not in self.buckets:
            raise _refusal(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    def find(self, bucket: str, name: str, query: Mapping[str, str]) -> Object:
        """Return an object.

        Raises:
            Refusal: it does not exist, or is not the version that the query requires.
        """
        match = self.bucket(bucket).objects.get(name)
        if match is None:
            raise _refusal(404, "notFound", f"No such object: {bucket}/{name}")
        _check_generation(match.generation, query)
        if query.get("generation", str(match.generation)) != str(match.generation):
            raise _refusal(404, "notFound", f"No such object: {bucket}/{name}")
        return match

    def put(self, bucket: str, name: str, content: bytes, query: Mapping[str, str], now: str) -> Json:
        """Create an object, in place of the one of this name if the query allows that; return it.

        Raises:
            Refusal: a precondition is not met.
        """
        objects = self.bucket(bucket).objects
        before = objects.get(name)
        _check_generation(before.generation if before else 0, query)
        self._serial += 1
        objects[name] = Object(content, self._serial, now)
        return self.body(bucket, name)

    def body(self, bucket: str, name: str) -> Json:
        """Return an object as the API shows it."""
        shown = self.buckets[bucket].objects[name]
        path = f"b/{bucket}/o/{quote(name, safe='')}"
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

    def check(self, token: str, denied: set[str], bucket: str, permission: str) -> None:
        """Check that the owner of an access token may do something.

        Args:
            token: The token; `ANONYMOUS`: none.
            denied: Permissions that the user of this computer lacks.
            bucket: Name of the bucket.
            permission: ``storage.objects.get``.

        Raises:
            Refusal: the bucket does not exist, or the caller may not do that.
        """
        noun, verb = permission.split(".")[1:]
        resource = "object" if noun == "objects" and verb != "list" else "bucket"
        caller = identity_of(token)
        if caller is None:
            if token == ANONYMOUS:
                raise _refusal(401, "required", _denied("Anonymous caller", permission, resource))
            if permission in denied:
                raise _refusal(403, "forbidden", _denied(EMAIL, permission, resource))
            self.bucket(bucket)
            return
        scopes = _READ if verb in _READING else _WRITE
        if not {f"{SCOPES}{scope}" for scope in scopes} & set(caller.scopes):
            raise _refusal(403, "insufficientPermissions", "Insufficient Permission")
        member = f"serviceAccount:{caller.email}"
        granted = self.bucket(bucket).permissions(member)
        for role, members in self.project.items():
            granted |= ROLES.get(role, frozenset()) if member in members else frozenset()
        if permission not in granted:
            raise _refusal(403, "forbidden", _denied(caller.email, permission, resource))


def _check_generation(generation: int, query: Mapping[str, str]) -> None:
    """Raise Refusal if the version of an object, 0 if it does not exist, is not the one that a query requires."""
    required, excluded = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    if required not in (None, str(generation)) or excluded == str(generation):
        raise _refusal(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def _denied(caller: str, permission: str, resource: str) -> str:
    return (
        f"{caller} does not have {permission} access to the Google Cloud Storage {resource}. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )


def _refusal(status: int, reason: str, message: str) -> Refusal:
    return Refusal(status, reason, message)
