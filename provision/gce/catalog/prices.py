"""Estimate prices of instances per hour from a dated table that is part of this program.

Boot disk, external address, and traffic are not included. If the table has no rate, the price is unknown.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from provision.gce.catalog.machines import DEFAULT_MACHINE_TYPE, cpus, gpu_of
from provision.gce.options import GceOptions

PRICED_AT = "2026-11-21"
"""Date of the table; its sources may be some weeks older."""

_TABLE = Path(__file__).with_name("prices.csv")


class _Rate(NamedTuple):
    """Price of one unit in US dollars an hour."""

    on_demand: float
    spot: float


def price(cloud: GceOptions, zone: str) -> float | None:
    """Return the estimated price of one instance in US dollars an hour, on demand or spot; None: unknown.

    Args:
        cloud: Options of the instance, resolved.
        zone: Zone of the instance.
    """
    machine_type = cloud.machine_type or DEFAULT_MACHINE_TYPE
    machine = _usd_h(machine_type.rpartition("-")[0], zone, cloud.spot)
    units = cpus(machine_type)
    if machine is None or not units:
        return None
    if not cloud.gpus:
        return round(machine * units, 4)
    gpu = gpu_of(cloud)
    each = _usd_h(gpu.accelerator, zone, cloud.spot) if gpu is not None else None
    return None if each is None else round(machine * units + each * cloud.gpus, 4)


def _usd_h(item: str, zone: str, spot: bool) -> float | None:
    rate = _rates().get((item, zone))
    if rate is None:
        return None
    return rate.spot if spot else rate.on_demand


@lru_cache(maxsize=1)
def _rates() -> Mapping[tuple[str, str], _Rate]:
    """Return the rates by item (a vCPU of a machine series, or a GPU) and zone."""
    with _TABLE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return {
        (row["item"], f"{row['region']}-{letter}"): _Rate(float(row["usd_h"]), float(row["spot_usd_h"]))
        for row in rows
        for letter in row["zones"].split()
    }
