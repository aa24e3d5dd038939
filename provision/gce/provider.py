"""The provider for Google Compute Engine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provision.gce import bake, create, delete, power
from provision.gce.access import accounts, hosts, networks
from provision.gce.account import Account
from provision.gce.api.client import Api, Timing
from provision.gce.api.prices import PriceList
from provision.gce.api.resources import our_name, scripts
from provision.gce.catalog.gpus import find_gpu
from provision.gce.catalog.machines import completed, is_incomplete, refusal, resolved
from provision.gce.checks import doctor
from provision.gce.money import exceeded, quote_fleet
from provision.gce.options import (
    ENDPOINT_VARIABLE,
    GceOptions,
    check_account,
    check_items,
    check_login,
    complete_scopes,
    is_loopback,
)
from provision.gce.power import termination_reasons
from provision.model import Baking, Finding, FleetSpec, Host, Image, Instance, Orphan, Quote, SshAccess
from provision.provider import ErrorKind, Journal, Progress, Provider, ProviderError, Site

WORKERS_MAX = 1000
_UNSET_ENDPOINT = f"unset {ENDPOINT_VARIABLE}"

_NETWORK = re.compile(r"projects/([^/]+)/")


class GceProvider(Provider):
    """Creates instances in one project, with labels for their fleet and owner by which they are listed.

    Args:
        owner: ID of the state directory; part of every name, so that names of two owners in a project differ.
        user: Login and computer of the user, for other users of the project.
        journal: Journal in which intents are written before each call.
        cloud: Options with the project and endpoint of all calls.
        timing: Timeouts and intervals; None: the defaults.
        clock: Returns the time in seconds since the epoch.
        price_file: File with the latest price list; None: only the prices of this program are used.
        report: Takes what a call waits for.
    """

    name = "gce"

    def __init__(
        self,
        owner: str,
        user: str,
        journal: Journal,
        cloud: GceOptions,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.time,
        price_file: Path | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        api = Api(cloud.project, cloud.endpoint, timing or Timing(), clock, report)
        self._cloud = cloud
        host = _NETWORK.search(cloud.network)
        self._account = Account(
            api,
            journal,
            owner,
            user,
            host_project=host[1] if host and host[1] != cloud.project else "",
            price_list=PriceList(api, price_file) if price_file else None,
            disk_type=cloud.disk_type,
            clock=clock,
        )

    @classmethod
    def open(cls, options: GceOptions, site: Site) -> GceProvider:
        """Return the provider of a project."""
        prices = site.directory / "gce" / "prices.json"
        return cls(site.owner(), site.user, site.journal, options, price_file=prices, report=site.report)

    @classmethod
    def change(cls, options: GceOptions, given: Mapping[str, Any]) -> GceOptions:
        """Return options with some changed, and with the full names of GPUs and machine type.

        Args:
            options: Options to change.
            given: Values by field; the value of `gpu` may have a number, ``t4:2``.

        Raises:
            ValueError: a value is invalid, or values contradict each other.
        """
        fields = dict(given)
        gpu = fields.pop("gpu", None)
        if "scopes" in fields:
            fields["scopes"] = complete_scopes(fields["scopes"])
        if gpu is not None:
            name, colon, _ = gpu.strip().lower().partition(":")
            fields |= {"gpu": name, "gpus": find_gpu(gpu)[1] if colon else 0}
        if "ssh_user" in fields:
            check_login(fields["ssh_user"])
        changed = replace(options, **fields)
        check_items(changed)
        try:
            cloud = resolved(changed)
        except ValueError:
            if not gpu or "machine_type" in fields or not options.machine_type:
                raise
            cloud = resolved(replace(changed, machine_type=""))  # the machine type belonged to the previous GPUs
        if "service_account" in fields:
            check_account(cloud)
        return cloud

    # --- before any money -------------------------------------------------------------------------------------

    def check(self, spec: FleetSpec) -> None:
        """Check the spec and the programs of this computer, without a call.

        Raises:
            ProviderError: `spec` is invalid, or a program is missing on this computer.
        """
        super().check(spec)
        try:
            cloud = _options(spec)
        except ValueError as error:
            raise ProviderError(ErrorKind.USAGE, str(error), next_steps=[("fleet", "up", "--help")]) from error
        if spec.workers > WORKERS_MAX:
            message = f"a fleet has at most {WORKERS_MAX} workers, {spec.workers} requested"
            raise ProviderError(ErrorKind.USAGE, message, again={"--workers": str(WORKERS_MAX)})
        if (refused := refusal(cloud) or exceeded(self._account, spec.name, cloud)) is not None:
            raise refused
        _check_endpoint(cloud.endpoint)
        if not cloud.external:
            hosts.find_gcloud()

    def complete(self, spec: FleetSpec) -> FleetSpec:
        """Return `spec` with the GPUs and image of its machine type, if only Compute Engine knows them.

        Raises:
            ProviderError: the machine type cannot be read, or is not supported.
        """
        cloud = _options(spec)
        if not is_incomplete(cloud):
            return spec
        with self._account.errors_while("read the machine type"):
            machine_types = self._account.api.machine_types(cloud.machine_type)
        return replace(spec, options=completed(cloud, machine_types[0])) if machine_types else spec

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """Return zones in the order in which they will be tried, and prices; check quotas and settings.

        Raises:
            ProviderError: credentials, project, quota, network, image, or machine type cannot be used.
        """
        with self._account.errors_while("prepare the fleet"):
            return quote_fleet(self._account, self._account.fleet(spec), names)

    def doctor(self, workers: int = 1) -> Sequence[Finding]:
        """Check credentials, project, API, permissions, and quotas; return each result and how to fix it."""
        return doctor(self._account, resolved(self._cloud), workers)

    # --- instances --------------------------------------------------------------------------------------------

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Create the instances `names`, all in one zone or none.

        Raises:
            ProviderError: they cannot be created; instances of the attempt are deleted.
        """
        with self._account.errors_while("create the instances"):
            self._account.settle(spec.name)
            create.create(self._account, self._account.fleet(spec), names, progress)

    def list(self, fleet: str | None = None) -> list[Instance]:
        """Return the instances of `fleet`, or of all fleets of this owner for None, ordered by fleet and index.

        Raises:
            ProviderError: Compute Engine does not answer.
        """
        with self._account.errors_while("list the instances"):
            if fleet:
                self._account.settle(fleet)
            return self._account.convert(self._account.resources(fleet))

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
        """Return the hosts of `instances`, in their order; the host keys are from their guest attributes.

        Raises:
            ProviderError: an instance does not run, or has not published its host key.
        """
        with self._account.errors_while("list the instances"):
            return hosts.hosts(self._account, self._account.fleet(spec), instances)

    def forget_host_keys(self) -> None:
        """Let `hosts` read the guest attributes again."""
        self._account.keys.clear()

    def open_ssh(self, spec: FleetSpec, *, make: bool = False) -> SshAccess:
        """Admit this computer in the fleet's firewall rule; ranges that the user gave are not widened.

        Raises:
            ProviderError: the address of this computer is unknown, or the rule cannot be changed.
        """
        change = networks.open_firewall if make else networks.follow_caller
        with self._account.errors_while("update the firewall rule of the fleet"):
            return change(self._account, self._account.fleet(spec))

    # --- images -----------------------------------------------------------------------------------------------

    def plan_image(self, spec: FleetSpec) -> Baking:
        """Return the image from which prepared hosts of `spec` would boot, and how it is made; change nothing.

        Raises:
            ProviderError: the image cannot be made.
        """
        with self._account.errors_while("plan the image"):
            return bake.plan(self._account, self._account.fleet(spec))

    def bake(self, spec: FleetSpec, image: str, progress: Progress) -> Image:
        """Create an image of the only host of `spec`, without its keys; the host is stopped.

        Raises:
            ProviderError: the image could not be created; the host may still run.
        """
        with self._account.errors_while("create the image"):
            return bake.bake(self._account, self._account.fleet(spec), image, progress)

    # --- the end ----------------------------------------------------------------------------------------------

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Delete `instances` with their disks, and wait until they are gone; a missing instance is success.

        Raises:
            ProviderError: an instance could not be deleted.
        """
        with self._account.errors_while("delete the instances"):
            targets = self._account.existing(instances)
            delete.delete_instances(self._account, targets, progress)
        deleted = {str(resource.id) for resource in targets}
        for worker in instances:
            if worker.id not in deleted:
                progress(worker.name, "deleted")

    def delete_fleet(self, fleet: str, progress: Progress) -> Sequence[str]:
        """Delete instances, disks, addresses and firewall rules of `fleet` together, and list again.

        Raises:
            ProviderError: a resource could not be deleted, or the remaining resources cannot be listed.
        """
        account = self._account
        with account.errors_while(f"delete fleet {fleet}"):
            is_complete = account.settle(fleet)
            instances = account.resources(fleet)
            for resource in instances:
                progress(our_name(resource), "deleting")
            if not is_complete:
                existing = [each for each in delete.of_fleet(account, fleet) if each.kind == "instance"]
                delete.delete_things(account, existing)
                # Disks are deleted after that: instances that such a call creates use disks of the same names.
                account.await_calls(fleet, progress)
            left = delete.delete_fleet(account, fleet)
            accounts.remove_key(account, fleet)
        names = {orphan.name for orphan in left}
        for resource in instances:
            if resource.name not in names:
                progress(our_name(resource), "deleted")
        return sorted(f"{orphan.kind} {orphan.name}" for orphan in left)

    def orphans(self) -> Sequence[Orphan]:
        """Return the resources of all fleets in the project, of any owner, recorded on this computer or not.

        Raises:
            ProviderError: Compute Engine does not answer.
        """
        with self._account.errors_while("list orphaned resources"):
            delete.find_host_project(self._account)
            delete.await_insertions(self._account)
            return delete.things(self._account)

    def delete_orphans(self, orphans: Sequence[Orphan], progress: Progress) -> Sequence[str]:
        """Delete `orphans`, and list again.

        Returns:
            Kinds and names of the resources that still exist.

        Raises:
            ProviderError: a resource could not be deleted.
        """
        with self._account.errors_while("delete orphaned resources"):
            for orphan in orphans:
                progress(orphan.name, "deleting")
            delete.delete_things(self._account, orphans)
            left = delete.remaining(self._account, orphans)
        for orphan in orphans:
            if orphan not in left:
                progress(orphan.name, "deleted")
        return [f"{orphan.kind} {orphan.name}" for orphan in left]

    def silent_zones(self) -> Sequence[str]:
        """Return the zones that did not answer the last list of resources."""
        return sorted(self._account.silent)

    # --- while it lives ---------------------------------------------------------------------------------------

    def extend(self, instances: Sequence[Instance], seconds: float, progress: Progress) -> None:
        """Let the lifetime of `instances` end this many seconds from now.

        Raises:
            ProviderError: the deadline cannot be changed.
        """
        cloud = power.with_lifetime(self._cloud, seconds)
        with self._account.errors_while("change the lifetime of the instances"):
            targets = self._account.existing(instances)
            existing = {str(resource.id) for resource in targets}
            if gone := [worker.name for worker in instances if worker.id not in existing]:
                message = f"{', '.join(gone)} does not exist any more; the lifetime was not changed"
                raise ProviderError(ErrorKind.UNREACHABLE, message, next_steps=[("fleet", "up")])
            power.extend(self._account, cloud, targets, progress)
            for fleet in sorted({worker.fleet for worker in instances}):
                accounts.extend_key(self._account, fleet, cloud.delete_after_s)

    def extension_warning(self, instances: Sequence[Instance], seconds: float) -> str:
        """Return a warning if Compute Engine would delete `instances` before their new lifetime ends.

        Raises:
            ProviderError: they cannot have this lifetime, or the limit of the cost does not pay for it.
        """
        with self._account.errors_while("change the lifetime of the instances"):
            return power.check(self._account, self._cloud, seconds, self._account.existing(instances))

    def stop(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Stop `instances`, and wait until they are stopped; they keep their disks.

        Raises:
            ProviderError: an instance does not stop.
        """
        with self._account.errors_while("stop the instances"):
            for fleet in sorted({worker.fleet for worker in instances}):
                if not self._account.settle(fleet):
                    self._account.await_calls(fleet, progress)
            power.stop(self._account, self._account.existing(instances), progress)

    def stop_at(self, instances: Sequence[Instance], at: float) -> bool:
        """Let instances power off by themselves at a time, in seconds since the epoch; 0: when their lifetime ends.

        Returns:
            True if every instance has confirmed the time; for 0, True without waiting.

        Raises:
            ProviderError: the time cannot be set.
        """
        with self._account.errors_while("set the stop time of the instances"):
            if not at:
                power.release(self._account, self._cloud, self._account.existing(instances))
                return True
            targets = self._account.existing(instances)
            return power.stop_at(self._account, targets, round(at + self._account.api.ahead_s))

    def update_scripts(self, spec: FleetSpec, instances: Sequence[Instance]) -> None:
        """Let root run the startup script and the setup command of `spec` on running instances, if they changed.

        Raises:
            ProviderError: the metadata of the instances cannot be changed.
        """
        with self._account.errors_while("change the scripts of the instances"):
            targets = self._account.existing(instances)
            power.set_items(self._account, targets, scripts(_options(spec)), "changing the scripts")

    def termination_reasons(self, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return the reasons that Compute Engine knows why instances are gone or stopped, each as a clause.

        Raises:
            ProviderError: Compute Engine does not answer.
        """
        with self._account.errors_while("read the state of the instances"):
            return termination_reasons(self._account, fleet, names)


def _options(spec: FleetSpec) -> GceOptions:
    return resolved(GceOptions.of(spec.options))


def _check_endpoint(endpoint: str) -> None:
    if not endpoint:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        message = f"the endpoint {endpoint!r} is not the URL of a Compute Engine API"
        raise ProviderError(ErrorKind.USAGE, message, hint="write it as https://HOST", next_steps=[_UNSET_ENDPOINT])
    if parts.scheme == "http" and not is_loopback(endpoint):
        message = f"the endpoint {endpoint!r} would send the credentials unencrypted"
        hint = f"write it as https{endpoint.removeprefix('http')}"
        raise ProviderError(ErrorKind.USAGE, message, hint=hint, next_steps=[_UNSET_ENDPOINT])
