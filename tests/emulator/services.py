"""The other APIs of Google, as far as fleet and the commands that it prints use them, and the permissions of all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.emulator import accounts, firewall
from tests.emulator.accounts import Profile
from tests.emulator.blueprint import last, project_of
from tests.emulator.catalog import COMPUTE_ENGINE, REGIONS, ZONES
from tests.emulator.cloud import Call, Cloud, method
from tests.emulator.governance import EMAIL, PROJECT_NUMBER, SCOPES, account_of
from tests.emulator.messages import Refusal, bad_request, invalid, not_found, refusal
from tests.emulator.storage import Bucket

Json = dict[str, Any]
Permissions = Iterator[tuple[str, str]]

# --- permissions: each function yields those that a call needs, each with its project

_VERBS = {
    "aggregatedList": "list",
    "bulkInsert": "create",
    "getXpnHost": "get",
    "insert": "create",
    "patch": "update",
    "wait": "get",
}
_OF_HOST_PROJECTS = ("networks", "subnetworks", "firewalls", "globalOperations", "regionOperations", "routers")


def _compute(cloud: Cloud, call: Call) -> Permissions:
    project = call.path["project"]
    noun, verb = call.method.id.split(".")[1:]
    shared = project in cloud.shared and noun in _OF_HOST_PROJECTS
    if project != cloud.project and noun != "images" and not shared:
        raise not_found(f"projects/{project}")
    for name, existing in (("zone", ZONES), ("region", REGIONS)):
        if noun != f"{name}s" and call.path.get(name, next(iter(existing))) not in existing:
            raise invalid(name, call.path[name], f"Unknown {name}.")
    if verb != "testIamPermissions" and (noun != "images" or project == cloud.project):  # public images need none
        for permission in (f"{noun}.{_VERBS.get(verb, verb)}", *_implied(noun, verb, call)):
            yield project, f"compute.{permission}"


def _implied(noun: str, verb: str, call: Call) -> list[str]:
    """Return the permissions that a call needs in addition to the one named like its method."""
    if noun == "firewalls" and verb in ("insert", "patch", "delete"):
        return ["networks.updatePolicy"]
    if noun == "images" and verb == "insert":
        return ["disks.useReadOnly", *(["images.setLabels"] if call.body.get("labels") else [])]
    if verb not in ("insert", "bulkInsert") or noun != "instances":
        return []
    given = call.body.get("instanceProperties", call.body)
    setters = {"labels": "Labels", "metadata": "Metadata", "tags": "Tags", "serviceAccounts": "ServiceAccount"}
    interfaces = [each for each in given.get("networkInterfaces", ()) if not project_of(each.get("network", ""))]
    images = [disk.get("initializeParams", {}).get("sourceImage", "") for disk in given.get("disks", ())]
    needed = {
        "disks.create": True,
        "resourcePolicies.use": bool(given.get("resourcePolicies")),
        **{f"instances.set{name}": bool(given.get(key)) for key, name in setters.items()},
        "subnetworks.use": bool(interfaces),
        "subnetworks.useExternalIp": any(interface.get("accessConfigs") for interface in interfaces),
        "images.useReadOnly": call.path["project"] in map(project_of, images),
    }
    return [permission for permission, is_needed in needed.items() if is_needed]


def _billing(cloud: Cloud, call: Call) -> Permissions:
    if "skus" not in call.method.id:  # the price list needs none
        _check_project(cloud, last(call.path["name"]))
        verb = "get" if call.method.id.endswith(".getBillingInfo") else "createBillingAssignment"
        yield cloud.project, f"resourcemanager.projects.{verb}"


def _resource_manager(cloud: Cloud, call: Call) -> Permissions:
    verb = call.method.id.rpartition(".")[2]
    if verb != "testIamPermissions":
        yield call.path["resource"], f"resourcemanager.projects.{verb}"


def _iam(cloud: Cloud, call: Call) -> Permissions:
    *_, noun, verb = call.method.id.split(".")
    if verb != "testIamPermissions":
        yield cloud.project, f"iam.{noun}.{verb}"


def _org_policy(cloud: Cloud, call: Call) -> Permissions:
    _check_project(cloud, project_of(call.path.get("name") or f"{call.path['parent']}/"))
    verb = call.method.id.rpartition(".")[2]
    yield cloud.project, f"orgpolicy.policy.{'get' if verb.startswith('get') else 'set'}"


def _check_project(cloud: Cloud, project: str) -> None:
    if project not in (cloud.project, PROJECT_NUMBER):
        raise not_found(f"projects/{project}")


def _service_usage(cloud: Cloud, call: Call) -> Permissions:
    yield cloud.project, f"serviceusage.services.{call.method.id.rpartition('.')[2]}"


def _storage(cloud: Cloud, call: Call) -> Permissions:
    """Check a permission on a bucket; none on the project is needed."""
    noun, verb = call.method.id.split(".")[1:3]
    bucket = call.path.get("bucket") or call.path["destinationBucket"]
    permission = f"storage.{noun}.{'create' if verb in ('insert', 'rewrite') else verb}"
    cloud.storage.check(cloud.governance, call.token, cloud.denied, bucket, permission)
    return iter(())


def _none(cloud: Cloud, call: Call) -> Permissions:
    """Return nothing: callers may always ask for their own profile and permissions."""
    return iter(())


SERVICES: dict[str, Callable[[Cloud, Call], Permissions]] = {
    "compute.v1": _compute,
    "cloudbilling.v1": _billing,
    "cloudresourcemanager.v1": _resource_manager,
    "iam.v1": _iam,
    "iap.v1": _none,
    "oauth2.v2": _none,
    "orgpolicy.v2": _org_policy,
    "oslogin.v1": _none,
    "serviceusage.v1": _service_usage,
    "storage.v1": _storage,
}
"""The emulated APIs by the names of their discovery documents, each with the permissions of its calls."""


# --- Cloud Billing


@method("cloudbilling.projects.getBillingInfo")
def get_billing_info(cloud: Cloud, call: Call) -> Json:
    return {
        "name": f"projects/{cloud.project}/billingInfo",
        "projectId": cloud.project,
        "billingAccountName": cloud.governance.billing_account,
        "billingEnabled": cloud.governance.is_billed,
    }


@method("cloudbilling.services.skus.list")
def list_skus(cloud: Cloud, call: Call) -> Json:
    if last(call.path["parent"]) != COMPUTE_ENGINE:
        raise refusal("entity", message="Requested entity was not found.")
    token, wanted = call.query.get("pageToken", "0"), call.query.get("fields", "")
    if not token.isdigit() or call.query.get("currencyCode", "USD") != "USD":
        raise bad_request("Request contains an invalid argument.")
    end = int(token) + min(int(call.query.get("pageSize", "5000")) or 5000, cloud.sku_page)
    skus = cloud.skus[int(token) : end]
    shown = [{name: value for name, value in sku.items() if not wanted or name in wanted} for sku in skus]
    return {"skus": shown, "nextPageToken": str(end) if end < len(cloud.skus) else ""}


# --- Resource Manager and Service Usage


@method("cloudresourcemanager.projects.getIamPolicy")
def get_project_policy(cloud: Cloud, call: Call) -> Json:
    members = cloud.governance.members
    return {"bindings": [{"role": role, "members": sorted(members[role])} for role in sorted(members)], "version": 1}


@method("cloudresourcemanager.projects.testIamPermissions")
def test_project_permissions(cloud: Cloud, call: Call) -> Json:
    project, asked = call.path["resource"], call.body.get("permissions", [])
    if project != cloud.project and project not in cloud.shared:
        raise refusal("denied", message="The caller does not have permission")
    for name in asked:
        if not re.fullmatch(r"(?:compute|iam|iap|resourcemanager|serviceusage)\.[a-zA-Z]+\.[a-zA-Z]+", name):
            raise bad_request(f"Permission {name} is not valid for this resource.")
    return {"permissions": [name for name in asked if not cloud.denied & {name, f"{project}:{name}"}]}


@method("serviceusage.services.get")
def get_service(cloud: Cloud, call: Call) -> Json:
    host, parent = last(call.path["name"]), f"projects/{PROJECT_NUMBER}"
    state = "DISABLED" if host in cloud.governance.disabled else "ENABLED"
    return {"name": f"{parent}/services/{host}", "parent": parent, "config": {"name": host}, "state": state}


@method("serviceusage.services.enable")
def enable_service(cloud: Cloud, call: Call) -> Json:
    host = last(call.path["name"])
    cloud.governance.disabled.discard(host)
    return {"name": f"operations/acf.{host}", "done": True}


# --- Identity and Access Management, Identity-Aware Proxy, the profile of the caller


@method("iam.projects.serviceAccounts.get")
def get_service_account(cloud: Cloud, call: Call) -> Json:
    email = _service_account(cloud, call.path["name"])
    body: Json = {"name": f"projects/{cloud.project}/serviceAccounts/{email}", "email": email}
    return body if cloud.governance.service_accounts[email] else {**body, "disabled": True}


@method("iam.projects.serviceAccounts.testIamPermissions")
def test_account_permissions(cloud: Cloud, call: Call) -> Json:
    _service_account(cloud, call.path["resource"])
    return {"permissions": [name for name in call.body.get("permissions", []) if name not in cloud.denied]}


def _service_account(cloud: Cloud, name: str) -> str:
    """Return the address in the name of a resource.

    An account that does not exist is hidden by the wildcard, and in a project of others, as the discovery document
    says: "the response contains an HTTP 403 Forbidden error instead of a 404 Not Found error".
    """
    _, project, _, email = name.split("/")
    if email not in cloud.governance.service_accounts and project != cloud.project:
        message = "Permission 'iam.serviceAccounts.get' denied on resource (or it may not exist)."
        raise refusal("denied", message=message)
    if email not in cloud.governance.service_accounts:
        raise refusal("entity", message=f"Unknown service account: {email}")
    return email


TUNNELS = "iap.googleapis.com"
USE_TUNNELS = "iap.tunnelInstances.accessViaIAP"


class NoTunnel(Exception):
    """The proxy opens no tunnel.

    Args:
        code: Code with which it closes the connection.
        reason: The reason that it gives.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def open_tunnel(cloud: Cloud, token: str, zone: str, name: str, port: int) -> str:
    """Return the address of an instance to which the proxy connects; callers hold the lock.

    Raises:
        NoTunnel: the account has no access, or the port cannot be reached from the proxy.
    """
    is_denied = _is_denied(cloud, token, USE_TUNNELS) or _is_denied(cloud, token, "compute.instances.get")
    if TUNNELS in cloud.governance.disabled or is_denied or (zone, name) not in cloud.instances:
        raise NoTunnel(4033, "not authorized")
    instance = cloud.instances[zone, name]
    if instance.status != "RUNNING" or not cloud.admits(instance, firewall.PROXY, port):
        raise NoTunnel(4003, "failed to connect to backend")
    return instance.address


