"""The account and the permissions that fleet names are those that its calls need."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import google.auth
import pytest
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials

from fleet.state import Store, caller
from provision.gce.api.client import Api, member_of
from provision.gce.catalog.machines import resolved
from provision.gce.checks.account import permissions
from provision.gce.diagnosis import UNKNOWN_MEMBER
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.access_modes import OPTIONAL
from tests.cloud.customer import QUICK
from tests.emulator import Emulator
from tests.emulator.client import Client
from tests.emulator.governance import EMAIL
from tests.next_steps import command_lines


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running
        assert running.state()["violations"] == []


def user(emulator: Emulator, scopes: list[str] | None) -> Any:
    """Return credentials of a user, as gcloud creates them."""
    return Credentials(  # type: ignore[no-untyped-call]
        None,
        refresh_token="1//refresh",
        token_uri=f"{emulator.url}/token",
        client_id="client",
        client_secret="secret",
        scopes=scopes,
    )


def test_the_address_of_a_user_is_requested_with_its_own_token(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(google.auth, "default", lambda scopes: (user(emulator, scopes), "proj-1"))
    credentials = user(emulator, ["https://www.googleapis.com/auth/cloud-platform"])
    credentials.refresh(Request())
    assert member_of(credentials, emulator.url) == f"user:{EMAIL}"


def test_a_refused_question_leaves_the_account_unknown(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", lambda **_: (user(emulator, ["other"]), "proj-1"))
    assert member_of(user(emulator, None), emulator.url) == ""
    emulator.faults.add("invalid-grant", "oauth.token", times=0)
    assert member_of(user(emulator, None), emulator.url) == ""


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("\x00\xff", "is not a valid json file"),
        ("[]", "the file does not have the form of credentials"),
        ('{"type": "authorized_user"}', "Failed to load authorized user credentials from"),
        ('{"type": "service_account", "client_email": "a", "token_uri": "b", "private_key": "s3cr3t"}', ""),
    ],
)
def test_malformed_credentials_are_reported_with_the_variable_that_names_them(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, cause: str
) -> None:
    file = tmp_path / "key.json"
    file.write_bytes(content.encode("latin-1"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(ProviderError) as refusal:
        Api("proj-1", emulator.url, QUICK).authenticate()
    error = refusal.value
    assert error.message == "the Google Cloud credentials of this computer cannot be used"
    assert cause in error.cause
    assert "s3cr3t" not in f"{error.message}{error.cause}{error.hint}"
    assert str(file) in error.cause or error.hint.endswith(f"has precedence over a login: {file}")
    assert command_lines(error) == ("unset GOOGLE_APPLICATION_CREDENTIALS\ngcloud auth application-default login")
    cloud = GceOptions(endpoint=emulator.url, ssh_from=("203.0.113.0/24",))
    messages = [finding.message for finding in GceProvider("owner", "", Store(tmp_path), cloud, QUICK).doctor()]
    assert sum(error.message in message for message in messages) == 1


def test_the_account_of_gcloud_is_named_if_the_account_is_unknown(emulator: Emulator) -> None:
    api = Api("proj-1", emulator.url, QUICK)
    assert api.member() == UNKNOWN_MEMBER == '"user:$(gcloud config get account)"'


NAMES = ("worker-0", "worker-1")


def whole_life(emulator: Emulator, root: Path, cloud: GceOptions) -> GceOptions:
    """Make all calls of a provider for a fleet, from the quote to the deletion; return the resolved cloud."""
    store = Store(root)
    store.fleet("demo").create()
    cloud = replace(cloud, project="proj-1", endpoint=emulator.url)
    provider = GceProvider(store.owner(), caller(), store, cloud, QUICK)
    spec = FleetSpec("demo", "gce", 2, "ssh-ed25519 AAAA fleet", packages=("six",), options=cloud)
    emulator.translate_addresses("us-central1")
    assert all(check.ok for check in provider.doctor() if check.subject != "gcloud")
    emulator.api.needed.clear()  # of optional checks
    provider.complete(spec)
    provider.quote(spec, NAMES)
    provider.create(spec, NAMES, lambda *_: None)
    instances = provider.list("demo")
    provider.hosts(spec, instances)
    for rule in emulator.cloud.firewalls.values():
        if rule.get("sourceRanges") and cloud.external:
            rule["sourceRanges"] = ["198.51.100.7/32"]  # the previous address of the caller
    provider.open_ssh(spec)
    provider.extend(instances, 30 * 24 * 3600, lambda *_: None)  # longer than until the deletion
    provider.stop_at(instances, time.time() + 600)
    provider.termination_reasons("demo", NAMES)
    provider.delete(instances[:1], lambda *_: None)
    provider.create(spec, NAMES[:1], lambda *_: None)
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert provider.orphans() == []
    return resolved(cloud)


@pytest.mark.parametrize(
    "cloud",
    [
        GceOptions(gpu="t4", zones=("us-central1",)),
        GceOptions(zones=("us-central1-a",), external=False, firewall=False),
        GceOptions(zones=("us-central1-a",), reservation="r1"),
        GceOptions(zones=("us-central1",), machine_type="n2-standard-4", placement="compact"),
        GceOptions(zones=("us-central1-a",), scopes=("https://www.googleapis.com/auth/devstorage.read_only",)),
    ],
)
@pytest.mark.usefixtures("gcloud")
def test_doctor_checks_the_permissions_of_all_calls_of_a_fleet(tmp_path: Path, cloud: GceOptions) -> None:
    with Emulator(operation_s=0.003) as emulator:
        if cloud.reservation:
            Client(emulator).reserve(cloud.reservation, 2)
        used = resolved(whole_life(emulator, tmp_path, cloud))
        needed = emulator.api.needed - OPTIONAL
        assert sorted(needed) == sorted(needed & set(permissions(used, "proj-1")))
        assert emulator.state()["violations"] == []
