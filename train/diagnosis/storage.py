"""Hints for errors of Cloud Storage, with the command that fixes each.

Sources: https://cloud.google.com/storage/docs/json_api/v1/status-codes and
https://cloud.google.com/storage/docs/access-control/iam-roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_BUCKET = re.compile(r"\bgs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])|/b/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])/")
_DENIED = re.compile(r"([\w.@:-]{1,200}) does not have storage\.(\w+)\.(\w+) access")
_SCOPES = re.compile(
    r"[Ii]nsufficient (?:Permission\b|authentication scopes)|ACCESS_TOKEN_SCOPE_INSUFFICIENT"
    r"|scope\(s\) are not authorized"
)
_NO_BUCKET = re.compile(r"The specified bucket does not exist")
_OF_STORAGE = re.compile(r"gs://|storage\.googleapis\.com|storage\.objects|storage\.buckets")


def hint(text: str, log: Iterable[str]) -> str:
    """Return what to change after an error of Cloud Storage, one sentence; empty if the text is not about one.

    Args:
        text: Message of the error.
        log: Lines of the log, which may name the bucket if the message does not.
    """
    if not _OF_STORAGE.search(text):
        return ""
    bucket = _bucket([text]) or _bucket(log)
    denied = _DENIED.search(text)
    if _NO_BUCKET.search(text):
        command = f": gcloud storage buckets create {bucket}" if bucket else ""
        return f"correct the name of the bucket, or create it{command}"
    if _SCOPES.search(text) or (denied and denied[1] == "caller"):
        option = f"--bucket {bucket}" if bucket else "--bucket"
        command = f"fleet up {option}"
        return f"the hosts have no access to Cloud Storage; on Compute Engine, create the fleet again with {command}"
    if denied is None or not denied[1].endswith(".gserviceaccount.com"):
        return ""
    role = "roles/storage.legacyBucketReader" if denied[2] == "buckets" else "roles/storage.objectUser"
    if not bucket:
        return f"give {denied[1]} the role {role} on the bucket"
    return (
        f"give the account the role: gcloud storage buckets add-iam-policy-binding {bucket} "
        f"--member serviceAccount:{denied[1]} --role {role}"
    )


def _bucket(texts: Iterable[str]) -> str:
    """Return the URL of the first bucket that texts name; empty: none."""
    matches = (match for text in texts for match in [_BUCKET.search(text)] if match)
    return next((f"gs://{match[1] or match[2]}" for match in matches), "")
