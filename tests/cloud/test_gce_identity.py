"""The account that is named in commands is the one of the credentials in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import google.auth
import pytest
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials

from provision.gce.diagnosis.roles import UNKNOWN_MEMBER
from provision.gce.rest.api import Api
from provision.gce.rest.identity import member_of
from tests.cloud.histories import QUICK
from tests.emulator import Emulator
from tests.emulator.services.oauth2 import EMAIL


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


def test_a_service_account_names_itself() -> None:
    class ServiceAccount:
        service_account_email = "fleet@p.iam.gserviceaccount.com"

    assert member_of(ServiceAccount(), "") == "serviceAccount:fleet@p.iam.gserviceaccount.com"


def test_the_account_of_gcloud_is_named_if_the_account_is_unknown(emulator: Emulator) -> None:
    api = Api("proj-1", emulator.url, QUICK)
    assert api.member() == UNKNOWN_MEMBER == '"user:$(gcloud config get account)"'
