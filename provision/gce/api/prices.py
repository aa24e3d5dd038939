"""Estimate prices of instances per hour from rates of machines, GPUs, disks, and addresses.

The rates are from the Cloud Billing catalog, or from a dated table that is part of this program. Traffic is not
included. If a rate is missing, the price is unknown. The catalog has tens of thousands of SKUs, so that reading it
takes seconds; its prices are kept in a file for a day. A command waits for it only before it creates instances, and
not for long; the reading continues meanwhile, for the next command.

Machines are billed by their vCPUs, memory, GPUs, and the local SSDs that come with them. Those of Flex-start VMs are
called "DWS Defined Duration", after the Dynamic Workload Scheduler, and exist for some machines only. SKUs of
commitments, reservations, sole-tenant nodes, and custom machine types have other descriptions, which are not matched.

Sources: https://cloud.google.com/billing/v1/how-tos/catalog-api and the SKUs at https://cloud.google.com/skus.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from provision.directories import make_directory, write_record
from provision.gce.api.client import Api, ApiError, Json
from provision.gce.catalog.gpus import FLEX_START, GPUS, SPOT, STANDARD, Series
from provision.gce.catalog.machines import DEFAULT_MACHINE_TYPE, SERIES, cpus, default_disk_type, gpu_of
from provision.gce.catalog.names import region_of
from provision.gce.options import LOCAL_SSD, LOCAL_SSD_GB, GceOptions
from provision.model import Price
from provision.provider import ProviderError
from provision.quantities import HOURS_PER_MONTH

PRICED_AT = "2026-11-21"
"""Date of the table; its sources may be some weeks older."""

ADDRESS = "external address"
IMAGE = "image"

_TABLE = Path(__file__).with_name("prices.csv")
_DISK_USD_GB_MONTH = MappingProxyType(
    {"pd-standard": 0.06, "pd-balanced": 0.15, "pd-ssd": 0.255, "hyperdisk-balanced": 0.12, LOCAL_SSD: 0.12}
)
"""List prices in the most expensive region: https://cloud.google.com/compute/disks-image-pricing."""
_IMAGE_USD_GB_MONTH = 0.05
"""List price of the compressed size of an image: https://cloud.google.com/compute/disks-image-pricing."""
_ADDRESS_USD_H = (0.005, 0.0025)
"""Of an address in use by an instance, and by a Spot VM: https://cloud.google.com/vpc/network-pricing."""


class Rate(NamedTuple):
    """Price of one unit in US dollars an hour; None: unknown.

    The unit is a vCPU with its memory, a GPU without its machine, a GB of a disk or an image, or an address.
    """

    on_demand: float | None
    spot: float | None
    flex_start: float | None = None

    def of(self, model: str) -> float | None:
        """Return the price with a provisioning model; Flex-start VMs cost at most the price on demand."""
        if model == SPOT:
            return self.spot
        return self.flex_start if model == FLEX_START and self.flex_start is not None else self.on_demand


