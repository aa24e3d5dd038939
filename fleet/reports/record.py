"""The description of a job that a report is made of, and its JSON.

`fleet pull` stores it next to the results, so that a report needs no fleet. A capsule contains it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from train.agent.protocol.records import MalformedRecordError, build, to_dict
from train.agent.protocol.strict_json import JsonError, parse_json

FORMAT = 1
"""Version of the JSON; readers refuse later ones."""

LARGEST = 32 << 20
"""Maximum size of the JSON in bytes."""


class Fault(NamedTuple):
    """Something that happened to a job: a failed attempt, a hang, a lost host, a notice.

    Attributes:
        at: Seconds since the epoch.
        attempt: Number of the attempt.
        task: The task; empty: the whole job.
        text: A sentence.
        is_failure: It is more than a notice.
    """

    at: float
    attempt: int
    task: str
    text: str
    is_failure: bool = True


class FirstCause(NamedTuple):
    """The first cause of a job's failure; fields as in `train.diagnosis.verdict.Verdict`."""

    task: str
    kind: str
    message: str
    lines: list[str] = []
    traceback: str = ""
    consequences: list[str] = []
    hint: str = ""


class TaskRecord(NamedTuple):
    """A task of a job.

    Attributes:
        task: Its name.
        slot: Its slot in the first attempt.
        host: The host.
        endpoint: Address and port of its TensorFlow server in the first attempt.
        tf_config: Its TF_CONFIG in the first attempt; empty: unknown.
        state: Its phase, or how it ended; empty: unknown.
        versions: Versions of Python and packages.
        metrics: Last values.
        epoch: Last epoch; None: unknown.
        step: Last step of the epoch; None: unknown.
        steps_per_s: Last rate; None: unknown.
    """

    task: str
    slot: str
    host: str
    endpoint: str
    tf_config: str = ""
    state: str = ""
    versions: dict[str, str] = {}
    metrics: dict[str, float] = {}
    epoch: int | None = None
    step: int | None = None
    steps_per_s: float | None = None


class JobRecord(NamedTuple):
    """A job, as far as it is known.

    Attributes:
        job: Its identifier.
        fleet: Name of its fleet.
        name: The name that the user gave it; empty: none.
        script: What it runs, for users.
        arguments: Arguments of the script.
        state: ``running``, an outcome, or empty if it is unknown.
        reason: Why it ended, as its hosts report it; empty: nothing to say.
        started_at: Seconds since the epoch; 0: unknown.
        ended_at: Seconds since the epoch; None: it is running, or unknown.
        collected_at: When this was collected, in seconds since the epoch.
        attempt: Number of the last attempt.
        attempts: Maximum number of attempts; 0: no limit.
        provider: Where the hosts come from.
        hosts: Number of hosts of the fleet.
        price_usd_h: Estimated price of the fleet in US dollars an hour; 0: free, or not known.
        code_sha256: Hash of all uploaded files; empty: unknown.
        fleet_version: Version of this program.
        tasks: Its tasks by rank.
        faults: What went wrong, in the order of time.
        cause: The first cause of its failure; None: it did not fail.
        environment: Names of the variables that the user set; None: unknown. Values are never stored.
        notes: Sentences on what is missing.
    """

    job: str
    fleet: str
    name: str = ""
    script: str = ""
    arguments: list[str] = []
    state: str = ""
    reason: str = ""
    started_at: float = 0.0
    ended_at: float | None = None
    collected_at: float = 0.0
    attempt: int = 1
    attempts: int = 1
    provider: str = ""
    hosts: int = 0
    price_usd_h: float = 0.0
    code_sha256: str = ""
    fleet_version: str = ""
    tasks: list[TaskRecord] = []
    faults: list[Fault] = []
    cause: FirstCause | None = None
    environment: list[str] | None = None
    notes: list[str] = []

    @property
    def duration_s(self) -> float | None:
        """Return the seconds from the start to the end, or until now if the job is running; None: unknown."""
        end = self.ended_at if self.ended_at is not None else self.collected_at if self.state == "running" else None
        return max(0.0, end - self.started_at) if end is not None and self.started_at else None

    @property
    def cost_usd(self) -> float | None:
        """Return the estimated cost of the fleet during the job in US dollars; None: no price, or unknown."""
        duration_s = self.duration_s
        return self.price_usd_h * duration_s / 3600 if self.price_usd_h > 0 and duration_s is not None else None


def encode_record(record: JobRecord) -> bytes:
    """Return a record as JSON."""
    text = json.dumps({"format": FORMAT, **to_dict(record)}, indent=1, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"


def decode_record(data: bytes) -> JobRecord:
    """Return the record in JSON.

    Raises:
        ValueError: it is not a record, or one of a later version.
    """
    try:
        values = parse_json(data) if len(data) <= LARGEST else None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError("it is not the description of a job, or one of a later version of fleet")
        record: JobRecord = build(JobRecord, values)
    except (JsonError, MalformedRecordError) as error:
        raise ValueError(str(error)) from None
    return record


def packages_of(tasks: Sequence[TaskRecord]) -> Mapping[str, list[str]]:
    """Return the versions of each package by task, in the order of the tasks; empty: not installed."""
    names = sorted({name for task in tasks for name in task.versions}, key=_package_rank)
    return {name: [task.versions.get(name, "") for task in tasks] for name in names}


def _package_rank(name: str) -> tuple[int, str]:
    order: Any = ("python", "tensorflow", "keras", "tf_keras")
    return order.index(name) if name in order else len(order), name
