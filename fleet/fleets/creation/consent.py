"""Ask for consent to the price of instances before they are created."""

from __future__ import annotations

from dataclasses import replace

from fleet.errors import CancelledError, UsageError
from fleet.events import Note, Quoted, Sink
from fleet.fleets.creation.gpu_packages import gpu_package_notes
from fleet.fleets.resolution import UpRequest
from fleet.folding import fold
from fleet.services import Services
from fleet.state import FleetRecord
from fleet.steps import Again, Step
from provision.model import FleetSpec, Quote
from provision.planner import plan, resize


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
