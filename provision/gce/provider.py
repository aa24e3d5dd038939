"""Instances on Google Compute Engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from provision.gce import creation, deadline, deletion, expiry, firewall, preflight
from provision.gce.account import Account
from provision.gce.catalog.machines import find_gpu, may_bring_gpus, refusal, resolved, with_accelerators
from provision.gce.options import GceOptions, options_of
from provision.gce.rest.api import Api, Json, Timing, is_loopback
from provision.gce.rest.resources import addresses, in_order, instance, our_name, zone_of
from provision.gce.termination import termination_reasons
from provision.model import Finding, FleetSpec, Host, Instance, InstanceState, Orphan, Quote, SshAccess
from provision.provider import ErrorKind, Journal, Progress, Provider, ProviderError, Site

WORKERS_MAX = 1000
_SCOPES = "https://www.googleapis.com/auth/"

_NETWORK = re.compile(r"projects/([^/]+)/")


class GceProvider(Provider):
    """Makes instances in one project; they carry the labels of their fleet and owner, by which they are found.

    Args:
        owner: Of the state directory; part of every name, so that two owners in a project never meet.
        user: Who and where, for people who find the instances.
        journal: Where intents are written before each call.
        cloud: Project and endpoint of all calls.
        timing: How long to wait for what.
    """

    name = "gce"

    def __init__(
        self, owner: str, user: str, journal: Journal, cloud: GceOptions, timing: Timing | None = None
    ) -> None:
        api = Api(cloud.project, cloud.endpoint, timing or Timing())
        self._cloud = cloud
        host = _NETWORK.search(cloud.network)
        self._account = Account(
            api, journal, owner, user, host_project=host[1] if host and host[1] != cloud.project else ""
        )

    @classmethod
    def open(cls, options: GceOptions, site: Site) -> GceProvider:
        """Return the provider of a project."""
        return cls(site.owner(), site.user, site.journal, options)

    @classmethod
    def change(cls, options: GceOptions, given: Mapping[str, Any]) -> GceOptions:
        """Return options with some changed, GPUs and machine type by their full names.

        Args:
            options: To be changed.
            given: Values by field; that of `gpu` may have a number, ``t4:2``.

        Raises:
            ValueError: a value is invalid, or values contradict each other.
        """
        fields = dict(given)
        gpu = fields.pop("gpu", None)
        if "scopes" in fields:
            fields["scopes"] = tuple(_SCOPES + scope if "/" not in scope else scope for scope in fields["scopes"])
        if gpu is not None:
            name, colon, _ = gpu.strip().lower().partition(":")
            fields |= {"gpu": name, "gpus": find_gpu(gpu)[1] if colon else 0}
        changed = replace(options, **fields)
        try:
            return resolved(changed)
        except ValueError:
            if not gpu or "machine_type" in fields or not options.machine_type:
                raise
            return resolved(replace(changed, machine_type=""))  # that of the previous GPUs

    # --- before any money -------------------------------------------------------------------------------------

    def check(self, spec: FleetSpec) -> None:
        """Raise ProviderError if `spec` makes no sense, or this computer lacks a program; makes no call."""
        super().check(spec)
        try:
            cloud = resolved(options_of(spec))
        except ValueError as error:
            raise ProviderError(ErrorKind.USAGE, str(error), next_step="fleet up --help") from error
        if spec.workers > WORKERS_MAX:
            raise ProviderError(
                ErrorKind.USAGE, f"A fleet has at most {WORKERS_MAX} workers, {spec.workers} are asked for"
            )
        if (refused := refusal(cloud)) is not None:
            raise ProviderError(
                ErrorKind.USAGE, refused.message, hint=refused.hint, next_step=refused.next_step, again=refused.again
            )
        _check_endpoint(cloud.endpoint)
        if not cloud.external and shutil.which("gcloud") is None:
            raise ProviderError(
                ErrorKind.MISSING,
                "gcloud is not installed on this computer",
                cause="without external addresses SSH goes through Identity-Aware Proxy, which gcloud speaks",
                hint="install it from https://cloud.google.com/sdk/docs/install, or leave --iap out",
            )

    def complete(self, spec: FleetSpec) -> FleetSpec:
        """Return `spec` with the GPUs that its machine type comes with, if only Compute Engine knows them.

        Raises:
            ProviderError: it cannot be asked.
        """
        cloud = resolved(options_of(spec))
        if not may_bring_gpus(cloud):
            return spec
        with self._account.told("look at the machine type"):
            found = self._account.api.machine_types(cloud.machine_type)
        accelerators = next((one["accelerators"] for one in found if one.get("accelerators")), ())
        return replace(spec, options=with_accelerators(cloud, accelerators))

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """Zones in the order in which they will be tried, and prices; quotas and settings are looked at.

        Raises:
            ProviderError: credentials, project, quota, network, image or machine are not as they must be.
        """
        with self._account.told("prepare the fleet"):
            return preflight.quote(self._account, spec, resolved(options_of(spec)), names)

    def doctor(self) -> Sequence[Finding]:
        """Credentials, project, API, permissions, quota: all that is needed, and what mends what is missing."""
        return preflight.doctor(self._account, resolved(self._cloud))

    # --- instances --------------------------------------------------------------------------------------------

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Make the instances `names`, all in one zone or none at all.

        Raises:
            ProviderError: they are not to be had; nothing of the attempt is left.
        """
        with self._account.told("make the instances"):
            self._account.settle(spec.name)
            cloud = resolved(options_of(spec))
            creation.create(self._account, replace(spec, options=cloud), cloud, names, progress)

    def list(self, fleet: str | None = None) -> list[Instance]:
        """Instances of `fleet` (of all fleets of this owner, where it is None), ordered by fleet and index.

        Raises:
            ProviderError: nobody can tell.
        """
        with self._account.told("list the instances"):
            if fleet:
                self._account.settle(fleet)
            return in_order(instance(one) for one in self._account.resources(fleet))

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
        """How SSH reaches `instances`, in their order; the host keys are from their guest attributes.

        Raises:
            ProviderError: one does not run, or has not published its host key.
        """
        cloud = resolved(options_of(spec))
        with self._account.told("find the instances"):
            there = {str(one["id"]): one for one in self._account.resources(spec.name)}
            wanted = [(one, there.get(one.id)) for one in instances]
            running = [found for _, found in wanted if found is not None and found.get("status") == "RUNNING"]
            for one, found in wanted:
                if found not in running:
                    raise _not_running(one)
            late = creation.look_for_keys(self._account, running)
        if late:
            raise ProviderError(
                ErrorKind.UNREACHABLE,
                f"{', '.join(our_name(one) for one in late)} in fleet {spec.name} did not publish a host key yet",
                again={},
            )
        return [self._host(found, cloud, spec.python) for found in running]

    def _host(self, resource: Json, cloud: GceOptions, python: str) -> Host:
        inside, outside = addresses(resource)
        external = cloud.external and outside
        return Host(
            name=our_name(resource),
            address=outside if external else inside,
            port=cloud.ssh_port,
            user=cloud.ssh_user,
            host_key=self._account.keys[str(resource["id"])],
            key_alias=f"compute.{resource['id']}",
            private_address=inside,
            python=python,
            proxy=() if external else self._tunnel(resource, cloud.ssh_port),
        )

    def _tunnel(self, resource: Json, port: int) -> tuple[str, ...]:
        """What reaches an instance through Identity-Aware Proxy."""
        start = ("gcloud", "compute", "start-iap-tunnel", str(resource["name"]), str(port), "--listen-on-stdin")
        return (*start, f"--project={self._account.api.project}", f"--zone={zone_of(resource)}")

    def open_ssh(self, spec: FleetSpec, *, make: bool = False) -> SshAccess:
        """Let this computer through the fleet's firewall rule; ranges that the user named are not widened.

        Raises:
            ProviderError: the address of this computer is not known, or the rule cannot be changed.
        """
        cloud = resolved(options_of(spec))
        with self._account.told("update the firewall rule of the fleet"):
            return (firewall.open_firewall if make else firewall.follow_caller)(self._account, spec, cloud)

    # --- the end ----------------------------------------------------------------------------------------------

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Delete `instances` with their disks, and wait until they are gone; a missing one is success.

        Raises:
            ProviderError: one could not be deleted.
        """
        ids = {one.id for one in instances}
        with self._account.told("delete the instances"):
            fleets = {one.fleet for one in instances}
            there = [one for fleet in sorted(fleets) for one in self._account.resources(fleet)]
            targets = [one for one in there if str(one["id"]) in ids]
            deletion.delete_instances(self._account, targets, progress)
        found = {str(one["id"]) for one in targets}
        for one in instances:
            if one.id not in found:
                progress(one.name, "deleted")

    def delete_fleet(self, fleet: str, progress: Progress) -> Sequence[str]:
        """Delete instances, disks, addresses and firewall rules of `fleet` together, and list again.

        Raises:
            ProviderError: nobody can tell what is left.
        """
        account = self._account
        with account.told(f"delete fleet {fleet}"):
            account.settle(fleet)
            there = deletion.of_fleet(account, fleet)
            instances = account.resources(fleet)
            for one in instances:
                progress(our_name(one), "deleting")
            deletion.delete_things(account, there)
            left = deletion.of_fleet(account, fleet)
        names = {one.name for one in left}
        for one in instances:
            if one["name"] not in names:
                progress(our_name(one), "deleted")
        return sorted(f"{one.kind} {one.name}" for one in left)

    def orphans(self) -> Sequence[Orphan]:
        """All that fleets have in the project, whoever made it and whether anybody still knows of it.

        Raises:
            ProviderError: nobody can tell.
        """
        with self._account.told("look for what fleets left"):
            deletion.await_insertions(self._account)
            return deletion.things(self._account)

    def delete_orphans(self, orphans: Sequence[Orphan], progress: Progress) -> Sequence[str]:
        """Delete `orphans`, and look again.

        Returns:
            Names of those that are still there.

        Raises:
            ProviderError: one could not be deleted.
        """
        with self._account.told("delete what fleets left"):
            for one in orphans:
                progress(one.name, "deleting")
            deletion.delete_things(self._account, orphans)
            left = {(one.kind, one.zone, one.name) for one in deletion.things(self._account)}
        for one in orphans:
            if (one.kind, one.zone, one.name) not in left:
                progress(one.name, "deleted")
        return [f"{one.kind} {one.name}" for one in orphans if (one.kind, one.zone, one.name) in left]

    # --- while it lives ---------------------------------------------------------------------------------------

    def extend(self, instances: Sequence[Instance], seconds: float, progress: Progress) -> None:
        """Let Compute Engine delete `instances` so many seconds from now.

        Raises:
            ProviderError: it does not change the deadline.
        """
        ids = {one.id for one in instances}
        with self._account.told("change when the instances are deleted"):
            there = [one for fleet in {one.fleet for one in instances} for one in self._account.resources(fleet)]
            targets = [one for one in there if str(one["id"]) in ids]
            deadline.extend(self._account, targets, round(seconds), progress)

    def stop_at(self, instances: Sequence[Instance], at: float) -> bool:
        """Let instances power off by themselves at a time, in seconds since the epoch; 0: never.

        Returns:
            Whether every instance has confirmed it.

        Raises:
            ProviderError: it cannot be set.
        """
        ids = {one.id for one in instances}
        with self._account.told("set when the instances stop"):
            there = [one for fleet in {one.fleet for one in instances} for one in self._account.resources(fleet)]
            targets = [one for one in there if str(one["id"]) in ids]
            return expiry.stop_at(self._account, targets, round(at))

    def termination_reasons(self, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
        """Why instances are gone or stopped, each as a clause; those of which Compute Engine knows.

        Raises:
            ProviderError: nobody can tell.
        """
        with self._account.told("find out what became of the instances"):
            return termination_reasons(self._account, fleet, names)


def _check_endpoint(endpoint: str) -> None:
    if not endpoint:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ProviderError(
            ErrorKind.USAGE,
            f"The endpoint {endpoint!r} is no URL of a Compute Engine API",
            hint="write it as https://HOST",
        )
    if parts.scheme == "http" and not is_loopback(endpoint):
        raise ProviderError(
            ErrorKind.USAGE,
            f"The endpoint {endpoint!r} would carry the credentials unencrypted",
            hint=f"write it as https{endpoint.removeprefix('http')}",
        )


def _not_running(one: Instance) -> ProviderError:
    state = one.state.value if one.state is not InstanceState.RUNNING else "gone"
    return ProviderError(
        ErrorKind.UNREACHABLE,
        f"{one.name} in fleet {one.fleet} is not running: it is {state}",
        next_step="fleet up",
    )
