"""Check the project and its API."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions


def _project(account: Account, _cloud: GceOptions) -> str:
    return f"calls go to project {account.api.project}"


def _api(account: Account, _cloud: GceOptions) -> str:
    account.api.get_project()
    return "the Compute Engine API is enabled"


PROJECT = Check("project", _project, requires=())
API = Check("API", _api, requires=("credentials", "project"))
