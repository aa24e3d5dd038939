from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.cli.fleets.ssh import find_slot


def reports(**tasks: str) -> Any:
    return {slot.replace("_", "-"): SimpleNamespace(task=task) for slot, task in tasks.items()}


@pytest.mark.parametrize(
    ("task", "slot"),
    [("", "worker-0"), ("chief-0", "worker-0"), ("worker-0", "worker-2"), ("worker-3", "worker-3"), ("ps-0", "")],
)
def test_a_task_is_found_by_its_name_and_the_first_one_by_rank(task: str, slot: str) -> None:
    """A spare has no task; it has the name of its slot."""
    assert find_slot(task, reports(worker_2="worker-0", worker_0="chief-0", worker_3="")) == slot
