"""The methods of regions and zones."""

from __future__ import annotations

from typing import Any

from tests.emulator.catalog import locations
from tests.emulator.cloud import Call, Cloud
from tests.emulator.listing import page
from tests.emulator.methods.common import existing_name
from tests.emulator.registry import method

Json = dict[str, Any]


@method("compute.regions.get")
def get_region(cloud: Cloud, call: Call) -> Json:
    region = existing_name(cloud, call, "region", locations.REGIONS, "regions")
    return locations.region_body(cloud.base, region, cloud.limits.quotas(region, cloud.usage()))


@method("compute.regions.list")
def list_regions(cloud: Cloud, call: Call) -> Json:
    usage = cloud.usage()
    regions = [
        locations.region_body(cloud.base, name, cloud.limits.quotas(name, usage)) for name in locations.REGIONS
    ]
    return page(cloud, call, regions)


@method("compute.zones.get")
def get_zone(cloud: Cloud, call: Call) -> Json:
    return locations.zone_body(cloud.base, existing_name(cloud, call, "zone", locations.ZONES, "zones"))


@method("compute.zones.list")
def list_zones(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [locations.zone_body(cloud.base, zone) for zone in locations.ZONES])
