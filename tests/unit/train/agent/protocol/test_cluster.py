from __future__ import annotations

import pytest

from train.agent.protocol.cluster import expand_placeholders
from train.agent.protocol.records import Member

MEMBERS = [
    Member("worker-1", "worker-1", "10.0.0.3", 2222, 1),
    Member("ps-0", "ps-0", "10.0.0.9", 2222, 1),
    Member("chief-0", "chief-0", "10.0.0.2", 2223, 1),
    Member("worker-0", "worker-0", "fd00::4", 2222, 1),
]


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("{rank}", "2"),
        ("--id={index}", "--id=1"),
        ("{type}:{index} of {tasks}", "worker:1 of 4"),
        ("{worker_hosts}", "[fd00::4]:2222,10.0.0.3:2222"),
        ("{ps_hosts}", "10.0.0.9:2222"),
        ("{addresses}", "10.0.0.2:2223,[fd00::4]:2222,10.0.0.3:2222,10.0.0.9:2222"),
        ("run-{attempt}/worker{rank}", "run-3/worker2"),
        ("{{rank}}", "{rank}"),
        ('{"rank":{rank},"f":"{type}"}', '{"rank":2,"f":"worker"}'),
        ("python task.py --rank {rank} --job_name '{type}'", "python task.py --rank 2 --job_name 'worker'"),
    ],
)
def test_placeholders_have_the_values_of_the_task(word: str, expanded: str) -> None:
    assert expand_placeholders(["python", word], MEMBERS, "worker-1", 3) == ["python", expanded]


@pytest.mark.parametrize(
    "word",
    [
        "{}",
        "{epoch}",
        "ckpt-{epoch:02d}-{rank:02d}-{rank!r}.h5",
        "{{epoch}}",
        "{{ rank }}",
        '{"rank": 1, "type": {"index": [{}]}}',
        "rank",
        "{Rank}",
        "for rank in 0 1; do echo ${rank} ${type}x; done",
        'print(f\'{rank}\', rf"{index} \'x\' {type}", f"""a "{tasks}" b""", f\'it\\\'s {rank}\')',
        "awk '{ print $1 }'",
        "$(cat x){a,b}{1..3}",
    ],
)
def test_other_text_in_braces_stays_as_it_is(word: str) -> None:
    command = ["{rank}", word, "{}", "+"]
    assert expand_placeholders(command, MEMBERS, "worker-1", 1) == command
