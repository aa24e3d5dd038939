"""Diagnoses of credentials that Google does not accept."""

from __future__ import annotations

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Rule, first_sentence
from provision.provider import ErrorKind

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_LOGIN = "gcloud auth application-default login"


def no_credentials(reason: str = "", file: str = "") -> Diagnosis:
    """Return the diagnosis that there are no Application Default Credentials.

    Args:
        reason: Message of Google's library.
        file: The file that GOOGLE_APPLICATION_CREDENTIALS names; empty: none.
    """
    cause = first_sentence(reason) or f"{VARIABLE} is not set, and gcloud is not logged in"
    return _without_login("no Google Cloud credentials found", cause, file)


def unusable_credentials(reason: str, file: str = "") -> Diagnosis:
    """Return the diagnosis that the file with the credentials is malformed; the arguments are those of the others."""
    return _without_login(
        "the Google Cloud credentials of this computer cannot be used", first_sentence(reason), file
    )


def expired_credentials(reason: str = "", file: str = "") -> Diagnosis:
    """Return the diagnosis that Google does not accept the credentials any more, as `no_credentials` does."""
    cause = first_sentence(reason) or "they have expired or were revoked"
    return _without_login("Google Cloud rejected the credentials of this computer", cause, file)


def _without_login(message: str, cause: str, file: str) -> Diagnosis:
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        message,
        cause=cause,
        hint=f"{VARIABLE} has precedence over a login: {file}" if file and file not in cause else "",
        next_steps=[*([f"unset {VARIABLE}"] if file else []), tuple(_LOGIN.split())],
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
