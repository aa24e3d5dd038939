"""Options of fleets on Google Compute Engine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import ClassVar
from urllib.parse import urlsplit

from provision.model import Command
from provision.options import (
    COUNT,
    DURATION,
    FILE,
    FLAG,
    MONEY,
    PAIRS,
    TEXT,
    TEXTS,
    InvalidOptionError,
    PreemptionNotice,
    ProviderOptions,
    option,
    split_pair,
)

GENERAL = "Compute Engine"
MONEY_AND_TIME = "Price and lifetime on Compute Engine"
NETWORK = "Network and access on Compute Engine"
PREPARATION = "Preparation of instances on Compute Engine"
ENDPOINT_VARIABLE = "FLEET_GCE_ENDPOINT"


def _check_endpoint(value: str) -> None:
    """Raise ValueError for an endpoint to which a file, maybe of another user, must not send credentials."""
    if not is_loopback(value) and not f".{urlsplit(value).hostname or ''}".endswith(".googleapis.com"):
        raise ValueError(f"must be a googleapis.com or loopback URL; set others with {ENDPOINT_VARIABLE}")


def is_loopback(url: str) -> bool:
    """Return whether the API at this URL is on this computer."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


LOCAL_SSD, LOCAL_SSD_GB = "local-ssd", 375
"""Disk type of Local SSDs, also the name of the result of mounting them; and the size of an attached one."""
LOCAL_SSD_PATH = "/mnt/localssd"
"""Mount point of the Local SSDs of an instance, which provision/gce/api/startup.sh mounts."""
_WITH_LOCAL_SSDS = re.compile(r"(?:a2-ultragpu|a3|a4x?|z3)-|.*lssd\b", re.ASCII)
"""Machine types that come with Local SSDs: https://cloud.google.com/compute/docs/disks/add-local-ssd."""
STOP_AT = "fleet-stop-at"
"""Metadata item with the time at which an instance powers off by itself, in seconds since the epoch; 0: never."""
END_AT = "fleet-end-at"
"""Metadata item with the time by which all jobs must have ended, in seconds since the epoch; 0: never."""
BACKSTOP_S = 7 * 24 * 3600
"""Time after which Compute Engine deletes instances that did not power off. With a longer one, GPUs may not use the
quota for preemptible instances: https://cloud.google.com/compute/docs/instances/limit-vm-runtime."""
MAX_DURATION_MAX_S = 120 * 24 * 3600
"""Longest such time: https://cloud.google.com/compute/docs/instances/limit-vm-runtime."""
IDLE_TIMEOUT = "fleet-idle-timeout"
"""Metadata item with the time in seconds without a job and a login after which an instance powers off."""
IDLE_TIMEOUT_MIN_S = 300
POWER_OFF_S = 600
"""Shortest time between the power-off of instances, or the end of their jobs, and their deletion."""
SCHEME = "gs://"

_general = partial(option, group=GENERAL)
_money = partial(option, group=MONEY_AND_TIME)
_rare = partial(option, group=GENERAL, rare=True)
_network = partial(option, group=NETWORK, rare=True)
_prepare = partial(option, group=PREPARATION, rare=True)


