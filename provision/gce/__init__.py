"""Instances on Google Compute Engine."""

from provision.gce.provider import GceProvider

__all__ = ["GceProvider"]
