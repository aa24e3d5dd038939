"""Read the Cloud Billing catalog, and keep its prices in a file for a day.

The catalog has tens of thousands of SKUs, so that reading it takes seconds. A command waits for it only before it
creates instances, and not for long; the reading continues meanwhile, for the next command.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

from provision.directories import make_directory, write_record
from provision.gce.api.client import Api
from provision.gce.api.messages import ApiError, Json
from provision.gce.catalog.prices import Prices, Rate, from_catalog, rates_of, table
from provision.gce.options import GceOptions
from provision.provider import ProviderError

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

    def current(self, cloud: GceOptions) -> Prices:
        """Return prices that are at most a day old; those of `stored` if the catalog cannot be read in time.

        Args:
            cloud: Options of the instances, resolved; if their price is unknown, the time is longer.
        """
        self.stored()
        if not 0 <= time.time() - self._read_at < VALID_S:
            self._reading = Thread(target=self._read, daemon=True)
            self._reading.start()
            self._reading.join(self._api.timing.prices_s)
            if not self.stored().knows(cloud):
                self._reading.join(self._api.timing.unknown_price_s)
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
            (str(item), str(location)): Rate(_usd_h(on_demand), _usd_h(spot), _usd_h(flex_start))
            for item, location, on_demand, spot, flex_start in content["rates"]
        }
        read_at = float(content["read_at"])
        date = datetime.fromtimestamp(read_at, timezone.utc).date().isoformat()
        self._prices, self._read_at = from_catalog(rates, date), read_at


def _usd_h(value: Any) -> float | None:
    """Return a number that is not negative, or None.

    Raises:
        ValueError or TypeError: it is neither.
    """
    if value is None:
        return None
    if not 0 <= float(value) < 1e6:
        raise ValueError(f"{value!r} is not a price")
    return float(value)
