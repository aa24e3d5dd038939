"""`fleet doctor`: check the prerequisites of a provider."""

from __future__ import annotations

import typer

from fleet.cli.application import command
from fleet.cli.options import OUTPUT, Output, option, parse_count
from fleet.cli.provider_options import WithProviders, read_options
from fleet.cli.runtime import read_settings, session
from fleet.errors import CredentialsError, FleetError, NotReadyError
from fleet.events import Checked, Note, Sink
from fleet.fleets.plan import DEFAULT_WORKERS, change_options, refuse_options, resolve_provider
from fleet.services import Services, find_options
from fleet.settings import Settings
from fleet.steps import DEFAULT_FLEET, step_of
from provision.model import Finding
from provision.quantities import counted
from provision.registry import NAMES


def run(provider: str, settings: Settings, services: Services, sink: Sink) -> list[Checked]:
    """Check all that the provider needs; change nothing.

    Raises:
        UsageError: the provider does not exist.
        CredentialsError: no valid credentials exist.
        NotReadyError: something else is missing.
    """
    options = change_options(find_options(provider)(), settings.of(provider))
    workers = DEFAULT_WORKERS if settings.workers is None else settings.workers
    findings = services.provider(options, keep=False).doctor(workers)
    checked = [_checked(provider, finding) for finding in findings]
    for event in checked:
        sink.emit(event)
    missing = [finding for finding in findings if finding.ok is False]
    if missing:
        first = next((finding for finding in missing if finding.hint or finding.next_steps), None)
        is_anonymous = any(finding.subject == "credentials" for finding in missing)
        kind: type[FleetError] = CredentialsError if is_anonymous else NotReadyError
        raise kind(
            f"{len(missing)} of {counted(len(findings), 'check')} failed for provider {provider!r}: "
            f"{', '.join(finding.subject for finding in missing)}",
            hint=first.hint if first else "",
            next_steps=[*map(step_of, first.next_steps)] if first else [],
        )
    unknown = [finding.subject for finding in findings if finding.ok is None]
    passed = f"{len(findings) - len(unknown)} of {counted(len(findings), 'check')} passed"
    sink.emit(Note(f"{passed}; unknown: {', '.join(unknown)}" if unknown else passed))
    return checked


def _checked(provider: str, finding: Finding) -> Checked:
    lines = "\n".join(step_of(command).text() for command in finding.next_steps)
    return Checked(provider, finding.subject, finding.ok, finding.message, lines, finding.hint)


@command("Start", WithProviders)
def doctor(
    ctx: typer.Context,
    provider: str | None = option(
        None, "--provider", f"Provider to check: {', '.join(NAMES)}.", "NAME", shown="as for fleet up"
    ),
    workers: int | None = option(
        None, "--workers", "Number of workers that need quota.", "N", short="-w", parser=parse_count, shown="2"
    ),
    output: Output = OUTPUT,
) -> None:
    """Diagnose missing prerequisites and how to fix them.

    Give the options of fleet up, so that everything that it needs is checked.

    Examples:
      fleet doctor
      fleet doctor --provider gce --project my-project
      fleet doctor --workers 4 --gpu t4 --zone us-central1 --network prod
    """
    defaults = read_settings(provider)
    given = Settings(provider=provider, workers=workers, options=read_options(ctx))
    chosen = resolve_provider(given, defaults)
    refuse_options(given, chosen)
    with session(DEFAULT_FLEET, output) as running:
        run(chosen, given.over(defaults), running.services, running)
