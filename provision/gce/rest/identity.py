"""Determine the account in use."""

from __future__ import annotations

from typing import Any

_SCOPE = "https://www.googleapis.com/auth/userinfo.email"
_TIMEOUT_S = 10.0


def member_of(credentials: Any, base: str) -> str:
    """Return the account of `credentials` as a member of IAM policies; empty if it cannot be determined.

    Credentials of a user do not contain it, and an access token for Compute Engine does not permit the question; so
    another one is requested.

    Args:
        credentials: Application Default Credentials.
        base: URL of the API that answers, without a path.

    Returns:
        ``user:me@example.com`` or ``serviceAccount:fleet@p.iam.gserviceaccount.com``.

    Source: https://developers.google.com/identity/openid-connect/openid-connect#obtaininguserprofileinformation.
    """
    from google.auth import default
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from requests import RequestException

    address = str(getattr(credentials, "service_account_email", None) or "")
    if address:
        return f"serviceAccount:{address}"
    if not getattr(credentials, "refresh_token", None):
        return ""
    try:
        session = AuthorizedSession(default(scopes=[_SCOPE])[0])  # type: ignore[no-untyped-call]
        answer = session.get(f"{base}/oauth2/v2/userinfo", timeout=_TIMEOUT_S)
        profile = answer.json() if answer.status_code == 200 else {}
    except (GoogleAuthError, RequestException):
        return ""
    return f"user:{profile['email']}" if profile.get("email") else ""
