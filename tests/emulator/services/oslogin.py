"""OS Login: Google accounts import the SSH keys with which they log in on instances."""

from __future__ import annotations

from typing import Any

from tests.emulator import os_login
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Refusal
from tests.emulator.os_login import Profile, Profiles
from tests.emulator.registry import method
from tests.emulator.services.oauth2 import EMAIL

Json = dict[str, Any]
DOCUMENT = "oslogin.v1"


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return no permission: each account may change its own profile, and no other."""
    return ()


@method("oslogin.users.getLoginProfile")
def get_login_profile(cloud: Cloud, call: Call) -> Json:
    return _profile(cloud, call.path["name"]).body(cloud.project)


@method("oslogin.users.importSshPublicKey")
def import_ssh_public_key(cloud: Cloud, call: Call) -> Json:
    profile = _profile(cloud, call.path["parent"])
    _follow(cloud, profile.add(call.body, cloud.clock.now()))
    return {"loginProfile": profile.body(cloud.project)}


@method("oslogin.users.sshPublicKeys.get")
def get_key(cloud: Cloud, call: Call) -> Json:
    return _key(cloud, call)


@method("oslogin.users.sshPublicKeys.patch")
def patch_key(cloud: Cloud, call: Call) -> Json:
    key = _key(cloud, call)
    if call.query.get("updateMask", "") not in ("", "expirationTimeUsec"):
        raise Refusal(400, "badRequest", "The update mask is invalid.", canonical="INVALID_ARGUMENT")
    os_login.check_expiry(call.body, cloud.clock.now())
    key.update({name: value for name, value in call.body.items() if name == "expirationTimeUsec"})
    _follow(cloud, key)
    return key


@method("oslogin.users.sshPublicKeys.delete")
def delete_key(cloud: Cloud, call: Call) -> Json:
    key = _key(cloud, call)
    del _profile(cloud, call.path["name"]).keys[key["fingerprint"]]
    cloud.update_guests(*cloud.instances.values())
    return {}


def _profile(cloud: Cloud, name: str) -> Profile:
    """Return the profile in ``users/EMAIL``, or in a path below it; only the caller's own can be used."""
    email = name.split("/")[1]
    if email not in (EMAIL, *cloud.governance.service_accounts):
        raise Refusal(403, "forbidden", "The caller does not have permission", canonical="PERMISSION_DENIED")
    return cloud.part(Profiles).get(email)


def _key(cloud: Cloud, call: Call) -> Json:
    name = call.path["name"]
    key = _profile(cloud, name).keys.get(name.rpartition("/")[2])
    if key is None:
        raise Refusal(404, "notFound", "Requested entity was not found.", canonical="NOT_FOUND")
    return key


def _follow(cloud: Cloud, key: Json) -> None:
    """Let guests accept a key now, and until it expires."""
    cloud.update_guests(*cloud.instances.values())
    if key.get("expirationTimeUsec"):
        expiry = int(key["expirationTimeUsec"]) / 1e6
        cloud.clock.call_at(expiry, lambda: cloud.update_guests(*cloud.instances.values()))
