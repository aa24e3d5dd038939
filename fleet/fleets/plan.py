"""Plan a fleet: resolve what is requested from options, fleet.toml, and the existing fleet; ask before it costs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.errors import CancelledError, FleetError, UsageError, fold, translate_errors
from fleet.events import Note, Quoted, Sink
from fleet.services import Services, find_options
from fleet.settings import Settings, exclusive_names, option_names, read_pip_source
from fleet.state import FleetRecord
from fleet.steps import Again, Step, step_of
from provision.inventory.reader import convert
from provision.model import FleetSpec, Quote
from provision.options import InvalidOptionError, ProviderOptions, declarations
from provision.planner import conflicts, plan, resize
from provision.registry import NAMES, options_class, provider_class
from provision.ssh_config.programs import AcceptedPrograms
from train.agent.packages.venv import split_requirement
from train.script import NEWEST_TF_KERAS
from train.script.requirements import is_requirement

DEFAULT_PROVIDER = "local"
DEFAULT_WORKERS = 2
# The TensorBoard callback and tf.summary.scalar require tensorboard, and ImageDataGenerator scipy; TensorFlow 2.21
# installs neither.
_BESIDE = (f"tf-keras~={NEWEST_TF_KERAS}", "tensorboard~=2.20", "scipy~=1.13")
PACKAGES = (f"tensorflow~={NEWEST_TF_KERAS}", *_BESIDE)
GPU_PACKAGES = (f"tensorflow[and-cuda]~={NEWEST_TF_KERAS}", *_BESIDE)


@dataclass(frozen=True)
class UpRequest:
    """A request to create or repair a fleet.

    Attributes:
        fleet: Name of the fleet.
        given: Settings of the command line.
        defaults: Settings of the environment and fleet.toml, for a new fleet.
        dry_run: Show the plan and the price; create nothing.
        retry_until_up: If capacity is missing, wait and try again.
        accept_new: Accept the host keys of unknown hosts.
        allow_programs: Accept the programs that fleet.toml or the inventory runs on this computer.
        advises: Show the command to type next.
    """

    fleet: str
    given: Settings = field(default_factory=Settings)
    defaults: Settings = field(default_factory=Settings)
    dry_run: bool = False
    retry_until_up: bool = False
    accept_new: bool = False
    allow_programs: bool = False
    advises: bool = True


def resolve_request(request: UpRequest, record: FleetRecord | None, services: Services) -> FleetSpec:
    """Return the requested fleet, with what its provider adds to it; the arguments are those of `resolve_spec`.

    Raises:
        FleetError: a setting is invalid, or the provider does not answer.
    """
    spec = resolve_spec(request, record)
    if record is not None or not spec.options.rents:
        return spec
    provider = services.provider(spec.options, keep=False)
    provider.check(spec)
    completed = provider.complete(spec)
    gpus = completed.options.gpus
    return replace(completed, packages=GPU_PACKAGES) if gpus and spec.packages == PACKAGES else completed


def resolve_spec(request: UpRequest, record: FleetRecord | None) -> FleetSpec:
    """Return the requested fleet.

    Args:
        request: What the user typed.
        record: The existing fleet; None: it does not exist.

    Raises:
        UsageError: a setting is invalid, a variable for a login is not set, or the fleet exists with another setting.
    """
    spec = _new_spec(request) if record is None else _existing_spec(request, record)
    _refuse_flags(request, spec.options)
    if spec.packages:
        read_pip_source(spec)  # a variable that is not set is reported before anything is created
    if record is None:
        return spec
    different = conflicts(spec, _fixed_spec(request.given, spec, record)) or _other_hosts(request.given, spec, record)
    if different:
        raise UsageError(
            f"fleet {request.fleet!r} is already up with other settings",
            cause="; ".join(different),
            hint="delete it first, or give another name: --fleet NAME",
            next_steps=[Step("down")],
        )
    return spec


def _refuse_flags(request: UpRequest, options: ProviderOptions) -> None:
    """Raise UsageError for an option of `fleet up` that has no effect on such hosts."""
    exists = options.remote and not options.rents
    given = {"--retry-until-up": request.retry_until_up, "--accept-new": request.accept_new}
    unused = [name for name, used in (("--retry-until-up", options.rents), ("--accept-new", exists)) if not used]
    if wrong := [name for name in unused if given[name]]:
        raise UsageError(
            f"{' and '.join(wrong)} cannot be used with {options.title or 'these hosts'}",
            next_steps=[Again(dict.fromkeys(wrong))],
        )


def resolve_provider(given: Settings, defaults: Settings) -> str:
    """Return the name of the provider: the one that the command line or fleet.toml selects, or the default.

    Raises:
        UsageError: options of the command line, or the tables of fleet.toml, select several providers.
    """
    provider = _select_provider(given) or defaults.provider
    if provider is None and len(tables := list(defaults.exclusive)) > 1:
        raise UsageError(
            f"fleet.toml: tables {' and '.join(f'[{name}]' for name in tables)} select different providers",
            hint=f'write provider = "{tables[0]}" below [fleet]',
            next_steps=[Again({"--provider": name}) for name in tables],
        )
    return provider or DEFAULT_PROVIDER


@contextlib.contextmanager
def keep_provider(request: UpRequest) -> Iterator[None]:
    """Let the commands of an error select the same provider, even without the option that selects it."""
    try:
        yield
    except FleetError as error:
        error.next_steps = tuple(
            _selecting(step, request) if isinstance(step, Again) else step for step in error.next_steps
        )
        raise


def _selecting(step: Again, request: UpRequest) -> Again:
    """Return a repetition of the command that selects its provider."""
    given = request.given.exclusive
    if request.given.provider or len(given) != 1:
        return step
    [(provider, names)] = given.items()
    changed = {name: step.change.get(name, True) for name in (*names, *step.change)}
    left = {name for name, value in changed.items() if value is not None}
    if provider == request.defaults.provider or left & exclusive_names(provider):
        return step
    return replace(step, change={"--provider": provider, **step.change})


def _select_provider(given: Settings) -> str | None:
    """Return the given provider, or the one that alone has some of the given options; None if there is neither.

    Raises:
        UsageError: these options belong to several providers.
    """
    exclusive = given.exclusive
    if not given.provider and len(exclusive) > 1:
        clauses = [
            f"{', '.join(names)} {'selects' if len(names) == 1 else 'select'} {options_class(provider).title}"
            for provider, names in exclusive.items()
        ]
        raise UsageError(
            f"options of several providers: {', '.join(clauses)}",
            hint="give options of one provider",
            next_steps=[
                Again(dict.fromkeys(name for other in exclusive if other != kept for name in exclusive[other]))
                for kept in exclusive
            ],
        )
    return given.provider or next(iter(exclusive), None)


def change_options(options: ProviderOptions, given: Mapping[str, Any]) -> ProviderOptions:
    """Return the options of a provider with some changed.

    Raises:
        UsageError: a value is invalid, or values contradict each other.
    """
    try:
        changed: ProviderOptions = provider_class(type(options)).change(options, given)
    except InvalidOptionError as error:
        again = () if error.again is None else (Again(error.again),)
        raise UsageError(str(error), next_steps=[*again, *map(step_of, error.next_steps)]) from error
    except ValueError as error:
        raise UsageError(str(error), next_steps=[Step("up", "--help")]) from error
    return changed


def _new_spec(request: UpRequest) -> FleetSpec:
    given, defaults = request.given, request.defaults
    provider = resolve_provider(given, defaults)
    refuse_options(given, provider)
    kind = find_options(provider)
    merged = given.over(defaults)
    settings = given if _overrides(given, provider) else merged  # fleet.toml may be about other hosts
    options = change_options(kind(), settings.of(provider))
    python, packages = (
        _environment(request, _default_packages(options)) if kind.remote else _local_environment(request)
    )
    is_of_file = defaults.python and not (given.python or kind.remote)
    return FleetSpec(
        name=request.fleet,
        provider=provider,
        workers=_default_workers(options) if settings.workers is None else settings.workers,
        python=python,
        python_source=str(defaults.file or "") if is_of_file else "",
        packages=packages,
        index_url=merged.index_url or "",
        pip_proxy=merged.pip_proxy or "",
        options=options,
    )


def _default_packages(options: ProviderOptions) -> tuple[str, ...]:
    if not options.rents:
        return ()
    return GPU_PACKAGES if options.gpus else PACKAGES


def _local_environment(request: UpRequest) -> tuple[str, tuple[str, ...]]:
    """Return interpreter and packages of a fleet on this computer, whose provider refuses packages.

    Raises:
        UsageError: fleet.toml has packages, and the command line does not select this computer.
    """
    if request.defaults.packages and not request.given.provider:
        raise UsageError(
            "packages in fleet.toml cannot be installed for a fleet on this computer",
            cause="its scripts run with the interpreter that runs fleet",
            hint="remove packages from the file, or select other hosts; --provider local ignores them",
            next_steps=[Again({"--provider": "local"})],
        )
    python = request.given.over(request.defaults).python or active_environment()
    return python, request.given.packages or ()


def active_environment() -> str:
    """Return the interpreter of the active environment if it has TensorFlow; empty: none, or that of this program."""
    for directory in (Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)):
        python = directory / "bin" / "python"
        is_other = directory.resolve() != Path(sys.prefix).resolve() and os.access(python, os.X_OK)
        if is_other and any(directory.glob("lib/python3*/site-packages/tensorflow/__init__.py")):
            return str(python)
    return ""


def _existing_spec(request: UpRequest, record: FleetRecord) -> FleetSpec:
    """Return the existing fleet with the given options; the environment and fleet.toml do not count."""
    given, has = request.given, record.spec
    provider = _select_provider(given) or has.provider
    if provider != has.provider:
        if given.of(provider):
            change_options(find_options(provider)(), given.of(provider))  # an invalid value is reported first
        return replace(has, provider=provider, workers=given.workers or has.workers)
    refuse_options(given, provider)
    options = change_options(has.options, given.of(provider))
    names = ("workers", "python", "packages", "index_url", "pip_proxy")
    changed = {name: value for name in names if (value := getattr(given, name)) is not None}
    source = has.python_source if given.python is None else ""
    spec = replace(has, options=options, python_source=source, **changed)
    if given.workers is None and _overrides(given, provider):
        spec = replace(spec, workers=_default_workers(options))
    if not record.ready and (given.python or given.packages is not None):
        python, packages = _environment(request, has.packages)
        spec = replace(spec, python=python, packages=packages)
    return spec


def _fixed_spec(given: Settings, spec: FleetSpec, record: FleetRecord) -> FleetSpec:
    """Return what cannot change any more.

    Until a fleet is ready, its packages and its interpreter can change; after that, the number of its workers.
    """
    if not record.ready:
        return replace(record.spec, python=spec.python, packages=spec.packages)
    is_resize = given.workers is not None and record.spec.options.resizable
    return replace(record.spec, workers=spec.workers) if is_resize else record.spec


def _default_workers(options: ProviderOptions) -> int:
    """Return the default number of workers: all hosts that the options name."""
    with translate_errors():
        hosts = provider_class(type(options)).named_hosts(options)
    return DEFAULT_WORKERS if hosts is None else len(hosts)


def _overrides(given: Settings, provider: str) -> bool:
    """Return True if an option is given on the command line that makes those of fleet.toml meaningless."""
    declared = declarations(options_class(provider))
    return any(value and declared[name].overrides for name, value in given.of(provider).items())


def _other_hosts(given: Settings, spec: FleetSpec, record: FleetRecord) -> list[str]:
    """Return a clause if the hosts of the fleet are not the first ones of the given inventory."""
    if not record.instances or not _overrides(given, spec.provider):
        return []
    with translate_errors():
        now = list(provider_class(type(spec.options)).named_hosts(spec.options) or ())[: spec.workers]
    has = [instance.zone for instance in record.instances][: spec.workers]
    return [] if now[: len(has)] == has else [f"hosts {', '.join(now)} requested, the fleet has {', '.join(has)}"]


def _environment(request: UpRequest, otherwise: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the interpreter and the packages, of which a fleet has one; the command line takes precedence."""
    for settings in (request.given, request.defaults):
        if settings.python and settings.packages:
            raise UsageError(
                "--package and --python are mutually exclusive",
                hint="remove one of them",
                next_steps=[Again({"--python": None}), Again({"--package": None})],
            )
        if settings.python:
            return settings.python, ()
        if settings.packages is not None:
            return "", _check_packages(settings.packages)
    return "", otherwise


