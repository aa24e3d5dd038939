"""Cloud Storage: buckets, and their objects without content; `tests.emulator.endpoints.storage` has the content."""

from __future__ import annotations

from typing import Any

from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Refusal
from tests.emulator.governance import PROJECT_NUMBER
from tests.emulator.registry import method
from tests.emulator.storage import Bucket, Storage

Json = dict[str, Any]
DOCUMENT = "storage.v1"
_VERBS = {"insert": "create", "compose": "create", "rewrite": "create"}
_SOURCES_MAX = 32


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Check the permission that a call needs; it is one on the bucket, not one on the project."""
    noun, verb = call.method.id.split(".")[1:3]
    if call.method.id in ("storage.buckets.insert", "storage.buckets.list"):
        return ((cloud.project, f"storage.buckets.{_VERBS.get(verb, verb)}"),)
    bucket = call.path.get("bucket") or call.path["destinationBucket"]
    cloud.part(Storage).check(call.token, cloud.denied, bucket, f"storage.{noun}.{_VERBS.get(verb, verb)}")
    return ()


@method("storage.buckets.insert")
def insert_bucket(cloud: Cloud, call: Call) -> Json:
    storage, name = cloud.part(Storage), str(call.body["name"])
    if name in storage.buckets:
        message = "The requested bucket name is not available. The bucket namespace is shared by all users."
        raise Refusal(409, "conflict", message)
    storage.buckets[name] = Bucket(name, str(call.body.get("location", "US")).upper())
    return _bucket(storage.bucket(name))


@method("storage.buckets.list")
def list_buckets(cloud: Cloud, call: Call) -> Json:
    buckets = cloud.part(Storage).buckets
    return {"kind": "storage#buckets", "items": [_bucket(buckets[name]) for name in sorted(buckets)]}


@method("storage.buckets.get")
def get_bucket(cloud: Cloud, call: Call) -> Json:
    return _bucket(_named(cloud, call))


@method("storage.buckets.getIamPolicy")
def get_policy(cloud: Cloud, call: Call) -> Json:
    bucket = _named(cloud, call)
    bindings = [{"role": role, "members": sorted(members)} for role, members in sorted(bucket.members.items())]
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket.name}", "bindings": bindings}


@method("storage.buckets.setIamPolicy")
def set_policy(cloud: Cloud, call: Call) -> Json:
    bucket = _named(cloud, call)
    bucket.members = {binding["role"]: set(binding["members"]) for binding in call.body.get("bindings", ())}
    return get_policy(cloud, call)


@method("storage.objects.get")
def get_object(cloud: Cloud, call: Call) -> Json:
    storage = cloud.part(Storage)
    storage.find(call.path["bucket"], call.path["object"], call.query)
    return storage.body(call.path["bucket"], call.path["object"])


@method("storage.objects.list")
def list_objects(cloud: Cloud, call: Call) -> Json:
    bucket, prefix, delimiter = _named(cloud, call), call.query.get("prefix", ""), call.query.get("delimiter", "")
    entries: dict[str, bool] = {}  # names, and prefixes that end with the delimiter
    for name in sorted(bucket.objects):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and name > call.query.get("pageToken", ""):
            is_prefix = bool(delimiter) and delimiter in rest
            entries[f"{prefix}{rest.partition(delimiter)[0]}{delimiter}" if is_prefix else name] = is_prefix
    size = int(call.query.get("maxResults", "1000"))
    shown = list(entries)[:size]
    answer: Json = {
        "kind": "storage#objects",
        "items": [cloud.part(Storage).body(bucket.name, name) for name in shown if not entries[name]],
        "prefixes": [name for name in shown if entries[name]],
    }
    if len(entries) > size:
        answer["nextPageToken"] = f"{shown[-1]}\U0010ffff" if entries[shown[-1]] else shown[-1]
    return answer


@method("storage.objects.delete")
def delete_object(cloud: Cloud, call: Call) -> Json:
    storage = cloud.part(Storage)
    storage.find(call.path["bucket"], call.path["object"], call.query)
    del storage.buckets[call.path["bucket"]].objects[call.path["object"]]
    return {}


@method("storage.objects.compose")
def compose(cloud: Cloud, call: Call) -> Json:
    storage, bucket = cloud.part(Storage), call.path["destinationBucket"]
    sources = call.body.get("sourceObjects", [])
    if not 1 <= len(sources) <= _SOURCES_MAX:
        raise Refusal(400, "invalid", f"The number of source components must be from 1 to {_SOURCES_MAX}.")
    content = b""
    for source in sources:
        required = {
            "generation": source.get("generation"),
            "ifGenerationMatch": source.get("objectPreconditions", {}).get("ifGenerationMatch"),
        }
        given = {name: str(value) for name, value in required.items() if value is not None}
        content += storage.find(bucket, source["name"], given).content
    return storage.put(bucket, call.path["destinationObject"], content, call.query, cloud.clock.stamp())


@method("storage.objects.rewrite")
def rewrite(cloud: Cloud, call: Call) -> Json:
    storage, path = cloud.part(Storage), call.path
    storage.check(call.token, cloud.denied, path["sourceBucket"], "storage.objects.get")
    content = storage.find(path["sourceBucket"], path["sourceObject"], {}).content
    name = path["destinationObject"]
    written = storage.put(path["destinationBucket"], name, content, call.query, cloud.clock.stamp())
    size = str(len(content))
    return {
        "kind": "storage#rewriteResponse",
        "done": True,
        "objectSize": size,
        "totalBytesRewritten": size,
        "resource": written,
    }


def _named(cloud: Cloud, call: Call) -> Bucket:
    return cloud.part(Storage).bucket(call.path["bucket"])


def _bucket(bucket: Bucket) -> Json:
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "name": bucket.name,
        "projectNumber": PROJECT_NUMBER,
        "location": bucket.location,
        "locationType": "region",
        "storageClass": "STANDARD",
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
    }