def _is_denied(cloud: Cloud, token: str, permission: str) -> bool:
    """Return whether a user lacks a permission; `denied` may name a single account, ``EMAIL:PERMISSION``."""
    return bool(cloud.denied & {permission, f"{account_of(token)}:{permission}"})


@method("iap.testIamPermissions")
def test_tunnel_permissions(cloud: Cloud, call: Call) -> Json:
    if call.path["resource"] != f"projects/{cloud.project}/iap_tunnel":
        raise refusal("invalid argument", message="Request contains an invalid argument.")
    asked = call.body.get("permissions", [])
    return {"permissions": [name for name in asked if not _is_denied(cloud, call.token, name)]}


@method("oauth2.userinfo.get")
def get_userinfo(cloud: Cloud, call: Call) -> Json:
    if f"{SCOPES}userinfo.email" not in cloud.scopes and not call.token.startswith("emulated:"):
        raise Refusal(401, "authError", "Request is missing required authentication credential.")
    return {"id": "1", "email": account_of(call.token), "verified_email": True}


# --- Organization Policy

_LISTS = ("compute.vmExternalIpAccess",)
"""Constraints that allow or deny values; others are enforced or not."""


@method("orgpolicy.projects.policies.getEffectivePolicy")
def get_effective_policy(cloud: Cloud, call: Call) -> Json:
    constraint = last(call.path["name"])
    default = [{"allowAll": True} if constraint in _LISTS else {"enforce": False}]
    return _policy(constraint, {"rules": cloud.governance.rules(constraint) or default})