@dataclass(frozen=True)
class GceOptions(ProviderOptions):
    """Options of the instances of a fleet, and their zones; help texts list them in this order.

    Attributes:
        project: Project that pays; empty: the project of the credentials.
        endpoint: URL of the API, for a private one; empty: the public one.
        zones: Zones (``us-central1-a``) or regions (``us-central1``) in order of preference; empty: by price.
        anywhere: Without `zones`, zones of all continents are tried; otherwise only those of the cheapest zone's.
        max_price_usd_h: Limit of the price of one instance in US dollars an hour; 0: none.
        machine_type: ``n1-standard-4``; empty: the default for the GPU.
        gpu: Type of the GPUs, ``nvidia-tesla-t4``; empty: none.
        gpus: GPUs of each instance.
        spot: Use Spot VMs.
        placement: ``compact``: the instances are close to each other; ``any``: anywhere in the zone; empty: the
            default for the machine type.
        flex_start: Use Flex-start VMs.
        reservation: Reservation that the instances use, or its path ``projects/P/reservations/NAME``; empty: none.
        wait_s: Time for which Compute Engine may queue a request for Flex-start VMs; 0: it does not.
        local_ssds: Local SSDs of each instance, in addition to those that its machine type comes with.
        max_duration_s: Time from the start of an instance until it powers off, or is deleted; 0: never.
        max_cost_usd: Limit of the cost of the fleet, which shortens this time; 0: none.
        idle_timeout_s: Time without a job and without a login after which an instance powers off, and time without
            activity after which a job is ended; 0: never.
        is_temporary: The instances are deleted after this time and do not power off; not an option.
        image: Boot image, ``projects/P/global/images/family/F``; empty: the default.
        disk_gb: Size of the boot disk.
        disk_type: Type of the boot disk, ``pd-balanced``; empty: the default for the machine type.
        labels: Further labels of instances and their disks, ``KEY=VALUE``.
        tags: Further network tags of instances.
        network: VPC network: a name, or ``projects/P/global/networks/N`` of a Shared VPC.
        subnetwork: Subnetwork in it; empty: the one of the region.
        firewall: Create firewall rules for the fleet; otherwise existing rules must admit its traffic.
        external: Each instance has an external address; otherwise SSH goes through Identity-Aware Proxy.
        ssh_from: Addresses that may use SSH, in CIDR notation; empty: only the caller's.
        os_login: Log in with OS Login, not with a key in the metadata of the instances.
        ssh_user: Login name on the instances without OS Login.
        ssh_port: Port of the image's sshd.
        scopes: OAuth scopes of the instances' service account; empty: no account.
        service_account: E-mail address of that account; empty: the project's default, if there are scopes.
        bucket: URL of a bucket, ``gs://training-data``, that jobs find in FLEET_BUCKET; empty: none.
        startup_script: Content of a script that root runs at each boot; empty: none.
        setup: Shell command that root runs once per content; empty: none.
        metadata: Further metadata items, ``KEY=VALUE``.
    """

    # fmt: off
    project: str = _general("", TEXT, "project", metavar="ID", default="the project of your credentials",
        variables=("FLEET_GCE_PROJECT", "GOOGLE_CLOUD_PROJECT"), scope=True, help="Google Cloud project to bill.")
    endpoint: str = option("", TEXT, "endpoint", variables=(ENDPOINT_VARIABLE,), scope=True,
        check_file=_check_endpoint)
    zones: tuple[str, ...] = _general((), TEXTS, "zones", flags=("--zone",), metavar="ZONE", default="cheapest first",
        help="Zone or region to try; repeatable, tried in order.")
    anywhere: bool = _rare(False, FLAG, "anywhere", label="all continents:", fixed=False,
        help="Try zones on all continents, not only on the one with the cheapest zone.")
    max_price_usd_h: float = _money(0.0, MONEY, "max-price", metavar="USD", default="no limit",
        label="limit of the price", fixed=False, help="Limit of the price of one worker per hour, with disk and "
        "address; 0 disables it.")
    machine_type: str = _general("", TEXT, "machine-type", metavar="TYPE", default="chosen for the GPU",
        help="Machine type, e.g. n1-standard-8.")
    gpu: str = _general("", TEXT, "gpu", metavar="TYPE[:N]", default="none", label="GPU type",
        help="GPUs per worker, e.g. t4 or t4:2.")
    spot: bool = _general(False, FLAG, "spot", help="Use Spot VMs: cheaper, but may be preempted at any time.")
    placement: str = _rare("", TEXT, "placement", metavar="compact|any", default="compact for A3 and A4",
        help="Place the instances close to each other, or anywhere in the zone.")
    flex_start: bool = _rare(False, FLAG, "flex-start", label="Flex-start VMs:",
        help="Use Flex-start VMs: cheaper GPUs for up to 7 days that are not preempted.")
    wait_s: int = _rare(0, DURATION, "wait", metavar="TIME", default="not queued", label="time in the queue",
        fixed=False, help="Time for which Compute Engine queues a request for Flex-start VMs, up to 2h.")
    reservation: str = _rare("", TEXT, "reservation", metavar="NAME",
        help="Reservation to use, or the path of a shared one, projects/P/reservations/NAME.")
    local_ssds: int = _rare(0, COUNT, "local-ssd", metavar="N", label="number of Local SSDs",
        help="Local SSDs per worker, of 375 GB each, mounted at /mnt/localssd.")
    max_duration_s: int = _money(8 * 3600, DURATION, "max-duration", metavar="TIME", label="maximum lifetime",
        help="Maximum lifetime: after that, jobs end with a checkpoint, and the instances power off; 0 disables it.")
    max_cost_usd: float = _money(0.0, MONEY, "max-cost", metavar="USD", default="no limit", label="limit of the cost",
        fixed=False, help="Limit of the fleet's cost: Compute Engine deletes the instances before it is reached; 0 "
        "disables it.")
    idle_timeout_s: int = _money(0, DURATION, "idle-timeout", metavar="TIME", default="disabled",
        label="idle timeout", help="Power instances off after this time without an active job and without a login; "
        "0 disables it.")
    is_temporary: bool = False
    image: str = _rare("", TEXT, "image", metavar="IMAGE", default="Ubuntu 24.04; with GPUs a Deep Learning image",
        help="Boot image, e.g. projects/P/global/images/family/F.")
    disk_gb: int = _general(100, COUNT, "disk-size", metavar="GB", label="disk size in GB",
        help="Size of the boot disk.")
    disk_type: str = _rare("", TEXT, "disk-type", metavar="TYPE", default="chosen for the machine type",
        help="Type of the boot disk, e.g. pd-standard.")
    labels: tuple[str, ...] = _rare((), PAIRS, "labels", flags=("--label",), metavar="KEY=VALUE",
        help="Label of the instances and their disks. Repeatable.")
    tags: tuple[str, ...] = _network((), TEXTS, "tags", flags=("--tag",), metavar="NAME",
        help="Network tag of the instances. Repeatable.")
    network: str = _network("default", TEXT, "network", metavar="NAME",
        help="VPC network, or the path of a shared one, projects/P/global/networks/N.")
    subnetwork: str = _network("", TEXT, "subnet", metavar="NAME", default="the one of the region",
        label="subnetwork", help="Subnetwork, or its path.")
    firewall: bool = _network(True, FLAG, "firewall", fixed=False,
        help="Create firewall rules for the fleet, or rely on existing ones.")
    external: bool = _network(True, FLAG, "iap", label="Identity-Aware Proxy:", negated=True,
        help="No external addresses; SSH goes through Identity-Aware Proxy.")
    ssh_from: tuple[str, ...] = _network((), TEXTS, "ssh-from", metavar="CIDR", default="your public address",
        fixed=False, help="Source range allowed to use SSH. Repeatable.")
    os_login: bool = _network(False, FLAG, "os-login", default="if the project or its organization requires it",
        label="OS Login:", help="Log in with OS Login.")
    ssh_user: str = option("fleet", TEXT, "ssh-user", label="login name")
    ssh_port: int = option(22, COUNT, "ssh-port", label="SSH port")
    scopes: tuple[str, ...] = _network((), TEXTS, "scopes", metavar="SCOPE", default="none",
        help="OAuth scope of the service account, e.g. devstorage.read_only. Repeatable.")
    service_account: str = _network("", TEXT, "service-account", metavar="EMAIL",
        default="none; with --scopes or --bucket that of the project", help="Service account of the instances.")
    bucket: str = _general("", TEXT, "bucket", metavar="URL",
        help="Cloud Storage bucket for data, checkpoints, and models, e.g. gs://training-data.")
    startup_script: str = _prepare("", FILE, "startup-script", metavar="FILE", fixed=False,
        help="Script that root runs on each instance at each boot.")
    setup: str = _prepare("", TEXT, "setup", metavar="CMD", fixed=False,
        help="Shell command that root runs once on each instance, before packages are installed.")
    metadata: tuple[str, ...] = _prepare((), PAIRS, "metadata", metavar="KEY=VALUE",
        help="Metadata item of the instances. Repeatable.")
    # fmt: on

    implementation: ClassVar[str] = "provision.gce.provider:GceProvider"
    title: ClassVar[str] = "Compute Engine"
    rents: ClassVar[bool] = True
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
    )

    @property
    def includes_local_ssds(self) -> bool:
        """Return whether the machine type comes with Local SSDs; False if only Compute Engine knows."""
        return _WITH_LOCAL_SSDS.match(self.machine_type) is not None

    @property
    def has_local_ssds(self) -> bool:
        """Return whether the instances have Local SSDs, attached or included."""
        return self.local_ssds > 0 or self.includes_local_ssds

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
        would lose their capacity.
        """
        return not (self.max_cost_usd or self.flex_start or self.is_temporary)

    @property
    def is_extendable(self) -> bool:
        """Return whether the lifetime can begin again: not that of Flex-start VMs, which cannot be stopped for it."""
        return not self.flex_start

    @property
    def delete_after_s(self) -> int:
        """Return the time from the start of an instance until Compute Engine deletes it, if it runs; 0: never."""
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


Row = tuple[object, str, Mapping[str, str | bool | None] | None]
"""A condition, its message if it is met, and the options of ``fleet up`` to change; None: do not repeat it."""


def refuse(rows: Iterable[Row], command: Command | None = None) -> None:
    """Raise an error with the message of the first row that applies; `command` lists valid values.

    Raises:
        ValueError: a row applies; the text is for the user.
    """
    for applies, message, again in rows:
        if applies:
            steps = [command] if command else []
            raise InvalidOptionError(message, again, steps) if again or steps else ValueError(message)


# --- labels, tags, metadata, and scripts --------------------------------------------------------------------------

_RESERVED = frozenset(
    {
        *("ssh-keys", "sshKeys", "block-project-ssh-keys", "enable-guest-attributes"),
        *("enable-oslogin", "startup-script", "startup-script-url"),
    }
)


def root_scripts(cloud: GceOptions) -> Mapping[str, str]:
    """Return the scripts that root runs, in their order, by the option that gives them."""
    scripts = {"--startup-script": cloud.startup_script, "--setup": cloud.setup}
    return {name: text for name, text in scripts.items() if text}


def digest(text: str) -> str:
    """Return the SHA-256 of a script, by which its result on a host is found."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_items(cloud: GceOptions) -> None:
    """Check that the user does not set labels and metadata of fleet; Compute Engine checks their form.

    Raises:
        InvalidOptionError: an option sets one of them, or is not a pair.
    """
    for text in cloud.labels:
        key, _ = split_pair(text, "--label")
        is_set = key.partition("-")[0] == "fleet"
        refuse([(is_set, f"--label {key}: fleet sets this label itself", {"--label": None})])
    for text in cloud.metadata:
        key, _ = split_pair(text, "--metadata")
        is_set = key in _RESERVED or key.startswith("fleet-")
        refuse([(is_set, f"--metadata {key}: fleet sets this item itself", {"--metadata": None})])


