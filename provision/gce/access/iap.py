"""Identity-Aware Proxy: tunnels to instances without external addresses, and their prerequisites.

gcloud opens the tunnels. The protocol between it and Google is documented only by its source, and no maintained
library on PyPI implements it. gcloud has its own login, which can be another account than that of the credentials.

Source: https://cloud.google.com/iap/docs/using-tcp-forwarding.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess

from google.cloud import compute_v1

from provision.gce.account import Account
from provision.gce.api.iam import account_of, is_enabled, permitted_tunnels
from provision.gce.api.messages import ApiError
from provision.gce.api.resources import zone_of
from provision.gce.catalog.roles import UNKNOWN_MEMBER
from provision.gce.diagnosis import Failure, missing_permission
from provision.provider import ErrorKind, ProviderError

API = "iap.googleapis.com"
USE = "iap.tunnelInstances.accessViaIAP"
_TIMEOUT_S = 60.0


def tunnel(account: Account, resource: compute_v1.Instance, port: int) -> tuple[str, ...]:
    """Return the command whose input and output are a connection to a TCP port of an instance."""
    start = ("gcloud", "compute", "start-iap-tunnel", resource.name, str(port), "--listen-on-stdin")
    return (*start, f"--project={account.api.project}", f"--zone={zone_of(resource)}")


def find_gcloud() -> str:
    """Return the path of gcloud.

    Raises:
        ProviderError: it is not installed.
    """
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        hint = "install it from https://cloud.google.com/sdk/docs/install, or remove --iap"
        cause = "without external addresses, SSH goes through Identity-Aware Proxy, which requires gcloud"
        raise ProviderError(ErrorKind.MISSING, "gcloud is not installed on this computer", cause=cause, hint=hint)
    return gcloud


def access_token() -> str:
    """Return an access token of the account that is logged in to gcloud.

    Raises:
        ProviderError: gcloud is not installed, or has no valid login.
    """
    command = [find_gcloud(), "auth", "print-access-token"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_login(str(error)) from error
    if done.returncode or not done.stdout.strip():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise _no_login(lines[0] if lines else f"exit code {done.returncode}")
    return done.stdout.strip()


def _no_login(reason: str) -> ProviderError:
    message = "gcloud, which opens the tunnels of Identity-Aware Proxy, is not logged in"
    hint = "gcloud does not use the credentials of 'gcloud auth application-default login'"
    return ProviderError(
        ErrorKind.CREDENTIALS, message, cause=reason, hint=hint, next_steps=[("gcloud", "auth", "login")]
    )


def check(account: Account) -> str:
    """Check that the account of gcloud can open tunnels; return its address, empty if it cannot be determined.

    Raises:
        ProviderError: the API is not enabled, gcloud is not logged in, or its account lacks the permission.
    """
    project = account.api.project
    token = access_token()
    if _is_disabled(account):
        failure = Failure("SERVICE_DISABLED", f"tunnels to instances without external addresses use {API}", 403)
        raise account.diagnosis([failure], "use Identity-Aware Proxy")
    email = account_of(account.api, token)
    try:
        is_allowed = USE in permitted_tunnels(account.api, token, [USE])
    except ApiError:  # the tunnel will show it
        return email
    if not is_allowed:
        kind = "serviceAccount" if email.endswith(".gserviceaccount.com") else "user"
        member = shlex.quote(f"{kind}:{email}") if email else UNKNOWN_MEMBER
        raise missing_permission(USE, project, doing="open tunnels with the account of gcloud", member=member)
    return email


def _is_disabled(account: Account) -> bool:
    """Return whether the API is certainly not enabled; the caller may lack the permission to ask."""
    try:
        return not is_enabled(account.api, API)
    except ApiError:
        return False
