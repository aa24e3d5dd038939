"""The methods of Cloud Storage's JSON API; `tests.emulator.storage` has the content of the objects."""

from __future__ import annotations

from typing import Any

from tests.emulator.cloud import Call, Cloud, method
from tests.emulator.errors import Refusal
from tests.emulator.governance import PROJECT_NUMBER
from tests.emulator.storage import Bucket

Json = dict[str, Any]


@method("storage.buckets.insert")
def insert_bucket(cloud: Cloud, call: Call) -> Json:
    name, buckets = str(call.body["name"]), cloud.storage.buckets
    if name in buckets:
        message = "The requested bucket name is not available. The bucket namespace is shared by all users."
        raise Refusal(409, "conflict", message)
    buckets[name] = Bucket(name, str(call.body.get("location", "US")).upper())
    return _bucket(buckets[name])


@method("storage.buckets.list")
def list_buckets(cloud: Cloud, call: Call) -> Json:
    buckets = cloud.storage.buckets
    return {"kind": "storage#buckets", "items": [_bucket(buckets[name]) for name in sorted(buckets)]}


@method("storage.buckets.get")
def get_bucket(cloud: Cloud, call: Call) -> Json:
    return _bucket(cloud.storage.bucket(call.path["bucket"]))


@method("storage.buckets.getIamPolicy")
def get_policy(cloud: Cloud, call: Call) -> Json:
    bucket = cloud.storage.bucket(call.path["bucket"])
    bindings = [{"role": role, "members": sorted(members)} for role, members in sorted(bucket.members.items())]
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket.name}", "bindings": bindings}


@method("storage.buckets.setIamPolicy")
def set_policy(cloud: Cloud, call: Call) -> Json:
    bucket = cloud.storage.bucket(call.path["bucket"])
    bucket.members = {binding["role"]: set(binding["members"]) for binding in call.body.get("bindings", ())}
    return get_policy(cloud, call)


@method("storage.objects.get")
def get_object(cloud: Cloud, call: Call) -> Json:
    cloud.storage.find(call.path["bucket"], call.path["object"], call.query)
    return cloud.storage.body(call.path["bucket"], call.path["object"])


@method("storage.objects.list")
def list_objects(cloud: Cloud, call: Call) -> Json:
    bucket, prefix = cloud.storage.bucket(call.path["bucket"]), call.query.get("prefix", "")
    delimiter = call.query.get("delimiter", "")
    names: list[str] = []
    prefixes: list[str] = []
    for name in sorted(bucket.objects):
        if name.startswith(prefix) and name > call.query.get("pageToken", ""):
            head, is_below, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
            (prefixes if is_below else names).append(f"{prefix}{head}{delimiter}" if is_below else name)
    size = int(call.query.get("maxResults", "1000"))
    answer: Json = {
        "kind": "storage#objects",
        "items": [cloud.storage.body(bucket.name, name) for name in names[:size]],
        "prefixes": list(dict.fromkeys(prefixes)),
    }
    return {**answer, "nextPageToken": names[size - 1]} if len(names) > size else answer


@method("storage.objects.delete")
def delete_object(cloud: Cloud, call: Call) -> Json:
    cloud.storage.find(call.path["bucket"], call.path["object"], call.query)
    del cloud.storage.buckets[call.path["bucket"]].objects[call.path["object"]]
    return {}


@method("storage.objects.rewrite")
def rewrite(cloud: Cloud, call: Call) -> Json:
    storage, path, now = cloud.storage, call.path, cloud.clock.stamp()
    storage.check(cloud.governance, call.token, cloud.denied, path["sourceBucket"], "storage.objects.get")
    content = storage.find(path["sourceBucket"], path["sourceObject"], {}).content
    written = storage.put(path["destinationBucket"], path["destinationObject"], content, call.query, now)
    size = str(len(content))
    sizes = {"objectSize": size, "totalBytesRewritten": size}
    return {"kind": "storage#rewriteResponse", "done": True, "resource": written, **sizes}


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
