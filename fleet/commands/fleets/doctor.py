"""`fleet doctor`: what a provider needs, and whether it is there."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.errors import CredentialsError, FleetError, NotReadyError
from fleet.events import Checked, Sink
from fleet.fleets.resolution import cloud_of
from fleet.ports import Ports
from fleet.settings import Settings
from fleet.steps import read_steps
from fleet.translation import translated
from provision.model import CloudSpec
from provision.quantities import counted


@dataclass(frozen=True)
class DoctorRequest:
    """Request of the command.

    Attributes:
        provider: Whose needs are looked at.
        settings: Project and endpoint, of the command line, the environment and fleet.toml.
    """

    provider: str
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class DoctorSummary:
    """Number of checks; all passed."""

    checked: int


def run(request: DoctorRequest, ports: Ports, sink: Sink) -> DoctorSummary:
    """Look at all that the provider needs; touch nothing.

    Raises:
        UsageError: there is no such provider.
        CredentialsError: it does not know the caller.
        NotReadyError: something else is missing.
    """
    cloud = cloud_of(request.settings, CloudSpec()) if request.provider == "gce" else CloudSpec()
    with translated():
        findings = ports.provider(request.provider, cloud, keep=False).doctor()
    for finding in findings:
        sink.emit(
            Checked(
                provider=request.provider,
                subject=finding.subject,
                ok=finding.ok,
                message=finding.message,
                next_step=finding.next_step,
                hint=finding.hint,
            )
        )
    missing = [finding for finding in findings if not finding.ok]
    if missing:
        unknown = any(finding.subject == "credentials" for finding in missing)
        kind: type[FleetError] = CredentialsError if unknown else NotReadyError
        raise kind(
            f"{len(missing)} of {counted(len(findings), 'check')} failed for provider {request.provider!r}",
            hint=next((finding.hint for finding in missing if finding.hint), ""),
            next_steps=read_steps(next((finding.next_step for finding in missing if finding.next_step), "")),
        )
    return DoctorSummary(len(findings))
