"""Instances that were kept after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.moves import check

if TYPE_CHECKING:
    from tests.cloud.histories import History


@check("up")
def check_no_instance_powers_off_before_its_lifetime_ends(history: History) -> None:
    for instance in history.running():
        items = instance.metadata()
        assert items["fleet-stop-at"] == ("0" if history.deletes else items["fleet-end-at"])
