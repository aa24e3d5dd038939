"""Instances that were kept after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.moves import check

if TYPE_CHECKING:
    from tests.cloud.histories import History


@check("up")
def check_no_instance_powers_off(history: History) -> None:
    assert not [instance for instance in history.running() if instance.metadata()["fleet-stop-at"] != "0"]
