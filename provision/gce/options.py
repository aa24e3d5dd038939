"""Options of fleets on Google Compute Engine."""

from __future__ import annotations

from ipaddress import ip_address
from typing import ClassVar
from urllib.parse import urlsplit

from provision.deferred import dataclass
from provision.options import COUNT, DURATION, FLAG, TEXT, TEXTS, PreemptionNotice, ProviderOptions, option

ENDPOINT_VARIABLE = "FLEET_GCE_ENDPOINT"

_GROUP = "Compute Engine"
_NETWORK = "Network and access on Compute Engine"


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


@dataclass(frozen=True)
class GceOptions(ProviderOptions):
    """Options of the instances of a fleet, and the zones they may be in.

    Attributes:
        project: Project that pays; empty: the project of the credentials.
        endpoint: URL of the API, for a private one; empty: the public one.
        zones: Zones (``us-central1-a``) or regions (``us-central1``) in order of preference; empty: by price.
        machine_type: ``n1-standard-4``; empty: the default for the GPU.
        gpu: Type of the GPUs, ``nvidia-tesla-t4``; empty: none.
        gpus: GPUs of each instance.
        spot: Use Spot VMs.
        max_duration_s: Time from the start of an instance until Compute Engine deletes it; 0: never.
        image: Boot image, ``projects/P/global/images/family/F``; empty: the default.
        disk_gb: Size of the boot disk.
        disk_type: Type of the boot disk, ``pd-balanced``; empty: the default for the machine type.
        network: VPC network: a name, or ``projects/P/global/networks/N`` of a Shared VPC.
        subnetwork: Subnetwork in it; empty: the one of the region.
        firewall: Create firewall rules for the fleet; otherwise existing rules must admit its traffic.
        external: Each instance has an external address; otherwise SSH goes through Identity-Aware Proxy.
        ssh_from: Addresses that may use SSH, in CIDR notation; empty: only the caller's.
        ssh_user: Login name on the instances.
        ssh_port: Port of the image's sshd.
        scopes: OAuth scopes of the instances' service account; empty: no account.
        service_account: E-mail address of that account; empty: the project's default, if there are scopes.
    """

    implementation: ClassVar[str] = "provision.gce.provider:GceProvider"
    title: ClassVar[str] = "Compute Engine"
    rents: ClassVar[bool] = True
    extend_warning: ClassVar[str] = "Compute Engine may have to restart the instances"
    # 30 s before the host is taken. The address is that of metadata.google.internal; Google's libraries use the
    # variable, too. Sources: https://cloud.google.com/compute/docs/instances/create-use-spot (detecting preemption),
    # https://cloud.google.com/compute/docs/metadata/querying-metadata (wait_for_change, last_etag, timeout_sec).
    preemption_notice = PreemptionNotice(
        product="Google Compute Engine",
        url="http://169.254.169.254/computeMetadata/v1/instance/preempted",
        variable="GCE_METADATA_HOST",
        headers={"Metadata-Flavor": "Google"},
        value="TRUE",
        wait="wait_for_change=true&last_etag={etag}&timeout_sec={seconds}",
    )

    project: str = option(
        "",
        TEXT,
        "project",
        metavar="ID",
        help="Google Cloud project to bill.",
        default="the project of your credentials",
        group=_GROUP,
        variables=("FLEET_GCE_PROJECT", "GOOGLE_CLOUD_PROJECT"),
        selects=True,
        scope=True,
    )
    endpoint: str = option(
        "", TEXT, "endpoint", variables=(ENDPOINT_VARIABLE,), scope=True, check_file=_check_endpoint
    )
    zones: tuple[str, ...] = option(
        (),
        TEXTS,
        "zones",
        flags=("--zone",),
        metavar="ZONE",
        help="Zone or region to try; repeatable, tried in order.",
        default="cheapest first",
        group=_GROUP,
        selects=True,
    )
    machine_type: str = option(
        "",
        TEXT,
        "machine-type",
        metavar="TYPE",
        help="Machine type, e.g. n1-standard-8.",
        default="chosen for the GPU",
        group=_GROUP,
        selects=True,
    )
    gpu: str = option(
        "",
        TEXT,
        "gpu",
        metavar="TYPE[:N]",
        help="GPUs per worker, e.g. t4 or t4:2.",
        label="GPU type",
        group=_GROUP,
        selects=True,
    )
    spot: bool = option(
        False,
        FLAG,
        "spot",
        help="Use Spot VMs: cheaper, but may be preempted at any time.",
        group=_GROUP,
        selects=True,
    )
    max_duration_s: int = option(
        8 * 3600,
        DURATION,
        "max-duration",
        metavar="TIME",
        help="Maximum lifetime, enforced by Compute Engine; 0 disables it.",
        label="maximum lifetime",
        group=_GROUP,
    )
    image: str = option(
        "",
        TEXT,
        "image",
        metavar="IMAGE",
        help="Boot image, e.g. projects/P/global/images/family/F.",
        group=_GROUP,
    )
    disk_gb: int = option(
        100,
        COUNT,
        "disk-size",
        metavar="GB",
        help="Size of the boot disk.",
        label="disk size in GB",
        group=_GROUP,
    )
    disk_type: str = option("", TEXT, "disk-type")
    network: str = option(
        "default",
        TEXT,
        "network",
        metavar="NAME",
        help="VPC network, or the path of a shared one, projects/P/global/networks/N.",
        group=_NETWORK,
    )
    subnetwork: str = option(
        "",
        TEXT,
        "subnet",
        metavar="NAME",
        help="Subnetwork, or its path.",
        default="the one of the region",
        label="subnetwork",
        group=_NETWORK,
    )
    firewall: bool = option(
        True,
        FLAG,
        "firewall",
        help="Create firewall rules for the fleet, or rely on existing ones.",
        group=_NETWORK,
        fixed=False,
    )
    external: bool = option(
        True,
        FLAG,
        "iap",
        help="No external addresses; SSH goes through Identity-Aware Proxy.",
        label="Identity-Aware Proxy:",
        group=_NETWORK,
        negated=True,
    )
    ssh_from: tuple[str, ...] = option(
        (),
        TEXTS,
        "ssh-from",
        metavar="CIDR",
        help="Source range allowed to use SSH. Repeatable.",
        default="your public address",
        group=_NETWORK,
        fixed=False,
    )
    ssh_user: str = option("fleet", TEXT, "ssh-user", label="login name")
    ssh_port: int = option(22, COUNT, "ssh-port", label="SSH port")
    scopes: tuple[str, ...] = option(
        (),
        TEXTS,
        "scopes",
        metavar="SCOPE",
        help="OAuth scope of the service account, e.g. devstorage.read_only. Repeatable.",
        default="none",
        group=_NETWORK,
    )
    service_account: str = option(
        "",
        TEXT,
        "service-account",
        metavar="EMAIL",
        help="Service account of the instances.",
        group=_NETWORK,
    )

    @property
    def account(self) -> str:
        """Return the project."""
        return self.project

    def conflicts(self, existing: ProviderOptions) -> list[str]:
        """Return a clause for each option that cannot change; the number of GPUs is one of them."""
        clauses = super().conflicts(existing)
        if self.gpus != existing.gpus:
            clauses.append(f"{self.gpus} GPUs per instance requested, the fleet has {existing.gpus}")
        return clauses
