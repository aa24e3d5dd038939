"""The verdict on the newest job of a fleet, kept on this computer so that the logs of an ended job are read once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fleet import __version__
from train.agent.files.disk import write_atomic
from train.agent.protocol.records import JobReport, JobResult, encode, to_dict
from train.diagnosis.verdict import Kind, Verdict


class KeptVerdict:
    """The file of the verdict, which counts only for one state of the evidence.

    Args:
        path: The file.
        result: Result of the job.
        reports: The reports of all its slots.
    """

    def __init__(self, path: Path, result: JobResult, reports: Sequence[JobReport]) -> None:
        self._path = path
        tasks = [
            json.dumps(
                [report.slot, report.task, report.attempt, report.log_size, report.phase, to_dict(report.exit)]
            )
            for report in reports
        ]
        evidence = encode(result) + json.dumps([__version__, sorted(tasks)]).encode()
        self._digest = sha256(evidence).hexdigest()

    def read(self) -> Verdict | None:
        """Return the verdict; None if there is none for this evidence."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            values = json.loads(self._path.read_bytes())
            if values["evidence"] == self._digest:
                return _verdict_from(values["verdict"])
        return None

    def write(self, verdict: Verdict) -> None:
        """Keep the verdict in place of an earlier one; it is not kept if the file cannot be written."""
        values = {"evidence": self._digest, "verdict": vars(verdict)}
        with contextlib.suppress(OSError):
            write_atomic(str(self._path), json.dumps(values).encode())


def _verdict_from(values: dict[str, Any]) -> Verdict:
    lists = {name: tuple(values[name]) for name in ("lines", "consequences", "downloads")}
    return Verdict(**{**values, **lists, "kind": Kind(values["kind"])})