@dataclass(frozen=True)
class Prices:
    """Rates, and where they are from.

    Attributes:
        rates: By item and zone or region; the region is empty for a rate of all regions. The item is a series of
            machine types (``n1-standard``), a GPU (``nvidia-tesla-t4``), a type of disk (``pd-balanced``), `ADDRESS`,
            or `IMAGE`.
        priced_at: Date of the rates, ``2026-11-01``.
        source: Their origin, for the user.
    """

    rates: Mapping[tuple[str, str], Rate]
    priced_at: str
    source: str

    def price(self, cloud: GceOptions, zone: str) -> Price | None:
        """Return the estimated price of one instance, with its provisioning model; None: unknown.

        Args:
            cloud: Options of the instance, resolved.
            zone: Zone of the instance.
        """
        machine_type = cloud.machine_type or DEFAULT_MACHINE_TYPE
        units = cpus(machine_type)
        model = SPOT if cloud.spot else FLEX_START if cloud.flex_start else STANDARD
        machine = self._usd_h(machine_type.rpartition("-")[0], zone, model)
        disk = self._usd_h(cloud.disk_type or default_disk_type(machine_type), zone)
        address = self._usd_h(ADDRESS, zone, model) if cloud.external else 0.0
        gpu = gpu_of(cloud)
        scratch = self._usd_h(LOCAL_SSD, zone, model) if cloud.local_ssds else 0.0
        each = 0.0 if not cloud.gpus else self._usd_h(gpu.accelerator, zone, model) if gpu else None
        if machine is None or not units or disk is None or address is None or each is None or scratch is None:
            return None
        local_ssds = scratch * cloud.local_ssds * LOCAL_SSD_GB
        return Price(machine * units + local_ssds, each * cloud.gpus, disk * cloud.disk_gb, address)

    def is_exact(self, cloud: GceOptions, zone: str) -> bool:
        """Return False if Flex-start VMs may cost less than `price` returns: parts have only a price on demand."""
        gpu = gpu_of(cloud)
        items = [cloud.machine_type.rpartition("-")[0], *([gpu.accelerator] if gpu and cloud.gpus else [])]
        rates = [self._rate(item, zone) for item in (*items, *([LOCAL_SSD] if cloud.local_ssds else []))]
        return not cloud.flex_start or all(rate is not None and rate.flex_start is not None for rate in rates)

    def usd_h(self, cloud: GceOptions, zone: str) -> float | None:
        """Return the estimated price of one running instance in US dollars an hour; None: unknown."""
        price = self.price(cloud, zone)
        return None if price is None else price.usd_h

    def image_usd_h(self, size_gb: float, location: str) -> float:
        """Return the estimated price of an image of this size in US dollars an hour.

        Args:
            size_gb: Size of its compressed content.
            location: Region, or continent such as ``us``, that it is stored in; empty: unknown.
        """
        rate = self.rates.get((IMAGE, location)) or self.rates.get((IMAGE, ""))
        return (rate.on_demand or 0.0) * size_gb if rate else 0.0

    def _usd_h(self, item: str, zone: str, model: str = STANDARD) -> float | None:
        rate = self._rate(item, zone)
        return None if rate is None else rate.of(model)

    def _rate(self, item: str, zone: str) -> Rate | None:
        locations = (zone, region_of(zone), "")
        return next((rate for each in locations if (rate := self.rates.get((item, each))) is not None), None)


@lru_cache(maxsize=1)
def table() -> Prices:
    """Return the prices of the table that is part of this program."""
    with _TABLE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    rates = {
        (row["item"], f"{row['region']}-{letter}"): Rate(float(row["usd_h"]), float(row["spot_usd_h"]))
        for row in rows
        for letter in row["zones"].split()
    }
    for disk, usd_gb_month in _DISK_USD_GB_MONTH.items():
        rates[disk, ""] = Rate(usd_gb_month / HOURS_PER_MONTH, usd_gb_month / HOURS_PER_MONTH)
    rates[ADDRESS, ""] = Rate(*_ADDRESS_USD_H)
    rates[IMAGE, ""] = Rate(_IMAGE_USD_GB_MONTH / HOURS_PER_MONTH, _IMAGE_USD_GB_MONTH / HOURS_PER_MONTH)
    return Prices(rates, PRICED_AT, "the table of this program")


def from_catalog(rates: Mapping[tuple[str, str], Rate], priced_at: str) -> Prices:
    """Return the prices of the Cloud Billing catalog; items that it does not have keep the rates of the table.

    Args:
        rates: Rates of the catalog, by item and region.
        priced_at: Date at which they were read.
    """
    items = {item for item, _ in rates}
    kept = {key: rate for key, rate in table().rates.items() if not key[1] or key[0] not in items}
    return Prices({**kept, **rates}, priced_at, "the Cloud Billing catalog")


def dollars(usd: float) -> str:
    """Return an amount above `usd` as the value of an option, in whole cents."""
    return f"{int(usd * 100 + 1) / 100:.2f}"


_MODELS = MappingProxyType({"Spot Preemptible": SPOT, "DWS Defined Duration": FLEX_START})
_MODEL = "|".join(_MODELS)
_DESCRIPTION = re.compile(
    rf"(?:({_MODEL}) )?(.+?)(?: attached to ({_MODEL}) VMs)?(?: (?:running )?in [A-Z].*)?", re.ASCII
)
_ALL_MODELS = (STANDARD, SPOT, FLEX_START)
"""The provisioning models, in the order of the fields of `Rate`."""
_USAGE = ("OnDemand", "Preemptible")
_HOUR, _GB_HOUR, _GB_MONTH = "h", "GiBy.h", "GiBy.mo"
_UNITS = MappingProxyType({"Core": _HOUR, "Ram": _GB_HOUR})


