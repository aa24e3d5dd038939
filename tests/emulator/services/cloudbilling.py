"""Cloud Billing: the billing account of the project."""

from __future__ import annotations

from typing import Any

from tests.emulator.blueprint import last
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import not_found
from tests.emulator.registry import method

Json = dict[str, Any]
DOCUMENT = "cloudbilling.v1"


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return the permission that a call needs."""
    project = last(call.path["name"])
    if project != cloud.project:
        raise not_found(f"projects/{project}")
    verb = "get" if call.method.id.endswith(".getBillingInfo") else "createBillingAssignment"
    return ((project, f"resourcemanager.projects.{verb}"),)


@method("cloudbilling.projects.getBillingInfo")
def get_billing_info(cloud: Cloud, call: Call) -> Json:
    governance = cloud.governance
    return {
        "name": f"projects/{cloud.project}/billingInfo",
        "projectId": cloud.project,
        "billingAccountName": governance.billing_account,
        "billingEnabled": governance.is_billed,
    }


@method("cloudbilling.projects.updateBillingInfo")
def update_billing_info(cloud: Cloud, call: Call) -> Json:
    cloud.governance.billing_account = call.body.get("billingAccountName", "")
    return get_billing_info(cloud, call)