@method("orgpolicy.projects.policies.get")
def get_policy(cloud: Cloud, call: Call) -> Json:
    constraint = last(call.path["name"])
    if constraint not in cloud.governance.policies:
        raise refusal("entity", message="Requested entity was not found.")
    return _policy(constraint, cloud.governance.policies[constraint])


@method("orgpolicy.projects.policies.create", "orgpolicy.projects.policies.patch")
def write_policy(cloud: Cloud, call: Call) -> Json:
    constraint = last(call.body["name"])
    cloud.governance.policies[constraint] = call.body.get("spec", {})
    return _policy(constraint, cloud.governance.policies[constraint])


def _policy(constraint: str, spec: Json) -> Json:
    return {"name": f"projects/{PROJECT_NUMBER}/policies/{constraint}", "spec": spec}


# --- OS Login: accounts import the SSH keys with which they log in on instances


@method("oslogin.users.getLoginProfile")
def get_login_profile(cloud: Cloud, call: Call) -> Json:
    return _profile(cloud, call.path["name"]).body(cloud.project)


@method("oslogin.users.importSshPublicKey")
def import_ssh_public_key(cloud: Cloud, call: Call) -> Json:
    profile = _profile(cloud, call.path["parent"])
    _follow(cloud, profile.add(call.body, cloud.clock.now()))
    return {"loginProfile": profile.body(cloud.project)}


