"""Diagnoses of credentials that Google does not accept."""

from __future__ import annotations

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Rule, first_sentence
from provision.provider import ErrorKind

_LOGIN = "gcloud auth application-default login"


def no_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that there are no Application Default Credentials."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "no Google Cloud credentials found",
        cause=first_sentence(reason) or "GOOGLE_APPLICATION_CREDENTIALS is not set, and gcloud is not logged in",
        next_steps=[tuple(_LOGIN.split())],
    )


def expired_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that Google does not accept the credentials any more."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "Google Cloud rejected the credentials of this computer",
        cause=first_sentence(reason) or "they have expired or were revoked",
        next_steps=[tuple(_LOGIN.split())],
    )


def _login(case: Case) -> Diagnosis | None:
    if case.status == 401 or case.reasons & {"authError", "UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED"}:
        return expired_credentials(case.text)
    return None


CREDENTIALS: tuple[Diagnose, ...] = (
    _login,
    # The access token is valid, but not for Compute Engine; the roles of the caller do not matter.
    Rule(
        ErrorKind.CREDENTIALS,
        "could not {c.doing}: the scopes of these credentials do not allow calls to Compute Engine",
        codes={"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"},
        text="insufficient authentication scopes",
        hint="on a Compute Engine instance, stop it and give it the scope cloud-platform with "
        "'gcloud compute instances set-service-account', or log in as yourself",
        next_steps=(_LOGIN,),
    ),
)
