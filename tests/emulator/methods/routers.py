"""The methods of Cloud Routers."""

from __future__ import annotations

from typing import Any

from tests.emulator.blueprint import last, project_of
from tests.emulator.catalog import locations
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Failure, already_exists
from tests.emulator.listing import aggregated, page
from tests.emulator.methods.common import existing_name, launch
from tests.emulator.nat import Routers, router_body
from tests.emulator.registry import method, starting

Json = dict[str, Any]


@method("compute.routers.get")
def get_router(cloud: Cloud, call: Call) -> Json:
    return _existing(cloud, call)


@method("compute.routers.list")
def list_routers(cloud: Cloud, call: Call) -> Json:
    existing_name(cloud, call, "region", locations.REGIONS, "regions")
    return page(cloud, call, cloud.part(Routers).of(call).values())


@method("compute.routers.aggregatedList")
def aggregated_routers(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {f"regions/{region}": [] for region in locations.REGIONS}
    for (project, region, _), router in sorted(cloud.part(Routers).routers.items()):
        if project == call.path["project"]:
            scoped[f"regions/{region}"].append(router)
    return aggregated(cloud, call, scoped)


@starting("compute.routers.insert")
def insert_router(cloud: Cloud, call: Call) -> Json:
    project, name = call.path["project"], call.body["name"]
    region = existing_name(cloud, call, "region", locations.REGIONS, "regions")
    if name in cloud.part(Routers).of(call):
        raise already_exists(f"projects/{project}/regions/{region}/routers/{name}")
    reference = call.body["network"]
    path = reference if project_of(reference) else f"projects/{project}/global/networks/{last(reference)}"
    network = cloud.network(path)
    made = router_body(cloud, f"{cloud.url_of(project)}/regions/{region}", {**call.body, "network": network})

    def begin() -> Failure | None:
        cloud.part(Routers).routers[project, region, name] = made
        return None

    return launch(cloud, call, "insert", made["selfLink"], begin, made["id"])


@starting("compute.routers.patch")
def change_router(cloud: Cloud, call: Call) -> Json:
    router = _existing(cloud, call)

    def begin() -> Failure | None:
        router.update({key: value for key, value in call.body.items() if key in ("nats", "description")})
        return None

    return launch(cloud, call, "patch", router["selfLink"], begin, router["id"])


@starting("compute.routers.delete")
def delete_router(cloud: Cloud, call: Call) -> Json:
    router = _existing(cloud, call)

    def begin() -> Failure | None:
        cloud.part(Routers).routers.pop((call.path["project"], call.path["region"], router["name"]), None)
        return None

    return launch(cloud, call, "delete", router["selfLink"], begin, router["id"])


def _existing(cloud: Cloud, call: Call) -> Json:
    existing = cloud.part(Routers).of(call)
    return existing[existing_name(cloud, call, "router", existing, f"regions/{call.path['region']}/routers")]
