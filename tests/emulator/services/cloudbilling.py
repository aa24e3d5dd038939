"""Cloud Billing: the billing account of the project, and the price list of Google."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.emulator.blueprint import last
from tests.emulator.catalog.skus import COMPUTE_ENGINE, compute_skus
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Refusal, bad_request, not_found
from tests.emulator.registry import method

Json = dict[str, Any]
DOCUMENT = "cloudbilling.v1"
_LISTING = "cloudbilling.services.skus.list"


@dataclass
class PriceList:
    """The SKUs of the catalog.

    Attributes:
        skus: The SKUs of Compute Engine.
        page: Largest number of SKUs in an answer.
    """

    skus: tuple[Json, ...] = field(default_factory=compute_skus)
    page: int = 5000


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return the permission that a call needs; the price list needs none."""
    if call.method.id == _LISTING:
        return ()
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


@method(_LISTING)
def list_skus(cloud: Cloud, call: Call) -> Json:
    if last(call.path["parent"]) != COMPUTE_ENGINE:
        raise Refusal(404, "notFound", "Requested entity was not found.", canonical="NOT_FOUND")
    prices, token = cloud.part(PriceList), call.query.get("pageToken", "0")
    if not token.isdigit() or call.query.get("currencyCode", "USD") != "USD":
        raise bad_request("Request contains an invalid argument.")
    start = int(token)
    end = start + min(int(call.query.get("pageSize", "5000")) or 5000, prices.page)
    return {
        "skus": [_selected(sku, call.query.get("fields", "")) for sku in prices.skus[start:end]],
        "nextPageToken": str(end) if end < len(prices.skus) else "",
    }


def _selected(sku: Json, fields: str) -> Json:
    """Return the fields of a SKU that the parameter ``fields`` names, with everything in them; all if it is empty."""
    return {name: value for name, value in sku.items() if name in fields} if fields else sku


@method("cloudbilling.projects.updateBillingInfo")
def update_billing_info(cloud: Cloud, call: Call) -> Json:
    cloud.governance.billing_account = call.body.get("billingAccountName", "")
    return get_billing_info(cloud, call)
