"""Fleets whose instances use OS Login: the key is in the profile of the account, and only while the fleet exists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.keys import generate_ed25519
from provision.provider import ProviderError
from tests.cloud.access_modes import EMAIL, write_credentials
from tests.cloud.conftest import Make, finding_of
from tests.emulator import Emulator
from tests.emulator.accounts import LOGIN
from tests.next_steps import command_lines

USER = "sa_2000000"
NAMES = ("worker-0", "worker-1")
PUBLIC = generate_ed25519("fleet demo").public
REQUIRED = {"rules": [{"enforce": True}]}
HOUR_US = 3600 * 1e6


@pytest.fixture
def emulator(emulator: Emulator) -> Emulator:
    emulator.cloud.governance.service_accounts[EMAIL] = True
    return emulator


@pytest.fixture
def make(make: Make, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a fleet with the credentials of an account."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", write_credentials(tmp_path, emulator.url))
    return lambda **options: make(public=PUBLIC, **options)


def enable(emulator: Emulator) -> None:
    """Enable OS Login in the metadata of the project."""
    emulator.cloud.metadata["items"] = [{"key": "enable-oslogin", "value": "TRUE"}]


def keys(emulator: Emulator) -> list[dict[str, Any]]:
    return list(emulator.cloud.profiles.get(EMAIL).keys.values())


@pytest.mark.parametrize("cause", ["option", "project", "policy"])
def test_instances_use_os_login_if_it_is_requested_or_required(emulator: Emulator, make: Make, cause: str) -> None:
    if cause == "project":
        enable(emulator)
    if cause == "policy":  # it need not be readable
        emulator.deny("orgpolicy.policy.get")
        emulator.cloud.governance.policies["compute.requireOsLogin"] = REQUIRED
    provider, spec = make(os_login=cause == "option")
    notes = provider.quote(spec, NAMES).notes
    assert any(EMAIL in note for note in notes) == (cause != "policy")
    provider.create(spec, NAMES, lambda *_: None)
    for instance in emulator.cloud.instances.values():
        assert instance.metadata()["enable-oslogin"] == "TRUE"
        assert "ssh-keys" not in instance.metadata()
        assert emulator.cloud.access(instance)[1] == {USER: [keys(emulator)[0]["key"]]}
    [key] = keys(emulator)
    assert PUBLIC.split()[1] in key["key"]
    assert int(key["expirationTimeUsec"]) > emulator.clock.now() * 1e6 + 8 * HOUR_US
    assert {host.user for host in provider.hosts(spec, provider.list("demo"))} == {USER}
    assert provider.delete_fleet("demo", lambda *_: None) == []
    assert keys(emulator) == []


def test_the_key_expires_with_the_instances(emulator: Emulator, make: Make) -> None:
    provider, spec = make(os_login=True, max_duration_s=10 * 24 * 3600)
    provider.create(spec, NAMES, lambda *_: None)
    before = int(keys(emulator)[0]["expirationTimeUsec"])
    provider.extend(provider.list("demo"), 11 * 24 * 3600, lambda *_: None)
    after = int(keys(emulator)[0]["expirationTimeUsec"])
    assert 23.9 * HOUR_US < after - before < 24.1 * HOUR_US
    other, _ = make(os_login=True, max_duration_s=10 * 24 * 3600)
    other.hosts(spec, other.list("demo"))  # the import of a key that exists leaves its expiry; it is set separately
    assert int(keys(emulator)[0]["expirationTimeUsec"]) < after
    [instance, _] = emulator.cloud.instances.values()
    emulator.clock.advance(10.5 * 24 * 3600)
    assert emulator.cloud.access(instance)[1] == {USER: []}
    provider.delete_fleet("demo", lambda *_: None)


def test_keys_of_others_stay_in_the_profile(emulator: Emulator, make: Make) -> None:
    profile = emulator.cloud.profiles.get(EMAIL)
    profile.add({"key": generate_ed25519("laptop").public}, 0.0)
    profile.add({"key": generate_ed25519("made by fleet for demo, owner aaaaaaaa, user me").public}, 0.0)
    provider, spec = make(os_login=True)
    provider.create(spec, NAMES, lambda *_: None)
    assert len(keys(emulator)) == 3
    provider.delete_fleet("demo", lambda *_: None)
    assert len(keys(emulator)) == 2


def test_a_missing_role_or_a_disabled_api_is_reported_before_anything_is_created(
    emulator: Emulator, make: Make
) -> None:
    provider, spec = make(os_login=True)
    emulator.deny(LOGIN)
    with pytest.raises(ProviderError, match=LOGIN) as caught:
        provider.quote(spec, NAMES)
    grant = "gcloud projects add-iam-policy-binding proj-1 --role roles/compute.osLogin"
    assert command_lines(caught.value) == f"{grant} --member=serviceAccount:{EMAIL}"
    finding = finding_of(provider, "OS Login")
    assert command_lines(finding) == command_lines(caught.value)
    emulator.cloud.denied.clear()
    emulator.cloud.governance.disabled.add("oslogin.googleapis.com")
    calls: list[Callable[[], object]] = [
        lambda: provider.quote(spec, NAMES),
        lambda: provider.create(spec, NAMES, lambda *_: None),
    ]
    for call in calls:
        with pytest.raises(ProviderError) as caught:
            call()
        assert command_lines(caught.value) == "gcloud services enable oslogin.googleapis.com --project proj-1"
    assert provider.list("demo") == []
    provider.delete_fleet("demo", lambda *_: None)


def test_an_unknown_account_is_reported(emulator: Emulator, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    provider, spec = make()
    enable(emulator)
    with pytest.raises(ProviderError, match="OS Login requires the account"):
        provider.quote(spec, NAMES)
