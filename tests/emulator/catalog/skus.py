"""SKUs of Compute Engine in the Cloud Billing catalog, with the ambiguous descriptions that the real one has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

Json = dict[str, Any]

COMPUTE_ENGINE = "6F81-5844-456A"
# Title in descriptions, and price relative to that of the Americas.
_PLACES = {
    "us-central1": ("Americas", 1.0),
    "us-west4": ("Las Vegas", 1.12623),
    "europe-west1": ("Belgium", 1.10004),
    "europe-west2": ("London", 1.28838),
}
# US dollars in the Americas: of a vCPU and of a GB of memory, on demand and Spot.
_MACHINES = {
    "N1 Predefined Instance": (0.031611, 0.004237, 0.00698, 0.000936),
    "N2 Instance": (0.031611, 0.004237, 0.007650, 0.001025),
    "N2 Custom Instance": (0.033174, 0.004446, 0.008033, 0.001077),
    "N2D AMD Instance": (0.027502, 0.003686, 0.005870, 0.000787),
    "E2 Instance": (0.021812, 0.002924, 0.008725, 0.001169),
    "E2 Custom Instance": (0.022890, 0.003067, 0.009156, 0.001227),
    "G2 Instance": (0.024988, 0.002927, 0.009995, 0.001171),
    "G4 Instance": (0.029890, 0.003470, 0.011956, 0.001388),
    "A2 Instance": (0.031611, 0.004237, 0.010116, 0.001356),
    "A3 Instance": (0.029280, 0.002552, 0.008784, 0.000766),
    "A3Plus Instance": (0.029280, 0.002552, 0.008784, 0.000766),
    "A3Ultra Instance": (0.029280, 0.002552, 0.008784, 0.000766),
}
_GPUS = {
    "Nvidia Tesla T4 GPU": (0.35, 0.14),
    "Nvidia Tesla P100 GPU": (1.46, 0.584),
    "Nvidia Tesla V100 GPU": (2.48, 0.992),
    "Nvidia L4 GPU": (0.56004, 0.224016),
    "Nvidia Tesla A100 GPU": (2.933908, 1.173563),
    "Nvidia Tesla A100 80GB GPU": (3.92808, 1.571232),
    "Nvidia H100 80GB GPU": (9.796552, 2.938966),
    "Nvidia H100 80GB Mega GPU": (10.079400, 3.023820),
    "H200 141GB GPU": (9.362000, 2.808600),
    "RTX 6000 96GB": (4.500000, 1.720000),
}
# Of Flex-start VMs: of a vCPU and of a GB of memory; of a GPU.
_FLEX_MACHINES = {"A2": (0.017390, 0.002330), "A3": (0.010934, 0.000952), "A3Ultra": (0.010934, 0.000952)}
_FLEX_GPUS = {
    "Nvidia Tesla A100 GPU": 1.61365,
    "Nvidia Tesla A100 80GB GPU": 2.160444,
    "Nvidia H100 80GB GPU": 4.200761,
    "H200 141GB GPU": 4.493760,
}
_DISKS = {
    "Storage PD Capacity": 0.04,
    "Balanced PD Capacity": 0.1,
    "SSD backed PD Capacity": 0.17,
    "Hyperdisk Balanced Capacity": 0.08,
    "SSD backed Local Storage": 0.08,
    "DWS Defined Duration SSD backed Local Storage": 0.06,
    "Storage Image": 0.05,
    "Regional Storage PD Capacity": 0.08,
    "Regional Balanced PD Capacity": 0.2,
}


@cache
def compute_skus() -> tuple[Json, ...]:
    """Return all SKUs, in the order of the catalog, which is that of their IDs."""
    skus = [*_machines(), *_gpus(), *_flex_start(), *_storage(), *_addresses(), *_others()]
    return tuple(sorted(skus, key=lambda sku: str(sku["skuId"])))


def _machines() -> Iterator[Json]:
    for title, (core, memory, spot_core, spot_memory) in _MACHINES.items():
        for region, (place, factor) in _PLACES.items():
            for part, unit, usd, spot_usd in (("Core", "h", core, spot_core), ("Ram", "GiBy.h", memory, spot_memory)):
                text, group = f"{title} {part} running in {place}", {"Core": "CPU", "Ram": "RAM"}[part]
                yield _sku(text, region, unit, usd * factor, group)
                yield _sku(f"Spot Preemptible {text}", region, unit, spot_usd * factor, group, usage="Preemptible")


def _gpus() -> Iterator[Json]:
    for region, (place, factor) in _PLACES.items():
        for title, (usd, spot_usd) in _GPUS.items():
            yield _sku(f"{title} running in {place}", region, "h", usd * factor, "GPU")
            text = f"{title} attached to Spot Preemptible VMs running in {place}"
            yield _sku(text, region, "h", spot_usd * factor, "GPU", usage="Preemptible")
    slice_ = "A4 Nvidia B200 (1 gpu slice) running in Americas"
    yield _sku(slice_, "us-central1", "h", 16.1, "GPU")
    yield _sku(f"Spot Preemptible {slice_}", "us-central1", "h", 6.44, "GPU")


def _flex_start() -> Iterator[Json]:
    """Yield the SKUs of Flex-start VMs, whose usage is on demand: machines by the name of their series."""
    for region, (place, factor) in _PLACES.items():
        for series, (core, memory) in _FLEX_MACHINES.items():
            yield _sku(f"DWS Defined Duration {series} Core running in {place}", region, "h", core * factor, "CPU")
            text = f"DWS Defined Duration {series} Ram running in {place}"
            yield _sku(text, region, "GiBy.h", memory * factor, "RAM")
        for title, usd in _FLEX_GPUS.items():
            text = f"{title} attached to DWS Defined Duration VMs running in {place}"
            yield _sku(text, region, "h", usd * factor, "GPU")
    slice_ = "DWS Defined Duration A4 Nvidia B200 (1 gpu slice) running in Americas"
    yield _sku(slice_, "us-central1", "h", 8.05, "GPU")


def _storage() -> Iterator[Json]:
    for title, usd in _DISKS.items():
        for region, (place, factor) in _PLACES.items():
            text = title if factor == 1 else f"{title} in {place}"
            free = title == "Storage PD Capacity" and factor == 1
            yield _sku(text, region, "GiBy.mo", usd * factor, "PDStandard", family="Storage", free=30.0 * free)
    title, spot_usd = "SSD backed Local Storage attached to Spot Preemptible VMs", 0.048
    for region, (place, factor) in _PLACES.items():
        text = title if factor == 1 else f"{title} in {place}"
        yield _sku(text, region, "GiBy.mo", spot_usd * factor, "LocalSSD", family="Storage", usage="Preemptible")


def _addresses() -> Iterator[Json]:
    for title, usd in (("a Standard VM", 0.005), ("a Spot Preemptible VM", 0.0025), ("a Preemptible VM", 0.0025)):
        text = f"External IP Charge on {title}"
        yield _sku(text, "global", "h", usd, "IpAddress", family="Network", free=1.0)
    yield _sku("Static Ip Charge", "global", "h", 0.01, "IpAddress", family="Network")


def _others() -> Iterator[Json]:
    """Yield SKUs that resemble those of instances, with other prices."""
    for title, unit, usd, usage in (
        ("Commitment v1: N2 Cpu in Americas for 1 Year", "h", 0.019915, "Commit1Yr"),
        ("Commitment v1: Nvidia H100 80GB GPU running in Americas for 1 Year", "h", 6.7688, "Commit1Yr"),
        ("N1 Predefined Instance Core running in Americas", "h", 0.001, "Commit3Yr"),
        ("N2 Sole Tenancy Instance Core running in Americas", "h", 0.034772, "OnDemand"),
        ("Sole Tenancy Premium for N2 Sole Tenancy Instance Core running in Americas", "h", 0.003161, "OnDemand"),
        ("Nvidia Tesla T4 GPU attached to Sole Tenancy VMs running in Americas", "h", 0.385, "OnDemand"),
        ("Reserved Nvidia H100 80GB Mega GPU in Americas", "h", 0.0, "OnDemand"),
        ("DWS Calendar Mode A3 Core running in Americas", "h", 0.0146, "OnDemand"),
        ("Nvidia H100 80GB GPU attached to DWS Calendar Mode VMs running in Americas", "h", 3.9, "OnDemand"),
        ("Nvidia L4 GPU Virtual Workstation running in Americas", "h", 0.76, "OnDemand"),
        ("Storage PD Snapshot", "GiBy.mo", 0.05, "OnDemand"),
        ("N1 Predefined Instance Ram running in Americas", "GiBy.mo", 9.0, "OnDemand"),
    ):
        yield _sku(title, "us-central1", unit, usd, "CPU", usage=usage)


def _sku(
    description: str,
    region: str,
    unit: str,
    usd: float,
    group: str,
    *,
    usage: str = "OnDemand",
    family: str = "Compute",
    free: float = 0.0,
) -> Json:
    """Return a Sku; `free` units are in a tier that costs nothing."""
    sku_id = hashlib.sha256(f"{description} {region} {unit} {usage}".encode()).hexdigest()[:12].upper()
    sku_id = "-".join(sku_id[start : start + 4] for start in (0, 4, 8))
    tiers = [{"startUsageAmount": 0.0, "unitPrice": _money(0.0)}] if free else []
    tiers.append({"startUsageAmount": free, "unitPrice": _money(usd)})
    return {
        "name": f"services/{COMPUTE_ENGINE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1.0,
                    "tieredRates": tiers,
                    "baseUnit": "s" if unit == "h" else "By.s",
                    "baseUnitConversionFactor": 3600.0,
                },
                "currencyConversionRate": 1.0,
                "effectiveTime": "2026-11-20T14:32:27.138Z",
            }
        ],
        "serviceProviderName": "Google",
    }


def _money(usd: float) -> Json:
    nanos = round(usd * 1e9)
    return {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}
