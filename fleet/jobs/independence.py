"""Detect jobs whose tasks trained alone instead of together."""

from __future__ import annotations

from collections.abc import Iterable

from train.agent.gang.assignment import is_evaluator
from train.agent.protocol.records import JobResult, Outcome


def independence_warning(result: JobResult, tasks: Iterable[tuple[str, bool | None]]) -> str:
    """Return a warning if a job succeeded although no task listened on its port; empty if one did.

    Args:
        result: The result of the job.
        tasks: The tasks of its last attempt, and whether each listened on its port; None: unknown.
    """
    listened = [has_listened for task, has_listened in tasks if not is_evaluator(task)]
    if (
        result.outcome is not Outcome.SUCCEEDED
        or len(listened) < 2
        or any(has_listened is not False for has_listened in listened)
    ):
        return ""
    return (
        f"no task opened its port: each of the {len(listened)} tasks trained alone; TF_CONFIG is set for each task, "
        "but the script has to create tf.distribute.MultiWorkerMirroredStrategy()"
    )
