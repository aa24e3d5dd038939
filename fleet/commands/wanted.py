"""What a user means by `fleet up`: what was said, else what the fleet already has, else the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fleet.errors import UsageError
from fleet.settings import Settings
from fleet.state import FleetRecord
from provision.model import CloudSpec, FleetSpec
from provision.planner import conflicts

DEFAULT_WORKERS = 2
PACKAGES = ("tensorflow~=2.21.0", "tf-keras~=2.21.0")
GPU_PACKAGES = ("tensorflow[and-cuda]~=2.21.0", "tf-keras~=2.21.0")

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
    """

    fleet: str
    said: Settings = field(default_factory=Settings)
    defaults: Settings = field(default_factory=Settings)
    dry_run: bool = False
    retry_until_up: bool = False


def wanted(request: UpRequest, record: FleetRecord | None) -> FleetSpec:
    """The spec that the user means.

    Raises:
        UsageError: a setting makes no sense, or the fleet is up with another one.
    """
    spec = _fresh(request) if record is None else _repaired(request, record.spec)
    if spec.workers < 1:
        raise UsageError(
            f"--workers {spec.workers}: a fleet has at least one worker", next_step="fleet up --workers 2"
        )
    if record is None:
        return spec
    different = conflicts(spec, record.spec)
    if different:
        raise UsageError(
            f"fleet {request.fleet!r} is already up with other settings",
            cause="; ".join(different),
            next_step="fleet down first, or --fleet NAME for another one",
        )
    return spec


def provider_of(said: Settings, otherwise: str | None) -> str:
    """Name of the provider that was said, or is meant by what was; `otherwise` where nothing points to one."""
    return said.provider or ("gce" if said.wants_cloud else otherwise or "local")


def cloud_of(settings: Settings, base: CloudSpec) -> CloudSpec:
    """`base` with `settings`, GPUs and machine type by their full names.

    Raises:
        UsageError: they make no sense, or do not go together.
    """
    from provision.gce.catalog import find_gpu, resolved

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
        raise UsageError(str(error), next_step="fleet up --help") from error


def _fresh(request: UpRequest) -> FleetSpec:
    said, settings = request.said, request.said.over(request.defaults)
    provider = provider_of(said, request.defaults.provider)
    spec = FleetSpec(
        name=request.fleet,
        provider=provider,
        workers=DEFAULT_WORKERS if settings.workers is None else settings.workers,
        python=settings.python or "",
    )
    if provider != "gce":
        _refuse_cloud(said)
        return spec
    cloud = cloud_of(settings, CloudSpec())
    python, packages = _environment(request, cloud)
    return replace(spec, python=python, packages=packages, cloud=cloud)


def _repaired(request: UpRequest, has: FleetSpec) -> FleetSpec:
    """What the fleet has, but for what was said; what the environment and fleet.toml say now is not asked."""
    said = request.said
    provider = provider_of(said, has.provider)
    spec = replace(
        has,
        provider=provider,
        workers=has.workers if said.workers is None else said.workers,
        python=has.python if said.python is None else said.python,
        packages=has.packages if said.packages is None else said.packages,
    )
    if provider != has.provider:
        return spec
    if has.cloud is None:
        _refuse_cloud(said)
        return spec
    return replace(spec, cloud=cloud_of(said, has.cloud))


def _environment(request: UpRequest, cloud: CloudSpec) -> tuple[str, tuple[str, ...]]:
    """Interpreter and packages, of which a fleet has one: what the command line says goes before the file."""
    for settings in (request.said, request.defaults):
        if settings.python and settings.packages:
            raise UsageError(
                "either packages are installed, or the interpreter of --python is used as it is",
                next_step="leave --package or --python out",
            )
        if settings.python:
            return settings.python, ()
        if settings.packages is not None:
            return "", settings.packages
    return "", GPU_PACKAGES if cloud.gpus else PACKAGES


def _refuse_cloud(said: Settings) -> None:
    names = [*said.cloud(), *(["package"] if said.packages is not None else [])]
    if names:
        options = ["--" + _OPTIONS.get(name, name.removesuffix("s") if name == "zones" else name) for name in names]
        raise UsageError(
            f"{', '.join(options).replace('_', '-')}: a fleet on this computer has no such setting",
            next_step="leave it out, or say --provider gce",
        )
