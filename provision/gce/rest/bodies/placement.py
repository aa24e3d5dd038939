"""Placement policies, by which the instances of a fleet are close to each other.

Source: https://cloud.google.com/compute/docs/instances/use-compact-placement-policies.
"""

from __future__ import annotations

from typing import Any

from provision.gce.catalog.machines import COMPACT
from provision.gce.options import GceOptions
from provision.gce.rest.bodies.labels import mark, stem
from provision.model import FleetSpec


def policy_name(spec: FleetSpec, owner: str) -> str:
    """Return the name of the placement policy of a fleet, the same in each region; empty: it needs none."""
    is_compact = GceOptions.of(spec.options).placement == COMPACT and spec.workers > 1
    return f"{stem(spec.name, owner)}-compact" if is_compact else ""


def placement_policy(spec: FleetSpec, owner: str, user: str) -> dict[str, Any]:
    """Return the body of the placement policy of a fleet."""
    return {
        "name": policy_name(spec, owner),
        "description": mark(spec.name, owner, user),
        "groupPlacementPolicy": {"collocation": "COLLOCATED"},
    }


def resource_policies(spec: FleetSpec, owner: str) -> dict[str, Any]:
    """Return the field of instances with their placement policy."""
    name = policy_name(spec, owner)
    return {"resourcePolicies": [name]} if name else {}
