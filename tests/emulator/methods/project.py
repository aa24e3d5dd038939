"""The methods of projects."""

from __future__ import annotations

from typing import Any

from tests.emulator.blueprint import check_metadata
from tests.emulator.catalog import entries
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Failure, condition_not_met
from tests.emulator.governance import DEFAULT_ACCOUNT, PROJECT_NUMBER
from tests.emulator.methods.common import launch
from tests.emulator.registry import method, starting

Json = dict[str, Any]


@method("compute.projects.get")
def get_project(cloud: Cloud, call: Call) -> Json:
    return {
        "kind": "compute#project",
        "id": PROJECT_NUMBER,
        "name": cloud.project,
        "creationTimestamp": entries.CREATED,
        "commonInstanceMetadata": cloud.metadata,
        "defaultServiceAccount": DEFAULT_ACCOUNT,
        "defaultNetworkTier": "PREMIUM",
        "vmDnsSetting": "ZONAL_ONLY",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        "quotas": cloud.limits.quotas("", cloud.usage()),
        "selfLink": cloud.base,
    }


@method("compute.projects.getXpnHost")
def get_host_project(cloud: Cloud, call: Call) -> Json:
    return next(({"kind": "compute#project", "name": host} for host in cloud.shared), {})


@starting("compute.projects.setCommonInstanceMetadata")
def set_common_instance_metadata(cloud: Cloud, call: Call) -> Json:
    if call.body.get("fingerprint") != cloud.metadata["fingerprint"]:
        raise condition_not_met("Supplied fingerprint does not match current metadata fingerprint.")
    metadata = check_metadata(call.body)

    def begin() -> Failure | None:
        cloud.metadata = metadata
        cloud.update_guests(*cloud.instances.values())
        return None

    return launch(cloud, call, "compute.projects.setCommonInstanceMetadata", cloud.base, begin)
