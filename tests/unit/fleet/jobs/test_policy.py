"""The options that set how a job reacts to failures."""

from __future__ import annotations

import pytest

from fleet.errors import UsageError
from fleet.jobs.policy import check_policy, on_fleet
from tests.next_steps import repetition
from train.agent.protocol.records import OnHang, Policy, RestartPolicy

NONSENSE = [
    (Policy(), 2, 10.0, "leaves no worker"),
    (Policy(restarts=1, min_workers=3), 0, 10.0, "more than the 2"),
    (Policy(restarts=1, min_workers=2), 1, 10.0, "more than the 1"),
    (Policy(max_workers=1), 0, 10.0, "--max-workers 1 is less than the 2"),
    (Policy(restarts=1, restart=RestartPolicy.NEVER), 0, 10.0, "never contradicts"),
    (Policy(restart=RestartPolicy.EXIT_CODE), 0, 10.0, "without --restarts"),
    (Policy(), 1, 10.0, "--spares 1 needs --restarts"),
    (Policy(min_workers=1), 0, 10.0, "--min-workers 1 needs --restarts"),
    (Policy(restarts=1, on_hang=OnHang.RESTART), 0, 10.0, "needs --hang-timeout"),
    (Policy(hang_timeout_s=9.0, on_hang=OnHang.RESTART), 0, 10.0, "needs --restarts"),
    (Policy(), 0, 0.5, "--link-timeout 0.5"),
]


@pytest.mark.parametrize(("policy", "spares", "link_timeout_s", "says"), NONSENSE)
def test_contradicting_options_are_refused(policy: Policy, spares: int, link_timeout_s: float, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        check_policy(policy, spares=spares, hosts=2, link_timeout_s=link_timeout_s)
    assert raised.value.hint or repetition(raised.value)


@pytest.mark.parametrize(
    ("spot", "preemptions", "host_timeout_s", "wanted"),
    [
        (False, None, None, (0, 60.0)),
        (True, None, None, (-1, 1800.0)),
        (True, 0, 90.0, (0, 90.0)),
        (False, 3, 0.0, (3, 0.0)),
    ],
)
def test_defaults_depend_on_the_hosts(
    spot: bool, preemptions: int | None, host_timeout_s: float | None, wanted: tuple[int, float]
) -> None:
    policy = on_fleet(Policy(restarts=2), spot=spot, preemptions=preemptions, host_timeout_s=host_timeout_s)
    assert (policy.preemptions, policy.host_timeout_s, policy.restarts) == (*wanted, 2)
    assert policy.max_attempts == (0 if wanted[0] < 0 else 3 + wanted[0])
