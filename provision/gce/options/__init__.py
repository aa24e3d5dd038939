"""Options of fleets on Google Compute Engine, declared by topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.gce.options.access import AccessOptions
from provision.gce.options.account import AccountOptions
from provision.gce.options.identity import IdentityOptions
from provision.gce.options.images import ImageOptions
from provision.gce.options.labels import LabelOptions
from provision.gce.options.machines import LOCAL_SSD, LOCAL_SSD_PATH, MachineOptions
from provision.gce.options.preparation import PreparationOptions, digest, root_scripts
from provision.gce.options.storage import StorageOptions
from provision.gce.options.time import BACKSTOP_S, END_AT, MAX_DURATION_MAX_S, POWER_OFF_S, TimeOptions
from provision.options import PreemptionNotice, ProviderOptions


@dataclass(frozen=True)
class GceOptions(
    AccountOptions,
    MachineOptions,
    TimeOptions,
    ImageOptions,
    LabelOptions,
    AccessOptions,
    IdentityOptions,
    StorageOptions,
    PreparationOptions,
    ProviderOptions,
):
    """Options of the instances of a fleet, and their zones; help texts list them in the order of the bases."""

    implementation: ClassVar[str] = "provision.gce.provider:GceProvider"
    title: ClassVar[str] = "Compute Engine"
    rents: ClassVar[bool] = True
    restarts: ClassVar[bool] = True
    keeps_disks: ClassVar[bool] = True
    # 30 s before the host is taken. The address is that of metadata.google.internal; Google's libraries use the
    # variable, too. Sources: https://cloud.google.com/compute/docs/instances/create-use-spot (detecting preemption),
    # https://cloud.google.com/compute/docs/metadata/querying-metadata (wait_for_change, last_etag, timeout_sec).
    preemption_notice = PreemptionNotice(
        product="Google Compute Engine",
        url="http://169.254.169.254/computeMetadata/v1/instance/?recursive=true",
        variable="GCE_METADATA_HOST",
        headers={"Metadata-Flavor": "Google"},
        value="TRUE",
        wait="wait_for_change=true&last_etag={etag}&timeout_sec={seconds}",
        key="preempted",
        end_key=f"attributes/{END_AT}",
        # 60 min before for instances with GPUs: https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance
        maintenance_key="maintenanceEvent",
        maintenance_value="TERMINATE_ON_HOST_MAINTENANCE",
        # Of A3, A4, and other machines with planned maintenance, up to 90 days before; its names are in snake case in
        # https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event.
        window_key="upcomingMaintenance",
    )

    @property
    def account(self) -> str:
        """Return the project."""
        return self.project

    @property
    def variables(self) -> Mapping[str, str]:
        """Return FLEET_BUCKET, if there is a bucket, and FLEET_LOCAL_SSD, if there are Local SSDs."""
        bucket = {"FLEET_BUCKET": self.bucket} if self.bucket else {}
        return {**bucket, "FLEET_LOCAL_SSD": LOCAL_SSD_PATH} if self.has_local_ssds else bucket

    @property
    def powers_off(self) -> bool:
        """Return whether instances power off at the end of their lifetime; otherwise Compute Engine deletes them.

        A stop clears the time of the deletion: with a limit of the cost, the disk would cost more. Flex-start VMs
        would lose their capacity. Compute Engine stops unattended instances in any case.
        """
        return self.unattended or not (self.max_cost_usd or self.flex_start or self.is_temporary)

    @property
    def has_fixed_end(self) -> bool:
        """Return whether a start does not move the end of the lifetime: other hosts start instances at any time."""
        return self.unattended and self.max_cost_usd > 0

    @property
    def is_extendable(self) -> bool:
        """Return whether the lifetime can begin again: not that of Flex-start VMs, which cannot be stopped for it."""
        return not self.flex_start

    @property
    def delete_after_s(self) -> int:
        """Return the time from the start of an instance until Compute Engine deletes it, if it runs; 0: never.

        An unattended instance is stopped instead.
        """
        if not self.max_duration_s or not self.powers_off or self.max_cost_usd:
            return self.max_duration_s
        if self.max_duration_s <= BACKSTOP_S:
            return BACKSTOP_S
        return min(MAX_DURATION_MAX_S, self.max_duration_s + POWER_OFF_S)

    @property
    def stop_after_s(self) -> int:
        """Return the time from the start of an instance until it powers off; 0: never."""
        return self.end_after_s if self.powers_off else 0

    @property
    def end_after_s(self) -> int:
        """Return the time from the start of an instance until its jobs must have ended; 0: never."""
        latest_s = max(self.delete_after_s - POWER_OFF_S, self.delete_after_s * 3 // 4)
        return min(self.max_duration_s, latest_s)

    @property
    def root_scripts(self) -> Mapping[str, str]:
        """Return the SHA-256 of the startup script and of the setup command, by their options.

        If there are Local SSDs, the commands that mount them come first, with a fixed name.
        """
        mounting = {"the Local SSDs": LOCAL_SSD} if self.has_local_ssds else {}
        return {**mounting, **{name: digest(text) for name, text in root_scripts(self).items()}}

    @property
    def lost_at_stop(self) -> str:
        """Return the content of Local SSDs, if there are some."""
        return "the content of Local SSDs" if self.has_local_ssds else ""

    def conflicts(self, existing: ProviderOptions) -> list[str]:
        """Return a clause for each option that cannot change; the number of GPUs is one of them."""
        clauses = super().conflicts(existing)
        if self.gpus != existing.gpus:
            clauses.append(f"{self.gpus} GPUs per instance requested, the fleet has {existing.gpus}")
        return clauses
