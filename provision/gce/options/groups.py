"""Titles of the groups of options in help texts."""

from __future__ import annotations

GENERAL = "Compute Engine"
MONEY_AND_TIME = "Price and lifetime on Compute Engine"
NETWORK = "Network and access on Compute Engine"
PREPARATION = "Preparation of instances on Compute Engine"