# --- logins and accounts ------------------------------------------------------------------------------------------

_TAKEN = re.compile(
    r"adm|admin|audio|backup|bin|cdrom|crontab|daemon|dialout|dip|disk|docker|fax|floppy|games|google-sudoers|"
    r"input|irc|kmem|kvm|landscape|list|lp|lxd|mail|man|messagebus|netdev|news|no(?:body|group)|operator|plugdev|"
    r"polkitd|proxy|rdma|render|sasl|sgx|shadow|src|ssh|sshd|staff|sudo|sync|sys|syslog|systemd-.*|tape|tcpdump|"
    r"tss|tty|users|utmp|uucp|uuidd|video|voice|www-data"
)
"""Groups and system accounts of the images: the guest agent cannot create a user of these names."""


def check_login(name: str) -> None:
    """Check that the guest agent of an image can create this user.

    Raises:
        ValueError: it cannot.
    """
    if _TAKEN.fullmatch(name):
        raise ValueError(f"ssh-user {name!r} is a group or an account of the images: choose another name")
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name, re.ASCII):
        raise ValueError(f"invalid ssh-user {name!r}; a login name has up to 32 of the characters a-z, 0-9, _, and -")


_SCOPES = "https://www.googleapis.com/auth/"
_SCOPE = re.compile(r"https://[!-~]+|[a-z_-]+(?:[.][a-z_]+)*", re.ASCII)
"""A scope, or the end of a scope of Google: https://developers.google.com/identity/protocols/oauth2/scopes."""
_LIST = ("gcloud", "iam", "service-accounts", "list")


