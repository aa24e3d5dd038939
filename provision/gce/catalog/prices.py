"""What instances cost by the hour, estimated from a dated table that is part of this program.

Boot disk, external address and traffic are extra. Where the table has no rate, the price is not known.
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
"""Day on which the table was made; what it was made from may be some weeks older."""

_TABLE = Path(__file__).with_name("prices.csv")


class _Rate(NamedTuple):
    """US dollars an hour of one unit."""

    on_demand: float
    spot: float


def price(cloud: GceOptions, zone: str) -> float | None:
    """Estimated price of one instance in US dollars an hour, on demand or spot; None: not known.

    Args:
        cloud: What the instance is; resolved.
        zone: Where it stands.
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


def zones() -> tuple[str, ...]:
    """All zones for which the table has a rate, in alphabetical order."""
    return tuple(sorted({zone for _, zone in _rates()}))


def _usd_h(item: str, zone: str, spot: bool) -> float | None:
    rate = _rates().get((item, zone))
    if rate is None:
        return None
    return rate.spot if spot else rate.on_demand


@lru_cache(maxsize=1)
def _rates() -> Mapping[tuple[str, str], _Rate]:
    """The rates by what is sold and the zone: a vCPU of a series of machine types, or a GPU."""
    with _TABLE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return {
        (row["item"], f"{row['region']}-{letter}"): _Rate(float(row["usd_h"]), float(row["spot_usd_h"]))
        for row in rows
        for letter in row["zones"].split()
    }
