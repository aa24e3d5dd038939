"""Accounts of a guest: the users in the ``ssh-keys`` of its metadata, or those of OS Login.

The host acts as Google's guest agent: it writes the files that the guest sees as ``/etc/passwd``, ``/etc/group``, and
so on. Source: https://cloud.google.com/compute/docs/connect/add-ssh-keys
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.emulator.messages import refusal

Json = dict[str, Any]
OS_LOGIN = "enable-oslogin"
LOGIN, ADMIN = "compute.instances.osLogin", "compute.instances.osAdminLogin"
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_FIRST_UID = 2_000_000

FIRST_UID = 1001  # 1000 is the image's own `ubuntu`
_LAST_SYSTEM_UID = 999
_NOBODY = 65534
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_KEY_TYPE = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[A-Za-z0-9@.-]+")
_MARK = "# Added by Google"
_GROUPS = ("admin", "docker", "lxd", "netdev", "rdma")
"""Groups of the images in addition to those of this computer."""
SUDOERS = ("google-sudoers", 60000)
"""Name and ID of the group whose users become root by sudo, without a password."""


def granted(metadata: Mapping[str, str], os_login_keys: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the public keys by user that can log in, in their order.

    They are those that the metadata of an instance grants; lines that do not have the form ``USER:KEYTYPE KEY
    COMMENT`` are skipped. If ``enable-oslogin`` is true, metadata grants no access, but OS Login does.
    """
    if uses_os_login(metadata):
        return {user: list(keys) for user, keys in os_login_keys.items()}
    keys_by_user: dict[str, list[str]] = {}
    for line in metadata.get("ssh-keys", "").splitlines():
        user, colon, key = line.strip().partition(":")
        words = key.split()
        if colon and _USER.fullmatch(user) and len(words) >= 2 and _KEY_TYPE.fullmatch(words[0]):
            keys_by_user.setdefault(user, []).append(key)
    return keys_by_user


