"""The account that is named in commands is the one of the credentials in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.auth
import pytest
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials

from fleet.state import Store
from provision.gce.api.client import Api, member_of
from provision.gce.catalog.roles import UNKNOWN_MEMBER
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.provider import ProviderError
from tests.cloud.histories import QUICK
from tests.emulator import Emulator
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
        ("", "is not a valid json file"),
        ("\x00\xff", "is not a valid json file"),
        ("[]", "the file does not have the form of credentials"),
        ("{}", "does not have a valid type"),
        ('{"type": "authorized_user"}', "Failed to load authorized user credentials from"),
        ('{"type": "service_account", "private_key": 5}', ""),
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
    messages = [
        finding.message for finding in GceProvider("owner", "", Store(tmp_path).journal, cloud, QUICK).doctor()
    ]
    assert sum(error.message in message for message in messages) == 1


def test_a_directory_is_not_a_file_with_credentials(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))
    with pytest.raises(ProviderError, match="cannot be used"):
        Api("proj-1", emulator.url, QUICK).authenticate()


def test_a_service_account_names_itself() -> None:
    class ServiceAccount:
        service_account_email = "fleet@p.iam.gserviceaccount.com"

    assert member_of(ServiceAccount(), "") == "serviceAccount:fleet@p.iam.gserviceaccount.com"


def test_the_account_of_gcloud_is_named_if_the_account_is_unknown(emulator: Emulator) -> None:
    api = Api("proj-1", emulator.url, QUICK)
    assert api.member() == UNKNOWN_MEMBER == '"user:$(gcloud config get account)"'
