"""Name the settings file and the programs that it lets run on this computer, and ask once before they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fleet.errors import CancelledError, UsageError
from fleet.events import Note, Sink
from fleet.fleets.resolution import UpRequest, active_environment
from fleet.services import Services
from fleet.state import FleetRecord
from fleet.steps import Again
from fleet.translation import translate_errors
from provision.inventory.ansible import convert
from provision.model import FleetSpec
from provision.ssh_config.programs import AcceptedPrograms


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
