"""A job whose texts all try to break out of the page."""

from __future__ import annotations

from typing import Any

from fleet.reports.page import Measure, measures_of
from fleet.reports.record import Fault, FirstCause, JobRecord, TaskRecord

HOSTILE = "</script></style><img src=x onerror=alert(1)>\x1b[31m\u202e{{ 7*7 }}"
START = 1_795_000_000.0


def job(text: str = HOSTILE, tasks: int = 2) -> JobRecord:
    """Return a job in whose descriptions all free texts are `text`."""
    names = [f"worker-{index}" for index in range(tasks)]
    return JobRecord(
        job="20261122-231517-tszg",
        fleet=text,
        name="demo",
        script=text,
        arguments=["--lr", text],
        state="failed",
        reason=text,
        started_at=START,
        ended_at=START + 120,
        collected_at=START + 130,
        attempt=2,
        attempts=3,
        provider="gce",
        hosts=2,
        price_usd_h=1.5,
        code_sha256="ab" * 32,
        fleet_version="0.1.0",
        tasks=[
            TaskRecord(name, name, text, text, "{}", text, {"python": "3.12.1", text: text}, {text: 0.5}, 3, 20, 8.3)
            for name in names
        ],
        faults=[Fault(START + 60, 1, names[0], text), Fault(START + 62, 1, "", text, is_failure=False)],
        cause=FirstCause(names[0], "unknown", text, ["x" * 1_000_000, text], text, [text], text),
        environment=[text],
        notes=[text],
    )


def measures(text: str = HOSTILE, tasks: int = 2, samples: int = 2000) -> list[Measure]:
    """Return the measures of a job with two attempts, one metric of which has the name `text`."""
    return measures_of({
        f"worker-{index}": {
            attempt: [_sample(60 * attempt - 60 + 55 * at / samples, at, index, text) for at in range(samples)]
            for attempt in (1, 2)
        }
        for index in range(tasks)
    })  # fmt: skip


def _sample(at: float, number: int, index: int, text: str) -> dict[str, Any]:
    return {
        "at": START + at,
        "cpu_percent": 50.0 + number % 7,
        "memory_bytes": 1 << 30,
        "steps_per_s": 8.0,
        "gpus": [{"number": 0, "percent": 90, "memory_mib": 9000}],
        "metrics": {"loss": 2.0 / (1 + number), text: float(index)},
    }
