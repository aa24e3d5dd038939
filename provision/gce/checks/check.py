"""A check of `fleet doctor`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from provision.gce.account import Account
from provision.gce.api.client import ApiError
from provision.gce.diagnosis import diagnose
from provision.gce.options import GceOptions
from provision.model import Finding
from provision.provider import ProviderError


class Check(NamedTuple):
    """A check of one prerequisite. It does not depend on the results of other checks, except for those it requires.

    Attributes:
        subject: Name of the prerequisite, ``credentials``.
        run: Function that returns the result as a message, or as a finding. It raises ApiError or ProviderError if
            the prerequisite is not met.
        requires: Subjects of the checks without which this one cannot run.
        is_optional: `fleet up` does not make the calls of the check. If one fails, the prerequisite is unknown, not
            missing.
    """

    subject: str
    run: Callable[[Account, GceOptions], str | Finding]
    requires: Collection[str] = ("API",)
    is_optional: bool = False

    def finding(self, account: Account, cloud: GceOptions) -> Finding:
        """Return the result as a finding, or the reason why the check failed."""
        try:
            result = self.run(account, cloud)
            return Finding(self.subject, True, result) if isinstance(result, str) else result
        except ApiError as error:
            diagnosis = diagnose(
                error.failures,
                project=_project(account),
                location="",
                doing=f"check the {self.subject}",
                member=account.api.member,
            )
            if self.is_optional:
                return replace(diagnosis.finding(self.subject), ok=None)
            # If nothing answers, the credentials are not to blame but the connection.
            offline = self.subject == "credentials" and not error.status
            return diagnosis.finding("connection" if offline else self.subject)
        except ProviderError as error:
            return error.finding(self.subject)


def _project(account: Account) -> str:
    """Return the project, or a placeholder if it is unknown."""
    try:
        return account.api.project
    except (ApiError, ProviderError):
        return "(unknown)"
