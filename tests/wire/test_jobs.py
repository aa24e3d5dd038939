"""Jobs by their names, over real sshd and agents."""

from __future__ import annotations

import dataclasses

import pytest

from tests.program import Program, wait_for

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

    unknown = two.run("pull", "bass", code=102).messages
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
    compared = two.run("compare", "base", "-1", "-o", "json").events[-1]
    assert (compared["first"]["arguments"], compared["second"]["arguments"]) == (["a"], ["b"])
    assert compared["first"]["code_sha256"] == compared["second"]["code_sha256"]
    assert compared["first"]["versions"]["python"]
    assert "* arguments  " in two.run("compare", "-2", "-1").text
    assert f"both are job {other}" in two.run("compare", other, "-1", code=2).err
    two.script("task.py", SAYS + "# changed\n")
    named = job_of(two.run("train", "--name", "base", "task.py", "-o", "json").events)
    compared = two.run("compare", base, named, "-o", "json").events[-1]
    assert compared["first"]["code_sha256"] != compared["second"]["code_sha256"]
    assert "2 jobs have the name 'base'" in two.run("pull", "base", code=2).err
    assert f"job {named}  succeeded  base: task.py" in two.run("status").text
    assert "| arguments\n" in two.run("logs", "--job", "-1").text
    two.run("report", "--job", "-1")
    two.run("report", "--to", "other")
    assert sorted(path.name for path in two.directory.glob("other*")) == ["other.capsule.zip", "other.html"]
    two.run("rerun", "-1")  # reports are not code of the next job
    compared = two.run("compare", "-2", "-1", "-o", "json").events[-1]
    assert compared["first"]["code_sha256"] == compared["second"]["code_sha256"]


SAVES = """
import os, pathlib, sys, time
path = pathlib.Path(os.environ["FLEET_CHECKPOINT_DIR"], "count")
count = int(path.read_text()) if path.exists() else 0
print(f"begin {count} {os.environ.get('WORD')}", flush=True)
if os.environ["FLEET_RANK"] == "0" and "nothing" not in sys.argv:
    path.with_suffix(".tmp").write_text(str(count + 1))
    path.with_suffix(".tmp").replace(path)
if "fail" in sys.argv:
    hosts, job = path.parents[6], path.parents[2].name
    while len(list(hosts.glob(f"*/fleet/jobs/{job}/*/replica/[0-9]*/manifest"))) < 2:
        time.sleep(0.05)  # until both hosts have the checkpoint
    raise ValueError("no")
if "wait" in sys.argv:
    time.sleep(600)
"""


def test_a_job_is_continued_and_repeated(pair: Program) -> None:
    pair.script("saves.py", SAVES)
    pair.run("train", "saves.py", "--", "nothing")
    assert "has no complete checkpoint" in pair.run("train", "--resume", "saves.py", code=102).err
    assert "did you mean" not in pair.run("train", "--resume=zzz", "saves.py", code=102).err
    for option, value in (("--checkpoint-bandwidth", "0"), ("--checkpoint-dir", "gs://b/c")):
        assert f"{option}" in pair.run("train", "--resume", "saves.py", option, value, code=2).err

    secret = ("-e", "WORD=hidden", "-e", "API_TOKEN=abc", "--secret", "PIN")
    failed = pair.run("train", *secret, "saves.py", "--", "fail", code=100, env={"PIN": "1234"})
    job = failed.err.split("error: job ")[1].split()[0]
    assert f"fleet train --resume {job} -e WORD=hidden --env API_TOKEN --secret PIN saves.py -- fail\n" in failed.err
    stored = (pair.state / "fleets/default/commands" / job).read_text()
    assert "abc" not in stored
    assert "1234" not in stored

    # The agent of worker-0 has lost the checkpoint: it comes from worker-1.
    for replica in (pair.state / "local").glob(f"default-worker-0/fleet/jobs/{job}/worker-0/replica"):
        replica.rename(replica.with_name("lost"))
    resumed = pair.start("train", "--resume", job, "saves.py", "--name", "more", "--", "wait")
    wait_for("the task", lambda: len(pair.tasks()) == 2 or None)
    assert "is running" in pair.run("train", "--resume", "more", "saves.py", code=14).err
    stopped = pair.run("stop", "more", "--grace", "0").err
    out = pair.finish(resumed, code=103)
    assert {line.split(" | ")[1] for line in out.text.splitlines() if "begin" in line} == {"begin 1 None"}
    assert f"continuing from checkpoint count of job {job}" in out.err
    more = out.err.split("error: job ")[1].split()[0]
    assert f"`fleet train --resume {more}`" in stopped

    assert "--env API_TOKEN: the variable is not set here" in pair.run("rerun", job, code=2).err
    assert "--secret PIN: the variable is not set here" in pair.run("rerun", job, code=2, env={"API_TOKEN": "x"}).err
    environment = {"API_TOKEN": "x", "PIN": "1"}
    pair.script("saves.py", SAVES.replace("begin", "changed"))
    elsewhere = dataclasses.replace(pair, directory=pair.state)
    again = elsewhere.run("rerun", job, "--name", "again", code=100, env=environment)
    assert "| changed 0 hidden\n" in again.text
    continued = elsewhere.run("train", "--resume=again", "-o", "lines", code=100, env=environment)
    assert "| changed 1 hidden\n" in continued.text