def _check_packages(packages: tuple[str, ...]) -> tuple[str, ...]:
    for package in packages:
        if not is_requirement(package):
            raise UsageError(
                f"package {package!r:.200} is not a requirement, such as tensorflow~={NEWEST_TF_KERAS}",
                hint="correct --package, or packages in fleet.toml",
                next_steps=[Again({"--package": None})],
            )
    return packages


def refuse_options(given: Settings, provider: str) -> None:
    """Raise UsageError for given options that the provider does not have, or if it does not exist."""
    find_options(provider)
    has = option_names(provider).values()
    given_names = [option_names(other)[field] for other, values in given.options.items() for field in values]
    foreign = dict.fromkeys(name for name in given_names if name not in has)
    if foreign:
        taker = next((other for other in NAMES if foreign.keys() <= set(option_names(other).values())), "")
        which = "it" if len(foreign) == 1 else "them"
        raise UsageError(
            f"provider {provider!r} does not support {', '.join(foreign)}",
            hint=f"choose another provider, or leave {which} out" if taker else f"leave {which} out",
            next_steps=[*([Again({"--provider": taker})] if taker else []), Again(foreign)],
        )


_TENSORFLOW = ("tensorflow", "tf-nightly")


def gpu_package_notes(spec: FleetSpec) -> tuple[str, ...]:
    """Return a sentence about the packages of instances with GPUs, if they are not the default ones.

    ``--package`` replaces the default packages, so that TensorFlow is missing, or is installed without NVIDIA's
    libraries. Source: https://www.tensorflow.org/install/pip.
    """
    if not spec.options.gpus or not spec.packages:
        return ()
    given = [extras for name, extras in map(split_requirement, spec.packages) if name in _TENSORFLOW]
    if any("and-cuda" in extras for extras in given) or (not given and "tensorflow" in " ".join(spec.packages)):
        return ()
    if given:
        return ("--package names TensorFlow without NVIDIA's libraries: tensorflow[and-cuda] installs them",)
    return ("--package replaces TensorFlow: fleet up does not check that another framework can use the GPUs",)


