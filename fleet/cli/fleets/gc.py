"""`fleet gc`: find and delete resources of fleets that this state directory does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import typer

from fleet.cli.application import command
from fleet.cli.options import OUTPUT, YES, Output, option
from fleet.cli.provider_options import WithScopes, read_options
from fleet.cli.runtime import read_settings, session
from fleet.errors import CancelledError, CredentialsError, FleetError, UnreachableError, explain_interrupt
from fleet.events import InstanceChanged, Note, OrphansDeleted, OrphansFound, Sink
from fleet.events import Orphan as FoundOrphan
from fleet.fleets.instances import external_hosts, release_hosts
from fleet.fleets.plan import change_options
from fleet.services import Services, find_options
from fleet.settings import Settings
from fleet.state import BAKING, caller
from fleet.steps import DEFAULT_FLEET, Again, Step
from provision.model import IMAGE, FleetSpec, Orphan
from provision.options import ProviderOptions, declarations
from provision.quantities import counted
from provision.registry import installed_names


class GcRequest(NamedTuple):
    """Request of the command.

    Attributes:
        given: Options of the command line that name an account; if there are any, only this account is searched.
        defaults: Settings of the environment and fleet.toml.
        everybody: Include resources that other users created.
        images: Include images of prepared hosts.
    """

    given: Settings = Settings()
    defaults: Settings = Settings()
    everybody: bool = False
    images: bool = False


def run(request: GcRequest, services: Services, sink: Sink) -> None:
    """List resources that belong to no fleet of this state directory, and delete those that this user created.

    Raises:
        UsageError: there is something to delete, and confirmation requires a terminal.
        CancelledError: the user declined.
        FleetError: a provider does not answer, or something could not be deleted.
    """
    searches = list(_make_searches(request, services, sink))
    orphans = [orphan for search in searches for orphan in search.find()]
    if orphans or not any(search.silent for search in searches):
        sink.emit(OrphansFound(tuple(orphans)))
    to_delete = [orphan for orphan in orphans if orphan.to_delete]
    if to_delete:
        _confirm(len(to_delete), len(orphans), services)
        with explain_interrupt("fleet gc was interrupted; resources may be left and incur cost", Again({})):
            left = [name for search in searches for name in search.delete()]
        sink.emit(OrphansDeleted(len(to_delete) - len(left), tuple(left)))
        if left:
            raise FleetError(
                f"{counted(len(left), 'resource')} could not be deleted: {', '.join(left)}", next_steps=[Step("gc")]
            )
    if silent := sorted({zone for search in searches for zone in search.silent}):
        raise UnreachableError(
            f"{', '.join(silent)} did not answer, and may have resources of fleets",
            hint="repeat the command when the zone answers",
            next_steps=[Step("gc")],
        )


def _confirm(to_delete: int, total: int, services: Services) -> None:
    loss = f"{to_delete} of {counted(total, 'resource')} would be deleted"
    which = "it" if to_delete == total == 1 else "all of them" if to_delete == total else f"{to_delete} of them"
    kept = CancelledError("nothing was deleted", next_steps=[Step("status")])
    services.require_consent(loss, f"Delete {which}?", kept, [Again({"--yes": True})])


class _Search:
    """Resources of one account of a provider that belong to no fleet of this state directory.

    Args:
        kind: Name and options of the provider.
        needed: Missing credentials are an error; otherwise the account is skipped with a note.
        request: What the user typed.
        services: The outside world.
        sink: Receives notes.

    Attributes:
        silent: Zones that did not answer.
    """

    def __init__(
        self, kind: tuple[str, ProviderOptions], needed: bool, request: GcRequest, services: Services, sink: Sink
    ) -> None:
        self._name, self._options = kind
        self._provider = services.provider(self._options, keep=False)
        self._needed, self._request, self._services, self._sink = needed, request, services, sink
        self._store = services.store
        self._owner, self._baking = self._store.owner(keep=False), self._store.baking.owner(keep=False)
        self._to_delete: list[Orphan] = []
        self.silent: set[str] = set()

    def find(self) -> list[FoundOrphan]:
        """Return the orphans, and remember which ones to delete."""
        try:
            resources = self._provider.orphans()
        except CredentialsError as error:
            if self._needed:
                raise
            self._sink.emit(Note(f"skipped {self._options.title}: {error.message}"))
            return []
        self.silent.update(self._provider.silent_zones())
        in_use = self._store.baking.is_locked(BAKING)
        # Read after the list: a fleet has its directory before its instances.
        unknown = [each for each in self._select_unknown(resources) if not (in_use and self._is_baking(each))]
        mine = {"", self._owner, *(resource.owner for resource in unknown if resource.user == caller())}
        self._to_delete = [resource for resource in unknown if self._is_requested(resource, mine)]
        return [self._describe(resource) for resource in unknown]

    def _describe(self, resource: Orphan) -> FoundOrphan:
        age_h = max(0.0, self._services.clock() - resource.created_at) / 3600 if resource.created_at else 0.0
        return FoundOrphan(
            **{**resource._asdict(), "user": resource.user or ("" if resource.owner else caller())},
            provider=self._name,
            cost_usd=resource.price_usd_h * age_h,
            to_delete=resource in self._to_delete,
        )

    def delete(self) -> list[str]:
        """Delete the selected orphans; return the names of those that could not be deleted."""
        fleets = sorted({resource.fleet for resource in self._to_delete if resource.owner in ("", self._owner)})
        with contextlib.ExitStack() as locks:
            for fleet in fleets:
                locks.enter_context(self._store.lock(fleet, "gc"))
            if any(map(self._is_baking, self._to_delete)):
                locks.enter_context(self._store.baking.lock(BAKING, "gc"))
            to_delete = self._select_unknown(self._to_delete)  # a fleet of that name may have been created meanwhile
            if not to_delete:
                return []
            for fleet in sorted({resource.fleet for resource in to_delete}) if self._options.existing else ():
                instances = self._provider.list(fleet)
                spec = FleetSpec(fleet, self._name, len(instances), options=self._options)
                hosts = external_hosts(spec, instances, self._provider)
                release_hosts(hosts, self._store.fleet(fleet).key, self._sink)
            left = list(self._provider.delete_orphans(to_delete, self._progress))
            self.silent.update(self._provider.silent_zones())
            return left

    def _progress(self, name: str, step: str) -> None:
        self._sink.emit(InstanceChanged(name, step, done=step == "deleted"))

    def _select_unknown(self, resources: Iterable[Orphan]) -> list[Orphan]:
        fleets, mine = self._store.names(), ("", self._owner)
        return [each for each in resources if each.owner not in mine or each.fleet not in fleets]

    def _is_baking(self, resource: Orphan) -> bool:
        """Return whether a resource belongs to a host of which `fleet bake` makes an image on this computer."""
        return resource.owner == self._baking and resource.kind != IMAGE

    def _is_requested(self, resource: Orphan, mine: set[str]) -> bool:
        """Return True if it must be deleted; a resource without a user is attributed by its owner."""
        if resource.kind == IMAGE and not self._request.images:
            return False
        is_mine = resource.user == caller() if resource.user else resource.owner in mine
        return self._request.everybody or is_mine


def _make_searches(request: GcRequest, services: Services, sink: Sink) -> Iterator[_Search]:
    """Yield a search for each account: the given one, or those of existing fleets and of the settings.

    A provider without accounts has one search; if no other account is known, the default account is searched.
    """
    only = bool(request.given.options)
    recorded = [] if only else _list_accounts(services)
    for name in dict.fromkeys([*installed_names(), *(name for name, _ in recorded)]):
        kind = find_options(name)
        scopes = [field for field, declared in declarations(kind).items() if declared.scope]
        if only and not any(field in request.given.of(name) for field in scopes):
            continue
        settings = request.given.over(request.defaults).of(name)
        scope = {field: settings[field] for field in scopes if field in settings}
        if scope:
            change_options(kind(), scope)  # an invalid value is reported
        named = kind(**scope)
        accounts = [options for other, options in recorded if other == name and scopes]
        accounts += [named] if named != kind() else []
        for options in dict.fromkeys(accounts or [named]):
            yield _Search((name, options), bool(accounts), request, services, sink)


def _list_accounts(services: Services) -> list[tuple[str, ProviderOptions]]:
    """Return provider and account of each fleet of this computer."""
    specs = []
    for store in (services.store, services.store.baking):
        for name in store.names():
            with contextlib.suppress(FleetError):  # a damaged record
                record = store.fleet(name).read()
                specs += [record.spec] if record is not None else []
    return [(spec.provider, spec.options.scope()) for spec in specs]


@command("Fleets", WithScopes)
def gc(
    ctx: typer.Context,
    everybody: bool = option(False, "--all", "Include resources created by other users."),
    images: bool = option(False, "--images", "Also delete images that `fleet bake` created."),
    yes: bool = YES,
    output: Output = OUTPUT,
) -> None:
    """Find and delete orphaned resources.

    Asks first; by default only resources that were created from this computer. Fleets of another state directory
    count as orphaned. Searches this computer and all known projects, or only the one that --project names.
    Lists images with their monthly price, and keeps them unless --images is given.

    Examples:
      fleet gc
      fleet gc --project my-project --all
    """
    given = Settings(options=read_options(ctx))
    request = GcRequest(given, read_settings(), everybody=everybody, images=images)
    with session(DEFAULT_FLEET, output, yes=yes) as running:
        run(request, running.services, running)
