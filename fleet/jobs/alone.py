"""Find out whether the tasks of a job trained alone instead of together."""

from __future__ import annotations

from collections.abc import Iterable

from train.agent.gang.assignment import is_evaluator
from train.agent.protocol.records import JobResult, Outcome


def alone_warning(result: JobResult, tasks: Iterable[tuple[str, bool | None]]) -> str:
    """Return a warning if a job succeeded, but none of its tasks listened on its port; empty if there is none.

    Args:
        result: How the job ended.
        tasks: Those of its last attempt, and whether each listened; None: unknown.
    """
    listened = [found for task, found in tasks if not is_evaluator(task)]
    if result.outcome is not Outcome.SUCCEEDED or len(listened) < 2 or any(found is not False for found in listened):
        return ""
    return (
        f"no task opened its port: each of the {len(listened)} tasks trained alone; TF_CONFIG is set for each task, "
        "but the script has to create tf.distribute.MultiWorkerMirroredStrategy()"
    )