def confirm_price(
    request: UpRequest, spec: FleetSpec, record: FleetRecord | None, services: Services, sink: Sink
) -> frozenset[str]:
    """Return the names of the instances that the user agrees to pay for; change nothing.

    Raises:
        UsageError: they cost money, and no user can be asked.
        CancelledError: the user declined.
    """
    provider = services.provider(spec.options, keep=False)
    provider.check(spec)
    steps = plan(spec, provider.list(spec.name) if record else ())
    names, excess = steps.create, resize(spec.workers, spec, steps).released
    quote = provider.quote(spec, names) if names else Quote(0)
    quote = replace(quote, notes=(*quote.notes, *gpu_package_notes(spec)))
    if quote.offers:
        sink.emit(Quoted(spec.name, spec.provider, spec.options.account, **vars(quote)))
    elif request.dry_run and not excess:
        sink.emit(
            Note("; ".join(quote.notes) or f"fleet {spec.name!r} is up with all workers: nothing would be created")
        )
    if request.dry_run and excess:
        verb = "released" if spec.options.existing else "deleted"
        sink.emit(Note(f"{fold(instance.name for instance in excess)} would be {verb}"))
    if request.dry_run or not quote.offers:
        return frozenset(names)
    if not services.attended:
        raise UsageError(
            "this costs money, and confirmation requires a terminal",
            hint="--yes accepts the price; --dry-run shows it",
            next_steps=[Again({"--yes": True})],
        )
    if not services.confirm("Proceed?"):
        raise CancelledError("nothing was created", next_steps=[Step("up", "--help")])
    return frozenset(names)


