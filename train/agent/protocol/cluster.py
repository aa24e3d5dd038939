"""Build the cluster spec of a job and the TF_CONFIG of each task.

Format: tf.distribute.cluster_resolver.TFConfigClusterResolver,
https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Dict, List, Sequence, Tuple

from train.agent.protocol.records import Member
from train.agent.protocol.wording import endpoint

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
PLACEHOLDERS = ("rank", "index", "type", "tasks", "addresses", "worker_hosts", "ps_hosts", "attempt")
"""Words that are replaced in the arguments of a task if they are in braces."""
_NAME = f"(?:{'|'.join(PLACEHOLDERS)})"
# Unchanged: f-strings of Python, and parameters of a shell such as ${rank}.
_F_STRING = r"""(?<![\w"'])(?:[fF][rR]?|[rR][fF])("{3}|'{3}|["'])(?:\\.|(?!\1).)*\1"""
_PLACEHOLDER = re.compile(rf"{_F_STRING}|\{{(\{{{_NAME}\}})\}}|(?<!\$)\{{({_NAME})\}}", re.DOTALL)


@lru_cache(maxsize=1 << 14)  # a leader sorts the names of all tasks often
def parse_task(name: str) -> Tuple[str, int]:
    """Return type and index of a task: ``("worker", 1)`` for ``worker-1``.

    Raises:
        ValueError: `name` is not a task type of TensorFlow with an index.
    """
    kind, separator, index = name.rpartition("-")
    if not separator or kind not in TASK_TYPES or not (index.isascii() and index.isdigit()):
        raise ValueError(f"{name!r} is not a task such as worker-0")
    return kind, int(index)


def is_task(name: str) -> bool:
    """Return whether a name is that of a task, such as worker-0."""
    try:
        parse_task(name)
    except ValueError:
        return False
    return True


def task_rank(name: str) -> Tuple[int, int]:
    """Return the sort key of a task: by type in TensorFlow's order, then by index."""
    kind, index = parse_task(name)
    return TASK_TYPES.index(kind), index


def cluster_spec(members: Sequence[Member]) -> Dict[str, List[str]]:
    """Return the endpoints of all tasks by type, ordered by index; types without members are left out.

    Raises:
        ValueError: indices of a type do not count up from 0, or two tasks share an endpoint.
    """
    by_type: Dict[str, Dict[int, str]] = {}
    for member in members:
        kind, index = parse_task(member.task)
        if index in by_type.setdefault(kind, {}):
            raise ValueError(f"duplicate task {member.task} in the cluster spec")
        by_type[kind][index] = endpoint(member.address, member.port)
    spec = {}
    for kind in TASK_TYPES:
        indices = by_type.get(kind, {})
        if sorted(indices) != list(range(len(indices))):
            raise ValueError(f"the indices of {kind} are {sorted(indices)}, not 0 to {len(indices) - 1}")
        if indices:
            spec[kind] = [indices[i] for i in range(len(indices))]
    endpoints = [item for items in spec.values() for item in items]
    if len(set(endpoints)) != len(endpoints):
        raise ValueError("two tasks of the cluster spec share an address and port")
    return spec


def chief_of(members: Sequence[Member]) -> Member:
    """Return the chief: the task of that type, or else worker 0.

    Raises:
        ValueError: there is neither.
    """
    by_task = {member.task: member for member in members}
    for task in ("chief-0", "worker-0"):
        if task in by_task:
            return by_task[task]
    raise ValueError("a job has a chief or a worker 0")


def called(members: Sequence[Member], slot: str, name: str) -> str:
    """Return the name of a slot with its address: ``worker-1 (10.0.0.3)``."""
    address = next((member.address for member in members if member.slot == slot), "")
    return f"{name} ({address})" if address else name


def tf_config(members: Sequence[Member], task: str) -> str:
    """Return TF_CONFIG of `task` as JSON, with the cluster in the same order on every task.

    An evaluator is in a cluster of its own: the coordinator of ParameterServerStrategy would wait for one in its
    cluster, and a MultiWorkerMirroredStrategy in the evaluator must find itself, and stops when it
    does not find others that it knows of (multi_worker_util.worker_count and CollectiveAllReduceStrategy's health
    check in TensorFlow 2.21).
    """
    kind, index = parse_task(task)
    is_evaluator = kind == "evaluator"
    seen = [member for member in members if (parse_task(member.task)[0] == "evaluator") is is_evaluator]
    return json.dumps({"cluster": cluster_spec(seen), "task": {"type": kind, "index": index}})


def by_rank(members: Sequence[Member]) -> List[Member]:
    """Return the tasks by rank: by type in TensorFlow's order, then by index."""
    return sorted(members, key=lambda member: task_rank(member.task))


def placeholder_values(members: Sequence[Member], task: str, attempt: int) -> Dict[str, str]:
    """Return the values of PLACEHOLDERS for one task; lists are separated by commas."""
    kind, index = parse_task(task)
    ends = [(member.task, endpoint(member.address, member.port)) for member in by_rank(members)]
    lists = (",".join(end for name, end in ends if name.startswith(prefix)) for prefix in ("", "worker-", "ps-"))
    rank = str([name for name, _ in ends].index(task))
    return dict(zip(PLACEHOLDERS, (rank, str(index), kind, str(len(ends)), *lists, str(attempt))))


def expand_placeholders(command: Sequence[str], members: Sequence[Member], task: str, attempt: int) -> List[str]:
    """Return a command with the values of one task: ``{rank}`` becomes ``1``, and ``{{rank}}`` becomes ``{rank}``.

    Args:
        command: The program, which stays as it is, and its arguments.
        members: All tasks of the job.
        task: The task that runs the command.
        attempt: From 1.
    """
    values = placeholder_values(members, task, attempt)
    expanded = (_PLACEHOLDER.sub(lambda at: at[2] or values.get(at[3], at[0]), word) for word in command[1:])
    return [*command[:1], *expanded]
