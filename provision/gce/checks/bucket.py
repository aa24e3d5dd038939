"""Check that the bucket exists, and that the service account of the instances can use it."""

from __future__ import annotations

from provision.gce.access import bucket
from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions
from provision.model import Finding

_SUBJECT = "bucket"


def _bucket(account: Account, cloud: GceOptions) -> str | Finding:
    if not cloud.bucket:
        return "none: jobs have one only with --bucket"
    access = bucket.examine(account, cloud)
    if not access.doubt:
        return f"{access.email} can read and write {cloud.bucket}"
    message = f"it is not certain that {access.email} can read and write {cloud.bucket}: {access.doubt}"
    return Finding(_SUBJECT, None, message, "give it the roles", access.grants(cloud))


BUCKET = Check(_SUBJECT, _bucket, is_optional=True)