_GPUS = {gpu.sku: gpu.accelerator for gpu in GPUS.values()}
_DISKS = MappingProxyType(
    {
        "Storage PD Capacity": "pd-standard",
        "Balanced PD Capacity": "pd-balanced",
        "SSD backed PD Capacity": "pd-ssd",
        "Hyperdisk Balanced Capacity": "hyperdisk-balanced",
        "SSD backed Local Storage": LOCAL_SSD,
        "Storage Image": IMAGE,
    }
)
_ADDRESSES = MappingProxyType(
    {"External IP Charge on a Standard VM": STANDARD, "External IP Charge on a Spot Preemptible VM": SPOT}
)


class _Part(NamedTuple):
    """A part of a machine that has a SKU.

    Attributes:
        name: Its name.
        unit: Unit of its price.
        model: Provisioning model of the instances that have this price.
    """

    name: str
    unit: str
    model: str


Parts = dict[tuple[str, str, str], float]
"""US dollars an hour of a unit of each part, by part, region, and provisioning model."""


def rates_of(skus: Iterable[Any]) -> dict[tuple[str, str], Rate]:
    """Return the rates by item and region, as `Prices.rates` has them; SKUs without a known meaning are left out.

    Args:
        skus: SKUs as JSON of the REST API, in any order.
    """
    parts: Parts = {}
    for sku in skus:
        with contextlib.suppress(AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
            part, usd_h = _part(sku), _usd_h(sku["pricingInfo"][-1]["pricingExpression"])
            for region in sku["serviceRegions"]:
                if part is None or usd_h.unit != part.unit:
                    break
                key = (part.name, "" if region == "global" else str(region), part.model)
                parts[key] = max(usd_h.usd, parts.get(key, 0.0))
    rates = {**_machines(parts), **_items(parts)}
    return {key: rate for key, rate in rates.items() if rate != Rate(None, None)}


def _part(sku: Any) -> _Part | None:
    """Return the part that a SKU prices; None if it has no meaning here."""
    description = sku["description"]
    if sku["category"]["usageType"] not in _USAGE:
        return None
    if description in _ADDRESSES:
        return _Part(ADDRESS, _HOUR, _ADDRESSES[description])
    match = _DESCRIPTION.fullmatch(description)
    if match is None:
        return None
    title, model = match[2], _MODELS.get(match[1] or match[3] or "", STANDARD)
    if title in _DISKS:
        return _Part(_DISKS[title], _GB_MONTH, model)
    if title in _GPUS:
        return _Part(_GPUS[title], _HOUR, model)
    unit = _UNITS.get(title.rpartition(" ")[2])
    return _Part(title, unit, model) if unit else None


class _Price(NamedTuple):
    usd: float
    unit: str


def _usd_h(expression: Any) -> _Price:
    """Return the price of a SKU in its last tier, after free tiers, in US dollars an hour.

    Raises:
        ValueError: it is not a price in US dollars.
    """
    price, unit = expression["tieredRates"][-1]["unitPrice"], str(expression["usageUnit"])
    usd = int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
    if price.get("currencyCode", "USD") != "USD" or not 0 < usd < math.inf:
        raise ValueError(f"{price} is not a price in US dollars")
    return _Price(usd / HOURS_PER_MONTH if unit == _GB_MONTH else usd, unit)


def _machines(parts: Parts) -> dict[tuple[str, str], Rate]:
    """Return the rates of one vCPU of each series, with its memory and local SSDs."""
    rates: dict[tuple[str, str], Rate] = {}
    for name, series in SERIES.items():
        regions = {region for part, region, _ in parts if part == f"{series.sku} Core"}
        for (kind, memory_gb), region in itertools.product(series.memory_gb.items(), regions):
            item = f"{name}-{kind}" if kind else name
            rates[item, region] = Rate(*(_machine(parts, series, memory_gb, region, each) for each in _ALL_MODELS))
    for gpu in GPUS.values():
        priced = {region for part, region, _ in parts if part == gpu.accelerator}
        items = [item for item, series in gpu.series.items() if not series.sku]
        rates |= dict.fromkeys(itertools.product(items, priced), Rate(0.0, 0.0, 0.0))
    return rates


def _machine(parts: Parts, series: Series, memory_gb: float, region: str, model: str) -> float | None:
    # The SKUs of Flex-start VMs leave out a word: "DWS Defined Duration A3 Core".
    title = series.sku.removesuffix(" Instance") if model == FLEX_START else series.sku
    core = parts.get((f"{title} Core", region, model))
    memory = parts.get((f"{title} Ram", region, model))
    on_demand = parts.get((LOCAL_SSD, region, STANDARD))
    local_ssd = parts.get((LOCAL_SSD, region, model), on_demand) if series.local_ssd_gb else 0.0
    if core is None or memory is None or local_ssd is None:
        return None
    return core + memory_gb * memory + series.local_ssd_gb * local_ssd


def _items(parts: Parts) -> dict[tuple[str, str], Rate]:
    """Return the rates of GPUs, disks, images, and addresses; a disk has one rate for all instances."""
    rates: dict[tuple[str, str], Rate] = {}
    disks = set(_DISKS.values())
    for name in {*_GPUS.values(), *disks, ADDRESS}:
        for region in {region for part, region, _ in parts if part == name}:
            on_demand = parts.get((name, region, STANDARD))
            spot = parts.get((name, region, SPOT), on_demand if name in disks else None)
            rates[name, region] = Rate(on_demand, spot, parts.get((name, region, FLEX_START)))
    return rates


BILLING = "https://cloudbilling.googleapis.com"
VALID_S = 24 * 3600.0
_COMPUTE_ENGINE = "services/6F81-5844-456A"
_PAGES_MAX = 100
_FIELDS = (
    "nextPageToken,skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates/unitPrice))"
)
_FORMAT = 2


def read_page(api: Api, token: str = "", size: int = 5000) -> Json:
    """Return a page of the SKUs of Compute Engine, with the fields that `rates_of` uses.

    Every account can read them. Source: cloudbilling.services.skus.list.

    Raises:
        ApiError: the call failed, for example because that API is disabled.
    """
    query = {"currencyCode": "USD", "pageSize": size, "fields": _FIELDS} | ({"pageToken": token} if token else {})
    return api.ask(BILLING, f"/v1/{_COMPUTE_ENGINE}/skus?{urlencode(query)}")


class PriceList:
    """The latest known prices of Google, which later commands use without a call.

    Args:
        api: Client of the APIs.
        path: File with the prices.
    """

    def __init__(self, api: Api, path: Path) -> None:
        self._api = api
        self._path = path
        self._prices: Prices | None = None
        self._read_at = 0.0
        self._reading: Thread | None = None

    def stored(self) -> Prices:
        """Return the latest prices on this computer: those of the file, or the table if it is newer."""
        if self._prices is None:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
                self._load(json.loads(self._path.read_text(encoding="utf-8")))
        listed = table()
        return self._prices if self._prices and self._prices.priced_at >= listed.priced_at else listed

    def current(self) -> Prices:
        """Return prices that are at most a day old; those of `stored` if the catalog cannot be read in time."""
        self.stored()
        if not 0 <= time.time() - self._read_at < VALID_S:
            self._reading = Thread(target=self._read, daemon=True)
            self._reading.start()
            self._reading.join(self._api.timing.prices_s)
        return self.stored()

    def _read(self) -> None:
        """Read the catalog, and keep its prices."""
        with contextlib.suppress(ApiError, ProviderError, ValueError):
            rates = rates_of(sku for page in self._pages() for sku in page.get("skus", ()))
            if not rates:
                return
            kept = [[*key, *rate] for key, rate in sorted(rates.items())]
            content = {"format": _FORMAT, "service": self._api.base(BILLING), "read_at": time.time(), "rates": kept}
            self._load(content)
            with contextlib.suppress(OSError):
                make_directory(self._path.parent)
                write_record(self._path, content)

    def _pages(self) -> Iterator[Json]:
        """Yield all pages.

        Raises:
            ApiError: a call failed.
            ValueError: an answer is not a JSON object, or the pages do not end.
        """
        token = ""
        for _ in range(_PAGES_MAX):
            page = read_page(self._api, token)
            if not isinstance(page, dict):
                raise ValueError("a page is not an object")
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return
        raise ValueError("the pages do not end")

    def _load(self, content: Any) -> None:
        """Use prices as the file has them.

        Raises:
            ValueError, TypeError, KeyError, OverflowError: they are damaged, or of another API or version.
        """
        if (content["format"], content["service"]) != (_FORMAT, self._api.base(BILLING)):
            raise ValueError("other prices")
        rates = {
            (str(item), str(location)): Rate(*(None if usd is None else float(usd) for usd in usd_h))
            for item, location, *usd_h in content["rates"]
        }
        read_at = float(content["read_at"])
        date = datetime.fromtimestamp(read_at, timezone.utc).date().isoformat()
        self._prices, self._read_at = from_catalog(rates, date), read_at
