"""Options of fleets on this computer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from provision.options import ProviderOptions


@dataclass(frozen=True)
class LocalOptions(ProviderOptions):
    """Options of a fleet on this computer; only the common ones."""

    implementation: ClassVar[str] = "provision.local.provider:LocalProvider"
    title: ClassVar[str] = "this computer"
    remote: ClassVar[bool] = False
