"""`fleet bake`: create an image of a prepared host, from which hosts with the same options boot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import typer

from fleet.cli.application import command
from fleet.cli.options import DRY_RUN, INDEX_URL, OUTPUT, PACKAGE, PIP_PROXY, PROVIDER, YES, Output
from fleet.cli.provider_options import WithProviders, read_options
from fleet.cli.runtime import read_settings, session
from fleet.errors import CancelledError, FleetError, explain_interrupt
from fleet.events import ImageBaked, Note, Sink
from fleet.fleets.connect import BOOTED, progress_to, reach
from fleet.fleets.instances import list_instances
from fleet.fleets.plan import UpRequest, confirm_price, keep_provider, resolve_request
from fleet.services import Services
from fleet.settings import Settings
from fleet.state import BAKING, FleetDirectory, FleetRecord
from fleet.steps import Again, NextStep, Shell, Step
from provision.model import Baking, FleetSpec, Image
from provision.names import instance_name
from provision.provider import Provider
from provision.quantities import counted


def run(request: UpRequest, services: Services, sink: Sink) -> ImageBaked | None:
    """Prepare a host, create an image of it, and delete the host.

    Args:
        request: The host, as a fleet with the name `BAKING`.
        services: The outside world.
        sink: Takes the events.

    Returns:
        The image; None after a dry run without one.

    Raises:
        UsageError: the provider has no images, or the host costs money and no user can be asked; nothing was changed.
        FleetError: the image could not be created; the host was deleted, or the error names what is left of it.
        CancelledError: the user declined or interrupted; likewise.
    """
    try:
        with keep_provider(request):
            return _bake(request, services, sink)
    except FleetError as error:
        raise _with_steps(error) from error


def _bake(request: UpRequest, services: Services, sink: Sink) -> ImageBaked | None:
    spec = resolve_request(request, None, services)
    plan = services.provider(spec.options, keep=False).plan_image(spec)
    project = spec.options.account
    services = replace(services, store=services.store.baking)
    if not request.dry_run:
        _delete_left(services, sink)
    if plan.existing is not None:
        return _report(plan.existing, project, sink, created=False)
    sink.emit(Note(f"image {plan.image} will be made of one host, which is deleted afterwards"))
    with explain_interrupt("fleet bake was interrupted; nothing was created", Again({})):
        confirm_price(request, plan.host, None, services, sink)
    if request.dry_run:
        return None
    with services.store.lock(BAKING, "bake"):
        directory = services.store.fleet(BAKING)
        image = _Host(directory, services.provider(spec.options), services, sink).bake(plan)
    return _report(image, project, sink, created=True)


def _delete_left(services: Services, sink: Sink) -> None:
    """Delete what an earlier command left that was killed; do nothing while another one runs.

    Raises:
        FleetError: something could not be deleted.
    """
    directory = services.store.fleet(BAKING)
    if not directory.exists() or services.store.is_locked(BAKING):
        return
    with services.store.lock(BAKING, "bake"):
        record = directory.read() if directory.exists() else None
        if record is None:  # it is written before the host is created
            directory.delete()
        elif left := _Host(directory, services.provider(record.spec.options), services, sink).delete():
            raise _leftovers(FleetError("the host of an earlier fleet bake could not be deleted"), left)


def _report(image: Image, project: str, sink: Sink, *, created: bool) -> ImageBaked:
    baked = ImageBaked(image.name, project, image.size_gb, image.usd_month, created)
    sink.emit(baked)
    sink.emit(Note("hosts of fleet up with the same options boot from it, and install nothing"))
    return baked


@dataclass(frozen=True)
class _Host:
    """The host of which an image is made; it is deleted when the image exists.

    Args:
        directory: Files of the fleet.
        provider: Creates the host and the image.
        services: The outside world; the state is that of such hosts.
        sink: Takes the events.
    """

    directory: FleetDirectory
    provider: Provider
    services: Services
    sink: Sink

    def bake(self, plan: Baking) -> Image:
        """Create the host and the image, and delete the host.

        Raises:
            FleetError: the image or the host is not in the requested state; the error names what is left.
            CancelledError: interrupted; likewise.
        """
        try:
            image = self._create_image(plan.image, replace(plan.host, public_key=self.directory.create()))
        except KeyboardInterrupt:
            raise _leftovers(CancelledError("fleet bake was interrupted; nothing is left"), self._left()) from None
        except FleetError as error:
            raise _leftovers(error, self._left()) from error
        if left := self._left():
            raise _leftovers(FleetError(f"image {image.name} is ready, but its host could not be deleted"), left)
        return image

    def _create_image(self, image: str, spec: FleetSpec) -> Image:
        name = instance_name(0)
        self.directory.write(FleetRecord(spec, self.services.clock()))
        self.directory.intend("create", instances=[name], provider=spec.provider, options=asdict(spec.options))
        self.provider.create(spec, [name], progress_to(self.sink, "ready", BOOTED))
        instances = list_instances(spec.name, self.provider, self.services)
        reach(spec, instances, self.provider, self.directory, self.services, self.sink, created=[name])
        return self.provider.bake(spec, image, progress_to(self.sink, "ready"))

    def delete(self) -> list[str]:
        """Delete the host with all its resources; return the names of those that are left."""
        self.directory.intend("delete_fleet")
        left = list(self.provider.delete_fleet(BAKING, progress_to(self.sink, "deleted")))
        if not left:
            self.directory.delete()
        return left

    def _left(self) -> list[str]:
        """Delete the host with all its resources; return what may be left, also if that is interrupted or fails."""
        try:
            return self.delete()
        except KeyboardInterrupt:
            return ["the host"]
        except FleetError as error:
            return [error.message]


def _leftovers(error: FleetError, left: list[str]) -> FleetError:
    """Return `error` with the addition that some resources may be left, if there are any."""
    if not left:
        return error
    words = f"{counted(len(left), 'resource')} may be left and incur cost: {', '.join(left)}"
    cause = "\n".join(filter(None, (error.cause, words)))
    return error.replaced(
        message=error.message.removesuffix("; nothing is left"), cause=cause, next_steps=[Step("gc")]
    )


def _with_steps(error: FleetError) -> FleetError:
    """Return `error` with the next steps of this command instead of those of `fleet up`."""
    steps: list[NextStep] = []
    for step in error.next_steps:
        if isinstance(step, Again):
            steps.append(Again({name: value for name, value in step.change.items() if name != "--retry-until-up"}))
        elif step == Step("up", "--help"):
            steps.append(Step("bake", "--help"))
        elif isinstance(step, Shell) or step.words[0] not in ("up", "down"):
            steps.append(step)
    hint = "" if any(option in error.hint for option in ("--retry-until-up", "--fleet")) else error.hint
    return error.replaced(hint=hint, next_steps=steps or [Again({})])


@command("Fleets", WithProviders)
def bake(
    ctx: typer.Context,
    provider: str | None = PROVIDER,
    package: list[str] | None = PACKAGE,
    index_url: str | None = INDEX_URL,
    pip_proxy: str | None = PIP_PROXY,
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    output: Output = OUTPUT,
) -> None:
    """Create an image of a prepared host.

    Hosts of `fleet up` with the same options boot from the image, and install nothing. It is made of a separate host
    without GPUs, which is deleted afterwards. Shows the price and asks before it spends money. `fleet gc` lists
    images with their monthly price, and deletes them with --images.

    Examples:
      fleet bake --gpu t4
      fleet bake --gpu t4 --package 'tensorflow[and-cuda]~=2.21.0' --package pandas
    """
    packages = tuple(package) if package else None
    given = Settings(
        provider=provider, packages=packages, index_url=index_url, pip_proxy=pip_proxy, options=read_options(ctx)
    )
    request = UpRequest(BAKING, given, read_settings(provider), dry_run=dry_run)
    with session(BAKING, output, yes=yes) as running:
        run(request, running.services, running)