def complete_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return OAuth scopes as URLs.

    Raises:
        InvalidOptionError: a scope does not have the form of one.
    """
    message = "is not an OAuth scope, such as devstorage.read_only; others are given as URLs"
    refuse((not _SCOPE.fullmatch(each), f"--scopes {each!r} {message}", {"--scopes": None}) for each in scopes)
    return tuple(scope if ":" in scope else _SCOPES + scope for scope in scopes)


def check_account(cloud: GceOptions) -> None:
    """Check the service account of resolved options.

    Raises:
        ValueError: it has no effect, or is not an address.
    """
    email = cloud.service_account
    message = "--service-account requires --scopes or --bucket: without them, instances have no account"
    refuse([(email and not cloud.scopes, message, {"--scopes": "cloud-platform"})])
    form = "NAME@PROJECT.iam.gserviceaccount.com"
    message = f"--service-account {email!r} is not an e-mail address, such as {form}"
    refuse([(email and "@" not in email, message, None)], _LIST)


_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", re.ASCII)
_STORAGE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

_SUFFICIENT_SCOPES = {_STORAGE_SCOPE, f"{_SCOPES}devstorage.full_control", f"{_SCOPES}cloud-platform"}


def check_bucket(cloud: GceOptions) -> None:
    """Raise ValueError if the bucket is not the URL of a bucket; the text is for the user."""
    name = cloud.bucket.removeprefix(SCHEME)
    if cloud.bucket and (not cloud.bucket.startswith(SCHEME) or not _BUCKET_NAME.fullmatch(name)):
        path = f"; add paths in the script or in --checkpoint-dir {cloud.bucket}" if "/" in name.strip("/") else ""
        message = f"invalid bucket {cloud.bucket!r}; expected a URL like gs://training-data{path}"
        first = name.strip("/").partition("/")[0]
        raise InvalidOptionError(message, {"--bucket": f"{SCHEME}{first}" if _BUCKET_NAME.fullmatch(first) else None})


def with_storage_scope(cloud: GceOptions) -> GceOptions:
    """Return `cloud` with the scope that lets instances read and write its bucket, if it has one."""
    if not cloud.bucket or not _SUFFICIENT_SCOPES.isdisjoint(cloud.scopes):
        return cloud
    return replace(cloud, scopes=(*cloud.scopes, _STORAGE_SCOPE))
