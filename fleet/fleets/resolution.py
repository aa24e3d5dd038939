"""What a user means by `fleet up`: what was said, else what the fleet already has, else the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fleet.errors import UsageError
from fleet.providers import BATCH_SYSTEMS, LENDERS
from fleet.settings import Settings
from fleet.state import FleetRecord
from fleet.steps import Again, Step
from fleet.translation import translated
from provision.model import CloudSpec, FleetSpec
from provision.planner import conflicts

DEFAULT_WORKERS = 2
# tensorboard: the TensorBoard callback and tf.summary.scalar require it, and TensorFlow 2.21 no longer installs it.
_BESIDE = ("tf-keras~=2.21.0", "tensorboard~=2.20")
PACKAGES = ("tensorflow~=2.21.0", *_BESIDE)
GPU_PACKAGES = ("tensorflow[and-cuda]~=2.21.0", *_BESIDE)

_SCOPES = "https://www.googleapis.com/auth/"

_OPTIONS = {"max_duration_s": "max-duration", "disk_gb": "disk-size", "subnetwork": "subnet", "external": "iap"}
"""Options that are not called as their setting is."""


@dataclass(frozen=True)
class UpRequest:
    """What the user typed.

    Attributes:
        fleet: Name of the fleet.
        said: On the command line.
        defaults: What the environment and fleet.toml say, for a fleet that is to be made.
        dry_run: Show what it would cost, make nothing.
        retry_until_up: Where there is no capacity, wait and try again.
        accept_new: Take the host keys of hosts that are not known yet for theirs.
    """

    fleet: str
    said: Settings = field(default_factory=Settings)
    defaults: Settings = field(default_factory=Settings)
    dry_run: bool = False
    retry_until_up: bool = False
    accept_new: bool = False


def wanted(request: UpRequest, record: FleetRecord | None) -> FleetSpec:
    """The spec that the user means.

    Raises:
        UsageError: a setting makes no sense, or the fleet is up with another one.
    """
    spec = _fresh(request) if record is None else _repaired(request, record)
    if spec.workers < 1:
        raise UsageError(
            f"--workers {spec.workers}: a fleet has at least one worker", next_steps=[Again({"--workers": "2"})]
        )
    if record is None:
        return spec
    different = conflicts(spec, _fixed(spec, record)) or _other_hosts(request.said, spec, record)
    if different:
        raise UsageError(
            f"fleet {request.fleet!r} is already up with other settings",
            cause="; ".join(different),
            hint="delete it first, or give another name: --fleet NAME",
            next_steps=[Step("down")],
        )
    return spec


def _fixed(spec: FleetSpec, record: FleetRecord) -> FleetSpec:
    """What of a fleet cannot change any more: before it is ready, its packages and its interpreter can."""
    return record.spec if record.ready else replace(record.spec, python=spec.python, packages=spec.packages)


def provider_of(said: Settings, otherwise: str | None) -> str:
    """Name of the provider that was said, or is meant by what was; `otherwise` where nothing points to one."""
    implied = "gce" if said.wants_cloud else "static" if said.inventory else otherwise
    return said.provider or implied or "local"


def cloud_of(settings: Settings, base: CloudSpec) -> CloudSpec:
    """`base` with `settings`, GPUs and machine type by their full names.

    Raises:
        UsageError: they make no sense, or do not go together.
    """
    from provision.gce.catalog.machines import find_gpu, resolved

    fields = settings.cloud()
    gpu = fields.pop("gpu", None)
    if "scopes" in fields:
        fields["scopes"] = tuple(_SCOPES + scope if "/" not in scope else scope for scope in fields["scopes"])
    try:
        if gpu is not None:
            name, colon, _ = gpu.strip().lower().partition(":")
            fields |= {"gpu": name, "gpus": find_gpu(gpu)[1] if colon else 0}
        cloud = replace(base, **fields)
        try:
            return resolved(cloud)
        except ValueError:
            if not gpu or "machine_type" in fields or not base.machine_type:
                raise
            return resolved(replace(cloud, machine_type=""))  # the one of other GPUs
    except ValueError as error:
        raise UsageError(str(error), next_steps=[Step("up", "--help")]) from error


def _fresh(request: UpRequest) -> FleetSpec:
    said, settings = request.said, request.said.over(request.defaults)
    provider = provider_of(said, request.defaults.provider)
    if provider in LENDERS:
        return _existing(request, provider)
    _refuse_inventory(said)
    spec = FleetSpec(
        name=request.fleet,
        provider=provider,
        workers=DEFAULT_WORKERS if settings.workers is None else settings.workers,
        python=settings.python or "",
    )
    if provider != "gce":
        _refuse_cloud(said, provider)
        return spec
    cloud = cloud_of(settings, CloudSpec())
    python, packages = _environment(request, GPU_PACKAGES if cloud.gpus else PACKAGES)
    return replace(spec, python=python, packages=packages, cloud=cloud)


def _existing(request: UpRequest, provider: str) -> FleetSpec:
    """Hosts that exist already: all that are selected, or as many as were said.

    With an inventory of the command line, what fleet.toml says of another one does not count.
    """
    said = request.said
    _refuse_cloud(said, provider)
    settings = said if said.inventory else said.over(request.defaults)
    inventory = _inventory(said, settings, provider)
    if not inventory:
        raise UsageError(
            "no inventory of hosts is given", hint="name the file that lists the hosts: --inventory FILE"
        )
    limit = settings.limit or ""
    python, packages = _environment(request, ())
    return FleetSpec(
        name=request.fleet,
        provider=provider,
        workers=len(_selected(inventory, limit)) if settings.workers is None else settings.workers,
        python=python,
        packages=packages,
        inventory=inventory,
        limit=limit,
    )


def _inventory(said: Settings, settings: Settings, provider: str) -> str:
    """Where the hosts are named: in a file, or by the batch system in whose allocation this is."""
    if provider not in BATCH_SYSTEMS:
        return settings.inventory or ""
    if said.inventory:
        raise UsageError(
            f"the hosts of --provider {provider} are the nodes of its allocation, and --inventory names others",
            next_steps=[Again({"--inventory": None})],
        )
    from provision.inventory.allocation import here

    with translated():
        return here(provider)


def _selected(inventory: str, limit: str) -> list[str]:
    """Names of the hosts that an inventory and a limit yield, in their order."""
    from provision.static.selection import selected

    with translated():
        return [entry.name for entry in selected(inventory, limit)[1]]


def _other_hosts(said: Settings, spec: FleetSpec, record: FleetRecord) -> list[str]:
    """As conflicts: what an inventory that was said yields now, where that is not what the fleet has."""
    if not said.inventory or not record.instances:
        return []
    now, has = _selected(spec.inventory, spec.limit)[: spec.workers], [one.zone for one in record.instances]
    return [] if now == has else [f"the hosts {', '.join(now)} asked for, it has {', '.join(has)}"]


def _repaired(request: UpRequest, record: FleetRecord) -> FleetSpec:
    """What the fleet has, but for what was said; what the environment and fleet.toml say now is not asked."""
    said, has = request.said, record.spec
    provider = provider_of(said, has.provider)
    spec = replace(
        has,
        provider=provider,
        workers=_workers(said, has),
        inventory=(_inventory(said, said, provider) if said.provider else said.inventory) or has.inventory,
        limit=has.limit if said.limit is None else said.limit,
        python=has.python if said.python is None else said.python,
        packages=has.packages if said.packages is None else said.packages,
    )
    if not record.ready and (said.python or said.packages is not None):
        python, packages = _environment(request, has.packages)
        spec = replace(spec, python=python, packages=packages)
    if provider != has.provider:
        if provider == "gce":
            cloud_of(said, CloudSpec())  # a misspelled GPU type is reported first
        return spec
    if has.provider not in LENDERS:
        _refuse_inventory(said)
    if has.cloud is None:
        _refuse_cloud(said, has.provider)
        return spec
    return replace(spec, cloud=cloud_of(said, has.cloud))


def _workers(said: Settings, has: FleetSpec) -> int:
    if said.workers is not None:
        return said.workers
    if said.inventory and has.provider == "static":
        return len(_selected(said.inventory, said.limit or has.limit))
    return has.workers


def _environment(request: UpRequest, otherwise: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Interpreter and packages, of which a fleet has one: what the command line says goes before the file."""
    for settings in (request.said, request.defaults):
        if settings.python and settings.packages:
            raise UsageError(
                "either packages are installed, or the interpreter of --python is used as it is",
                hint="leave --package or --python out",
            )
        if settings.python:
            return settings.python, ()
        if settings.packages is not None:
            return "", settings.packages
    return "", otherwise


def _refuse_inventory(said: Settings) -> None:
    if said.inventory or said.limit:
        option = "--inventory" if said.inventory else "--limit"
        raise UsageError(
            f"{option} names hosts that exist already, and other ones are asked for beside it",
            hint=f"{option} goes without --provider and without cloud settings",
        )


def _refuse_cloud(said: Settings, provider: str) -> None:
    exist = provider in LENDERS
    kind = "of hosts that exist" if exist else "on this computer"
    names = [*said.cloud(), *(["package"] if said.packages is not None and not exist else [])]
    if names:
        options = ["--" + _OPTIONS.get(name, name.removesuffix("s") if name == "zones" else name) for name in names]
        raise UsageError(
            f"{', '.join(options).replace('_', '-')}: a fleet {kind} has no such setting",
            hint="leave it out, or rent hosts with --provider gce",
        )
