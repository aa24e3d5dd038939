"""Copy what was uploaded for a job, and its logs, from its hosts into a capsule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.fleets.agents import call_each
from fleet.jobs.reporting.collection import slot_agents
from fleet.jobs.reporting.repetition import Repetition
from fleet.jobs.results import StoredJobs
from fleet.remote.bundles import contents_of, fetch_contents, get_bundle
from fleet.remote.client import AgentClient
from fleet.remote.fanout import raise_failures
from fleet.reports.capsule import FORMAT, LARGEST, Manifest, write_capsule
from fleet.reports.record import JobRecord, encode_record
from fleet.state import TrainCommand
from train.agent.files.disk import readable_size
from train.agent.protocol.cluster import is_task
from train.agent.protocol.records import BundleInfo, Follow, Log
from train.diagnosis.verdict import LARGEST_HEAD, LARGEST_TAIL

_CUT = b"\n[... the middle of the log is left out ...]\n"
_MOST_LOGS = 64 << 20  # bytes
_LONGEST_PACKAGE = 300


@dataclass(frozen=True)
class Collected:
    """A job of which a capsule is made.

    Attributes:
        job: The job.
        clients: Agents of hosts.
        key: Private key of the fleet.
        record: Its description.
        scratch: A directory for temporary files.
    """

    job: StoredJobs
    clients: Sequence[AgentClient]
    key: Path
    record: JobRecord
    scratch: Path


def store_capsule(path: Path, collected: Collected, command: TrainCommand, repetition: Repetition) -> JobRecord:
    """Write the capsule of a job; return the description of the job with what was learned.

    Raises:
        FleetError: a host does not have the files, they are too large, or the capsule cannot be written.
    """
    job = collected.job
    with slot_agents(job, collected.clients, collected.key) as agents:
        slots = [agent for agent in agents if agent.host.name in {task.stored.slot for task in job.tasks}]
        answers = call_each(slots, lambda agent: get_bundle(agent, job.job))
        first = next((index for index, answer in enumerate(answers) if answer.value is not None), None)
        if first is None:
            raise_failures(answers, "list the files of the job")
            raise NotReadyError(f"no host has the files of job {job.job}")
        infos = {answer.host.name: answer.value for answer in answers if answer.value is not None}
        info = infos[slots[first].host.name]
        _check_size(info)
        contents = collected.scratch / "contents"
        contents.mkdir()
        fetch_contents(slots[first], info.entries, contents)
        logs = _read_logs(slots, job.job, collected.record.attempt)
    record = collected.record._replace(environment=info.environment)
    texts = {"job.json": encode_record(record), **logs}
    for task in record.tasks:
        if task.slot in infos:
            packages = (package[:_LONGEST_PACKAGE] for package in infos[task.slot].packages)
            texts[f"packages/{task.task}.txt"] = "".join(f"{line}\n" for line in packages).encode()
    manifest = Manifest(
        format=FORMAT,
        job=job.job,
        options=list(repetition.options),
        entries=info.entries,
        program=list(command.program),
        name=command.name,
        requirements=without_logins(info.requirements),
        constraints=without_logins(info.constraints),
        versions=dict(record.tasks[0].versions) if record.tasks else {},
        environment=info.environment,
    )
    try:
        write_capsule(path, manifest, texts, contents)
    except (OSError, ValueError) as error:
        raise NotReadyError(f"{str(path)!r} cannot be written: {error}") from error
    return record


def without_logins(text: str) -> str:
    """Return a text without user names and passwords in its URLs."""
    return re.sub(r"(?<=://)[^/\s]*@", "", text)


def _check_size(info: BundleInfo) -> None:
    size = sum(contents_of(info.entries).values())
    if size > LARGEST // 2:
        raise NotReadyError(
            f"the uploaded files have {readable_size(size)}, and {readable_size(LARGEST // 2)} are the limit"
        )


def _read_logs(agents: Sequence[AgentClient], job: str, attempt: int) -> dict[str, bytes]:
    """Return the start and the end of the log of each task in the last attempt."""
    share = _MOST_LOGS // max(1, len(agents)) // 2
    head, tail = min(LARGEST_HEAD, share), min(LARGEST_TAIL, share)

    def read(agent: AgentClient) -> tuple[str, bytes]:
        request = Follow(
            job, agent.host.name, attempt=max(1, attempt), follow=False, head_bytes=head, tail_bytes=tail
        )
        log, task, end = bytearray(), "", 0
        for record, data in agent.follow(request):
            if isinstance(record, Log) and len(log) <= head + tail:
                log += _CUT + data if record.offset > end else data
                task, end = record.task, record.offset + len(data)
        return task, bytes(log)

    logs = [outcome.value for outcome in call_each(agents, read) if outcome.value is not None]
    return {f"logs/{task}/attempt-{attempt}.log": log for task, log in logs if log and is_task(task)}