@dataclass
class Accounts:
    """The files of a guest's accounts.

    They are the users that the metadata names, with uids that no user of this machine has, and also root and the
    system accounts of this machine. Like the guest agent, it removes keys that the metadata no longer has, and
    keeps accounts and keys that it did not add.

    Attributes:
        etc: Directory of ``passwd``, ``group`` and ``shadow``.
        homes: Mounted in the guest as ``/home``.
        root: Mounted in the guest as ``/root``.
    """

    etc: Path
    homes: Path
    root: Path

    def prepare(self) -> None:
        """Write the files with only the system accounts, if they do not exist."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Searchable by all users, because Python's files may be in a subdirectory.
        self.root.chmod(0o711)
        self.homes.mkdir(parents=True, exist_ok=True)
        self.homes.chmod(0o755)
        self.etc.mkdir(parents=True, exist_ok=True)
        passwd, group = self.etc / "passwd", self.etc / "group"
        if passwd.exists():
            return
        system = [line for line in _lines(Path("/etc/passwd")) if _is_system(line)]
        passwd.write_text("".join(f"{line}\n" for line in system))
        groups = [line for line in _lines(Path("/etc/group")) if _is_system(line)]
        groups += [f"{name}:x:{_LAST_SYSTEM_UID - index}:" for index, name in enumerate(_GROUPS)]
        group.write_text("".join(f"{line}\n" for line in groups))
        shadow = self.etc / "shadow"
        shadow.touch(0o600)
        shadow.write_text("".join(_shadow(line.split(":")[0]) for line in system))

    def refresh(self, keys: Mapping[str, list[str]], *, sudo: bool = True) -> None:
        """Grant access to users with these public keys; revoke keys that were granted before.

        Args:
            keys: Public keys by user.
            sudo: Users that are new become root by sudo.
        """
        for user in keys:
            # useradd does not create a user with the name of a group: its exit status 9 in useradd(8).
            if self._entry(user) is None and f"{user}:" not in (self.etc / "group").read_text():
                self._add(user, sudo=sudo)
        for line in _lines(self.etc / "passwd"):
            user, _, uid, gid, _, home, _ = line.split(":")
            place = self.root if user == "root" else self.homes / user
            if user == "root" or (int(uid) >= FIRST_UID and home.startswith("/home/") and place.is_dir()):
                _write_keys(place, keys.get(user, []), int(uid), int(gid))

    def _entry(self, user: str) -> str | None:
        return next((line for line in _lines(self.etc / "passwd") if line.startswith(f"{user}:")), None)

    def _add(self, user: str, *, sudo: bool) -> None:
        uids = [int(line.split(":")[2]) for line in _lines(self.etc / "passwd")]
        uid = max([FIRST_UID - 1, *[number for number in uids if FIRST_UID <= number < _NOBODY]]) + 1
        home = self.homes / user
        if Path("/etc/skel").is_dir():
            shutil.copytree("/etc/skel", home, dirs_exist_ok=True)
        home.mkdir(exist_ok=True)
        home.chmod(0o750)
        for path in (home, *home.rglob("*")):
            os.chown(path, uid, uid, follow_symlinks=False)
        # Append, passwd last: the guest uses these files directly, and must never see an incomplete account.
        _append(self.etc / "group", f"{user}:x:{uid}:\n")
        if sudo:
            _append(self.etc / "group", f"{SUDOERS[0]}:x:{SUDOERS[1]}:{user}\n")
        _append(self.etc / "shadow", _shadow(user))
        _append(self.etc / "passwd", f"{user}:x:{uid}:{uid}::/home/{user}:/bin/bash\n")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _is_system(line: str) -> bool:
    words = line.split(":")
    return len(words) > 2 and words[2].isdigit() and (int(words[2]) <= _LAST_SYSTEM_UID or int(words[2]) == _NOBODY)


def _shadow(user: str) -> str:
    """Return an entry without a password that is not locked: sshd refuses locked accounts."""
    return f"{user}:*:20000:0:99999:7:::\n"


def _append(path: Path, line: str) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())


def _write_keys(home: Path, keys: list[str], uid: int, gid: int) -> None:
    directory = home / ".ssh"
    path = directory / "authorized_keys"
    kept: list[str] = []
    added_by_google = False
    for line in _lines(path) if path.exists() else ():
        if not added_by_google and line != _MARK:
            kept.append(line)
        added_by_google = line == _MARK
    wanted = "".join(f"{line}\n" for line in kept) + "".join(f"{_MARK}\n{key}\n" for key in keys)
    if not wanted and not path.exists():
        return
    if not directory.exists():
        directory.mkdir(mode=0o700)
        os.chown(directory, uid, gid)
    fresh = directory / ".authorized_keys.new"
    fresh.touch(0o600)
    fresh.write_text(wanted)
    os.chown(fresh, uid, gid)
    fresh.replace(path)


@dataclass
class Profile:
    """The login profile of a Google account.

    Attributes:
        email: Address of the account.
        uid: Its uid on all instances.
        keys: Its SSH keys by fingerprint, as the API shows them.
    """

    email: str
    uid: int
    keys: dict[str, Json] = field(default_factory=dict)

    @property
    def user(self) -> str:
        """Return the login name, ``me_example_com``; a service account has the one of its number."""
        if self.email.endswith(".gserviceaccount.com"):
            return f"sa_{self.uid}"
        return _NOT_IN_NAMES.sub("_", self.email.lower())

    def body(self, project: str) -> Json:
        """Return it as the API shows it."""
        account = {
            "name": f"users/{self.email}/projects/{project}",
            "primary": True,
            "username": self.user,
            "uid": str(self.uid),
            "gid": str(self.uid),
            "homeDirectory": f"/home/{self.user}",
            "operatingSystemType": "LINUX",
            "accountId": project,
        }
        return {"name": str(self.uid), "posixAccounts": [account], "sshPublicKeys": self.keys}

    def add(self, given: Json, now: float) -> Json:
        """Add a key, and return it; one that exists is unchanged, also its expiry.

        Raises:
            Refusal: the key is invalid, or it has expired.
        """
        mark = fingerprint(given.get("key", ""))
        if mark not in self.keys:
            check_expiry(given, now)
            self.keys[mark] = {
                **given,
                "fingerprint": mark,
                "name": f"users/{self.email}/sshPublicKeys/{mark}",
            }
        return self.keys[mark]

    def valid_keys(self, now: float) -> list[str]:
        """Return the keys that have not expired."""
        return [
            str(key["key"])
            for key in self.keys.values()
            if not key.get("expirationTimeUsec") or int(key["expirationTimeUsec"]) > now * 1e6
        ]


@dataclass
class Profiles:
    """The profiles by e-mail address; one appears when it is first used."""

    by_email: dict[str, Profile] = field(default_factory=dict)

    def get(self, email: str) -> Profile:
        """Return the profile of a Google account."""
        return self.by_email.setdefault(email, Profile(email, _FIRST_UID + len(self.by_email)))

    def granted(self, denied: set[str], *, has_service_account: bool, now: float) -> dict[str, list[str]]:
        """Return the keys by user that log in on an instance.

        The caller's permissions decide: one of `LOGIN` and `ADMIN`, and, on an instance with a service account, the
        permission to act as it.

        Source: https://cloud.google.com/compute/docs/oslogin/set-up-oslogin#configure_users.
        """
        if {LOGIN, ADMIN} <= denied or (has_service_account and "iam.serviceAccounts.actAs" in denied):
            return {}
        return {profile.user: profile.valid_keys(now) for profile in self.by_email.values()}


def uses_os_login(metadata: Mapping[str, str]) -> bool:
    """Return whether metadata items enable OS Login."""
    return metadata.get(OS_LOGIN, "").upper() == "TRUE"


def check_expiry(given: Json, now: float) -> None:
    """Raise Refusal if a key has expired already."""
    expiry = given.get("expirationTimeUsec")
    if expiry and int(expiry) <= now * 1e6:
        raise refusal("invalid argument", message="The expiration time of the key has passed.")


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key.

    Raises:
        Refusal: it is not a public key.
    """
    try:
        kind, text = key.split()[:2]
        blob = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise refusal("invalid argument", message="The SSH public key is malformed.") from error
    if kind.encode() not in blob[:32]:
        raise refusal("invalid argument", message="The SSH public key is malformed.")
    return hashlib.sha256(blob).hexdigest()