def convert_inventory(request: UpRequest, services: Services, sink: Sink) -> UpRequest:
    """Return the request with a file in place of an inventory that only Ansible can read.

    Ansible runs the programs of the inventory, so that this is done only for one that the user typed, and not in a
    dry run.

    Raises:
        UsageError: Ansible is not installed, or cannot read it.
    """
    typed = str(request.given.of("static").get("inventory", ""))
    target = services.store.root / "inventories" / f"{request.fleet}.yml"
    with translate_errors():
        if not typed or request.dry_run or not convert(Path(typed), target):
            return request
    sink.emit(Note(f"ansible-inventory has read {typed}"))
    options = {**request.given.options, "static": {**request.given.of("static"), "inventory": str(target)}}
    return replace(request, given=replace(request.given, options=options))


def confirm_programs(
    request: UpRequest, spec: FleetSpec, record: FleetRecord | None, services: Services, sink: Sink
) -> None:
    """Get the user's consent to programs that fleet.toml or an inventory names; a dry run only shows them.

    Raises:
        UsageError: the user cannot be asked.
        CancelledError: the user declined.
    """
    file, defaults = request.defaults.file, request.defaults
    if record is None and file is not None:
        if file.parent != Path.cwd():
            sink.emit(Note(f"settings: {file}"))
        if defaults.packages and not spec.options.remote:
            sink.emit(Note(f"packages of {file} are not installed: the fleet is on this computer"))
    if record is None and spec.python and spec.python == active_environment():
        sink.emit(Note(f"scripts run with {spec.python}, the interpreter of the active environment"))
    accepted = AcceptedPrograms(services.store.root / "programs")
    missing = accepted.missing(services.provider(spec.options, keep=False).programs(spec))
    for each in missing:
        sink.emit(Note(f"{each.source} names a program to run on this computer: {each.text}"))
    if request.dry_run or not missing:
        return
    if not request.allow_programs:
        if services.confirm_keys is None:
            raise UsageError(
                f"{missing[0].source} names a program to run on this computer, and confirmation requires a terminal",
                cause=missing[0].text,
                hint="--allow-programs accepts it; --yes does not",
                next_steps=[Again({"--dry-run": True}, "up")],
            )
        if not services.confirm_keys("Run this on this computer, now and in later commands?"):
            raise CancelledError("nothing was started")
    accepted.add(missing)