QUEUED = """
import os, pathlib, sys, time
name, directory = sys.argv[1], pathlib.Path(sys.argv[2])
with open(directory / "order", "a") as order:
    order.write(f"{name}\\n")
print(f"begin {name}", flush=True)
while not (directory / name).exists():
    time.sleep(0.1)
"""


def test_queued_jobs_start_on_the_hosts_in_order_without_a_client(two: Program) -> None:
    two.script("task.py", QUEUED)
    options, order = ("--", str(two.directory)), two.directory / "order"

    def train(name: str, *more: str) -> tuple[str, ...]:
        return ("train", "--name", name, *more, "task.py", "--", name, str(two.directory))

    stored = two.state / "fleets/default/commands"
    before = len(list(stored.glob("*")))
    two.run(*train("first", "--after=-1", "--detach"))
    queued = two.run(*train("second", "--after", "--detach", "-o", "json")).events
    (event,) = (event for event in queued if event["event"] == "job_queued")
    client = two.start(*train("third", "--after=first", "-o", "json"))
    wait_for("the queue", lambda: len(list(stored.glob("*"))) == before + 3)
    client.kill()
    client.wait()

    refused = two.run("train", "task.py", *options, code=14).err
    assert f"job {event['after']} is running on this host" in refused
    assert "next:  fleet train --after task.py -- " in refused
    assert "did you mean second?" in two.run("train", "--after=secnd", "task.py", *options, code=102).err
    refused = two.run("train", "--after", "--tasks-per-host", "2", "task.py", code=14).err
    assert "fleet train --tasks-per-host 1 --after" in refused
    (listed,) = (event["jobs"] for event in two.run("jobs", "-o", "json").events if event["event"] == "jobs_listed")
    third, second, first = (job["job"] for job in listed[:3])
    assert [(job["state"], job["queued_after"]) for job in listed[:3]] == [
        ("queued", second),
        ("queued", first),
        ("running", None),
    ]
    assert "| begin first" in two.run("logs", code=101).text
    assert f"fleet logs -f --job {second}" in two.run("logs", "--job", "second", code=101).err
    assert f"job {second} is queued and cannot be deleted" in two.run("jobs", "--prune", second, "--yes", code=14).err
    assert f"job {third} task.py: queued after job {second}" in two.run("down", code=2).err

    assert f"job {second} is stopped on all hosts" in two.run("stop", "second").err
    assert order.read_text().split() == ["first", "first"]
    (two.directory / "first").touch()
    wait_for("the last job", lambda: order.read_text().split() == ["first", "first", "third", "third"])
    (two.directory / "third").touch()
    shown = two.run("logs", "-f", "--job", "third", "-o", "json").events
    assert "begin third" in "".join(event.get("text", "") for event in shown)
    ended = two.run("train", "--after=third", "--detach", *train("fourth")[1:]).err
    assert f"job {third} has already ended; the job starts now" in ended
    assert f"job {third}" not in two.run("stop").err