@method("oslogin.users.sshPublicKeys.patch")
def patch_key(cloud: Cloud, call: Call) -> Json:
    key = _key(cloud, call)
    if call.query.get("updateMask", "") not in ("", "expirationTimeUsec"):
        raise refusal("invalid argument", message="The update mask is invalid.")
    accounts.check_expiry(call.body, cloud.clock.now())
    key.update({name: value for name, value in call.body.items() if name == "expirationTimeUsec"})
    _follow(cloud, key)
    return key


@method("oslogin.users.sshPublicKeys.delete")
def delete_key(cloud: Cloud, call: Call) -> Json:
    del _profile(cloud, call.path["name"]).keys[_key(cloud, call)["fingerprint"]]
    cloud.update_guests()
    return {}


def _profile(cloud: Cloud, name: str) -> Profile:
    """Return the profile in ``users/EMAIL``, or in a path below it; only the caller's own can be used."""
    email = name.split("/")[1]
    if email not in (EMAIL, *cloud.governance.service_accounts):
        raise refusal("denied", message="The caller does not have permission")
    return cloud.profiles.get(email)


def _key(cloud: Cloud, call: Call) -> Json:
    key = _profile(cloud, call.path["name"]).keys.get(last(call.path["name"]))
    if key is None:
        raise refusal("entity", message="Requested entity was not found.")
    return key


def _follow(cloud: Cloud, key: Json) -> None:
    """Let guests accept a key now, and until it expires."""
    cloud.update_guests()
    if key.get("expirationTimeUsec"):
        cloud.clock.call_at(int(key["expirationTimeUsec"]) / 1e6, cloud.update_guests)


# --- Cloud Storage; `tests.emulator.storage` has the content of the objects


@method("storage.buckets.get")
def get_bucket(cloud: Cloud, call: Call) -> Json:
    return _bucket(cloud.storage.bucket(call.path["bucket"]))


@method("storage.buckets.getIamPolicy")
def get_bucket_policy(cloud: Cloud, call: Call) -> Json:
    bucket = cloud.storage.bucket(call.path["bucket"])
    bindings = [{"role": role, "members": sorted(members)} for role, members in sorted(bucket.members.items())]
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket.name}", "bindings": bindings}


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
