"""Jobs by their names, over real sshd and agents."""

from __future__ import annotations

import pytest

from tests.program import Program

pytestmark = pytest.mark.wire

SAYS = """
import sys
print("arguments", *sys.argv[1:])
print("epoch 1/1 loss: 0.25", flush=True)
"""


def job_of(events: list[dict[str, object]]) -> str:
    return str(next(event["job"] for event in events if event["event"] == "job_started"))


def test_a_job_is_found_by_its_name_its_number_and_the_start_of_its_id(two: Program) -> None:
    two.script("task.py", SAYS)
    assert "next:  fleet train --name my-run task.py" in two.run("train", "task.py", "--name", "My run", code=2).err
    assert "no job has run on" in two.run("stop", "-1", code=102).err
    first = two.run("train", "--name", "base", "task.py", "-o", "json", "--", "a").events
    assert next(event["name"] for event in first if event["event"] == "job_started") == "base"
    base = job_of(first)
    other = job_of(two.run("train", "task.py", "-o", "json", "--", "b").events)

    for reference in (base, base[:-1], "base", "-2"):
        assert "| arguments a\n" in two.run("logs", "--job", reference).text
    assert "| arguments b\n" in two.run("logs", "--job", "-1").text
    assert f"in {two.directory}/results/{other}" in two.run("pull", "-1").err
    assert f"in {two.directory}/saved" in two.run("pull", "-2", "--to", "saved").err
    assert f"job {base} had already ended" in two.run("stop", "base").err

    unknown = two.run("pull", "bass", code=102).err
    assert unknown == ("error: fleet 'default' has no job 'bass'\nhint:  did you mean base?\nnext:  fleet jobs\n")
    assert "the IDs of 2 jobs begin with '20'" in two.run("logs", "--job", "20", code=2).err
    assert f"they are {other}, {base}" in two.run("jobs", "20", code=2).err
    assert "has no job -9: it has 2 jobs" in two.run("jobs", "-9", code=102).err

    (listed,) = (event["jobs"] for event in two.run("jobs", "-o", "json").events if event["event"] == "jobs_listed")
    assert [(job["job"], job["name"]) for job in listed] == [(other, None), (base, "base")]
    assert (listed[1]["arguments"], listed[1]["metrics"], listed[1]["state"]) == (["a"], {"loss": 0.25}, "succeeded")
    assert listed[1]["duration_s"] >= 0
    (only,) = (event["jobs"] for event in two.run("jobs", "-2", "-o", "json").events if "jobs" in event)
    assert [job["job"] for job in only] == [base]
    named = job_of(two.run("train", "--name", "base", "task.py", "-o", "json").events)
    assert "2 jobs have the name 'base'" in two.run("pull", "base", code=2).err
    assert f"job {named}  succeeded  base: task.py" in two.run("status").text
    assert "| arguments\n" in two.run("logs", "--job", "-1").text
