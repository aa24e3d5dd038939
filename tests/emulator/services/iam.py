"""Identity and Access Management: the service accounts of the project, which instances may have."""

from __future__ import annotations

from typing import Any

from tests.emulator.blueprint import Blueprint
from tests.emulator.cloud import Call, Cloud
from tests.emulator.creation import on_create
from tests.emulator.failures import Refusal
from tests.emulator.governance import DEFAULT_ACCOUNT
from tests.emulator.registry import method

Json = dict[str, Any]
DOCUMENT = "iam.v1"
ACT_AS = "iam.serviceAccounts.actAs"


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return the permission that a call needs; callers may always test theirs."""
    *_, noun, verb = call.method.id.split(".")
    return () if verb == "testIamPermissions" else ((cloud.project, f"iam.{noun}.{verb}"),)


@method("iam.projects.roles.create")
def create_role(cloud: Cloud, call: Call) -> Json:
    name = f"projects/{cloud.project}/roles/{call.body['roleId']}"
    cloud.governance.roles[name] = list(call.body["role"]["includedPermissions"])
    return _role(cloud, name)


@method("iam.projects.roles.get")
@method("iam.roles.get")
def get_role(cloud: Cloud, call: Call) -> Json:
    return _role(cloud, call.path["name"])


def _role(cloud: Cloud, name: str) -> Json:
    if name not in cloud.governance.roles:
        raise Refusal(404, "notFound", f"The role named {name} was not found.", canonical="NOT_FOUND")
    return {"name": name, "includedPermissions": cloud.governance.roles[name]}


@method("iam.projects.serviceAccounts.get")
def get_service_account(cloud: Cloud, call: Call) -> Json:
    return _body(cloud, _email(cloud, call.path["name"]))


@method("iam.projects.serviceAccounts.list")
def list_service_accounts(cloud: Cloud, call: Call) -> Json:
    return {"accounts": [_body(cloud, email) for email in cloud.governance.service_accounts]}


@method("iam.projects.serviceAccounts.create")
def create_service_account(cloud: Cloud, call: Call) -> Json:
    email = f"{call.body['accountId']}@{cloud.project}.iam.gserviceaccount.com"
    cloud.governance.service_accounts[email] = True
    return _body(cloud, email)


@method("iam.projects.serviceAccounts.delete")
def delete_service_account(cloud: Cloud, call: Call) -> Json:
    del cloud.governance.service_accounts[_email(cloud, call.path["name"])]
    return {}


@method("iam.projects.serviceAccounts.testIamPermissions")
def test_iam_permissions(cloud: Cloud, call: Call) -> Json:
    _email(cloud, call.path["resource"])
    return {"permissions": [name for name in call.body.get("permissions", []) if name not in cloud.denied]}


def _email(cloud: Cloud, name: str) -> str:
    """Return the address in the name of a resource.

    An account that does not exist is hidden by the wildcard, and in a project of others, as the discovery document
    says: "the response contains an HTTP 403 Forbidden error instead of a 404 Not Found error".
    """
    _, project, _, email = name.split("/")
    if email in cloud.governance.service_accounts:
        return email
    if project != cloud.project:
        message = "Permission 'iam.serviceAccounts.get' denied on resource (or it may not exist)."
        raise Refusal(403, "forbidden", message, canonical="PERMISSION_DENIED")
    raise Refusal(404, "notFound", f"Unknown service account: {email}", canonical="NOT_FOUND")


def _body(cloud: Cloud, email: str) -> Json:
    body: Json = {"name": f"projects/{cloud.project}/serviceAccounts/{email}", "email": email}
    return body if cloud.governance.service_accounts[email] else {**body, "disabled": True}


@on_create
def check_service_accounts(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal unless the service account of an instance exists, and the caller may use it."""
    accounts = cloud.governance.service_accounts
    for given in blueprint.body.get("serviceAccounts", ()):
        email = given["email"] if "@" in given.get("email", "") else DEFAULT_ACCOUNT
        if not accounts.get(email):
            raise Refusal(400, "badRequest", f'Service account "{email}" does not exist.')
        if ACT_AS in cloud.denied:
            message = (
                f"The user does not have access to service account '{email}'.  User: 'me@example.com'.  Ask a "
                "project owner to grant you the iam.serviceAccountUser role on the service account"
            )
            raise Refusal(400, "SERVICE_ACCOUNT_ACCESS_DENIED", message)
