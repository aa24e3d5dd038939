"""Find out what the tasks of a hung job do, and which task the others wait for. Pure.

A task that waits for its peers is inside TensorFlow: in a collective operation, at a barrier of the coordination
service, or at the start of its server. The others wait for the task that is somewhere else. The patterns match the
stacks of TensorFlow 2.21 in the format of CPython's faulthandler.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from train.agent.protocol.records import HangInspection, Member
from train.agent.protocol.wording import endpoint, join_names

if TYPE_CHECKING:
    from typing import TypeAlias

MOST_STACK = 32 << 10  # characters
_HEAD = "(most recent call first):"
_MAIN = "Main thread " + _HEAD
_CUT = "..."
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_STANDARD = re.compile(r"/lib(?:64)?/python\d+(?:\.\d+)?t?/(?!(?:site|dist)-packages/)|^<frozen |/python\d+\.zip/")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_TENSORFLOW = re.compile(r"/tensorflow/python/|/(?:tf_)?keras/")

COLLECTIVE = "in a collective operation"
BARRIER = "at a barrier"
START = "at the start of TensorFlow's server"
# Frames of TensorFlow that wait for peers: end of the file name and name of the function; the first match counts.
_WAITS = (
    (re.compile(r"/eager/context\.py wait_at_barrier"), BARRIER),
    (re.compile(r"/eager/context\.py (?:ensure_initialized|enable_collective_ops|get_config_key_value)"), START),
    (re.compile(r"/training/server_lib\.py __init__"), START),
    (re.compile(r"/eager/execute\.py quick_execute|/ops/gen_collective_ops\.py |/cross_device_ops\.py "), COLLECTIVE),
    (
        re.compile(r"/distribute/cross_device_utils\.py |/cluster_coordinator\.py |/eager/context\.py sync"),
        COLLECTIVE,
    ),
)
_INPUT = re.compile(r"/ops/gen_dataset_ops\.py |/data/ops/\w*iterator_ops\.py ")
_SERVES = re.compile(r"/training/server_lib\.py join")
_REPLICAS = re.compile(r"/distribute/mirrored_run\.py |/training/coordinator\.py ")
_CALLED_BACK = re.compile(r"/ops/script_ops\.py ")
_JOINS = re.compile(r"/threading\.py |/concurrent/futures/|/queue\.py ")
_NEAR = 3  # the waiting frame is among this many from the innermost TensorFlow frame on
_CPU_PERCENT = re.compile(r"now (\d+) % of a core")
_BUSY_PERCENT = 50
_ASKING = "SYN_SENT"
_SHUTDOWN = re.compile(r"/threading\.py _shutdown")


class TcpConnection(NamedTuple):
    """A TCP connection as one of its ends sees it."""

    local: str  # address and port
    remote: str
    state: str
    unsent: int  # bytes that the other end has not confirmed
    unread: int  # bytes that our process has not read

    def __str__(self) -> str:
        return f"{self.local} > {self.remote} {self.state} {self.unsent} unsent {self.unread} unread"


def read_connection(text: str) -> TcpConnection:
    """Return a connection from its text.

    Raises:
        ValueError: the text is not a connection.
    """
    words = text.split()
    if len(words) != 8 or words[1] != ">":
        raise ValueError(f"not a connection: {text!r}")
    return TcpConnection(words[0], words[2], words[3], int(words[4]), int(words[6]))


def main_first(text: str) -> str:
    """Return faulthandler's output with the main thread first, cut to `MOST_STACK` characters.

    faulthandler lists threads from the newest to the oldest, which is the main thread.
    """
    threads = threads_of(text)
    if not threads:
        return text[:MOST_STACK]
    main = threads.pop()
    parts = ["\n".join([_MAIN, *main[1]]), *("\n".join([head, *frames]) for head, frames in threads)]
    whole = "\n\n".join(parts) + "\n"
    return whole if len(whole) <= MOST_STACK else whole[: MOST_STACK - len(_CUT)] + _CUT


def threads_of(text: str) -> List[Tuple[str, List[str]]]:
    """Return the heading and frames of each thread that faulthandler lists, without the C stack of Python 3.14."""
    threads: List[Tuple[str, List[str]]] = []
    for line in text.splitlines():
        if line.endswith(_HEAD) and "C stack" not in line:
            threads.append((line, []))
        elif line.startswith("  ") and threads:
            threads[-1][1].append(line)
    return threads


class StackFrame(NamedTuple):
    """One call on a stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file} {self.function}"

    @property
    def location(self) -> str:
        """Return the location for messages: ``task.py:31 in load``."""
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


class Activity(NamedTuple):
    """Activity of one task."""

    waits: str = ""  # where it waits for its peers
    does: str = ""  # otherwise a key of `_CLAUSES`; empty if no task waits for it
    location: str = ""
    busy: bool = False  # it uses the CPU


Stack: TypeAlias = "List[StackFrame]"

# Clause for one task, and for several.
_CLAUSES = {
    "ended": ("has ended", "have ended"),
    "stopped": ("is stopped", "are stopped"),
    "kernel": ("is stuck in the kernel", "are stuck in the kernel"),
    "mute": ("shows no stack", "show no stacks"),
    "silent": ("does not answer", "do not answer"),
    "code": ("is in user code", "are in user code"),
    "called": ("is in user code of its input pipeline", "are in user code of their input pipelines"),
    "input": ("waits for its own input data", "wait for their own input data"),
    "library": ("is in library code", "are in library code"),
    "computes": ("computes in TensorFlow", "compute in TensorFlow"),
    "threads": (
        "has reached the end of its script and waits for its own threads",
        "have reached the end of their scripts and wait for their own threads",
    ),
}


def find_activity(inspection: HangInspection) -> Activity:
    """Return what a task is doing, from its state and its stacks."""
    if inspection.state in ("", "Z", "X", "x"):
        return Activity(does="ended")
    if inspection.state in ("T", "t"):
        return Activity(does="stopped", location="by SIGSTOP or a debugger")
    stacks = [_frames(lines) for _, lines in threads_of(inspection.stack)]
    if not stacks or not stacks[0]:
        return Activity(does="kernel" if inspection.state == "D" else "mute", location=inspection.kernel)
    activity = _activity_of_stack(stacks[0])
    if not activity.waits:
        activity = _activity_elsewhere(stacks) or activity
    if activity.waits or activity.does == "input":
        activity = _callback_activity(stacks) or activity
    if activity.does == "threads":
        activity = activity._replace(location=next(filter(None, map(_user_location, stacks[1:])), ""))
    percent = _CPU_PERCENT.search(inspection.kernel)
    return activity._replace(busy=percent is not None and int(percent.group(1)) >= _BUSY_PERCENT)


def _frames(lines: Sequence[str]) -> Stack:
    matches = (_FRAME.fullmatch(line) for line in lines)
    return [StackFrame(*match.groups()) for match in matches if match]


def _is_user_code(frame: StackFrame) -> bool:
    return not (_STANDARD.search(frame.file) or _INSTALLED.search(frame.file))


def _location(stack: Stack) -> str:
    """Return the location in user code, with the function that it called."""
    users = next((frame for frame in stack if _is_user_code(frame)), None)
    if users is None:
        return stack[0].location
    inner = stack[0]
    inside = "" if inner is users else f", inside {inner.function} of {os.path.basename(inner.file)}"
    return users.location + inside


def _user_location(stack: Stack) -> str:
    return next((frame.location for frame in stack if _is_user_code(frame)), "")


def _activity_of_stack(stack: Stack) -> Activity:
    first = next((frame for frame in stack if not _STANDARD.search(frame.file)), None)
    if first is None:
        ends = any(_SHUTDOWN.search(str(frame)) for frame in stack)
        return Activity(does="threads") if ends else Activity(does="code", location=stack[0].location)
    if _is_user_code(first) or not _TENSORFLOW.search(first.file):
        return Activity(does="code", location=_location(stack))
    if _SERVES.search(str(first)):
        return Activity()
    if _INPUT.search(str(first)):
        return Activity(does="input", location=_user_location(stack))
    at = stack.index(first)
    for pattern, where in _WAITS:
        if any(pattern.search(str(frame)) for frame in stack[: at + _NEAR]):
            return Activity(waits=where, location=_user_location(stack))
    return Activity(does="library", location=_location(stack))


def _activity_elsewhere(stacks: List[Stack]) -> Optional[Activity]:
    """Return what another thread waits for if the main thread only waits for that thread."""
    main = stacks[0]
    first = next((frame for frame in main if not _STANDARD.search(frame.file)), None)
    if not _JOINS.search(str(main[0])) and not (first is not None and _REPLICAS.search(str(first))):
        return None
    activities = (_activity_of_stack(stack) for stack in stacks[1:] if stack)
    return next((activity for activity in activities if activity.waits), None)


def _callback_activity(stacks: List[Stack]) -> Optional[Activity]:
    """Return user code that TensorFlow called from the input pipeline: a generator or a py_function."""
    for stack in stacks[1:]:
        if any(_CALLED_BACK.search(str(frame)) for frame in stack):
            return Activity(does="called", location=_location(stack))
    return None


def describe_hang(inspections: Mapping[str, HangInspection], members: Sequence[Member]) -> str:
    """Return a sentence without a period on which tasks wait for which one.

    Args:
        inspections: Inspection of each task, by its name in `members`.
        members: All tasks of the attempt; a task that is not in `inspections` did not answer.
    """
    waiting, others = _split_by_waiting(inspections, members)
    if waiting and others:
        return f"{_describe_others(others)}, and {_describe_waiting(waiting, 'it' if len(others) == 1 else 'them')}"
    if waiting:
        return _describe_all_waiting(waiting, _stuck(inspections, members))
    return f"{_describe_others(others)}; no task waits for another" if others else "no task waits for another"


def blocking_task(inspections: Mapping[str, HangInspection], members: Sequence[Member]) -> str:
    """Return the one task that others wait for; empty if there is none or more than one."""
    waiting, others = _split_by_waiting(inspections, members)
    return next(iter(others)) if waiting and len(others) == 1 else ""


def _split_by_waiting(
    inspections: Mapping[str, HangInspection], members: Sequence[Member]
) -> Tuple[Dict[str, Activity], Dict[str, Activity]]:
    """Return the tasks that wait for peers, and those that do something else."""
    activities = dict.fromkeys((member.task for member in members), Activity(does="silent"))
    activities.update({task: find_activity(seen) for task, seen in inspections.items() if task in activities})
    others = {task: activity for task, activity in activities.items() if activity.does}
    waiting = {task: activity for task, activity in activities.items() if activity.waits}
    busy = {task: activity._replace(does="computes") for task, activity in waiting.items() if activity.busy}
    if not others and len(busy) < len(waiting):
        others = busy
        waiting = {task: activity for task, activity in waiting.items() if task not in busy}
    return waiting, others


def is_serving(inspection: HangInspection) -> bool:
    """Return True if a task waits in TensorFlow's ``Server.join`` for work from a chief."""
    stacks = [_frames(lines) for _, lines in threads_of(inspection.stack)]
    return bool(stacks) and any(_SERVES.search(str(frame)) for frame in stacks[0])


def describe(inspection: HangInspection) -> str:
    """Return what one task does as a sentence without a period: ``worker-1 is in user code (task.py:31 in load)``."""
    activity = find_activity(inspection)
    if activity.waits:
        return f"{inspection.task} waits for its peers {activity.waits}{_parenthesize(activity.location)}"
    return _describe_others({inspection.task: activity}) if activity.does else f"{inspection.task} serves its peers"


def _describe_others(others: Mapping[str, Activity]) -> str:
    """Return clauses such as ``worker-1 is in user code (task.py:31 in load)``; equal ones are joined."""
    groups: Dict[Tuple[str, str], List[str]] = {}
    for task, activity in others.items():
        groups.setdefault((activity.does, activity.location), []).append(task)
    clauses = [
        f"{join_names(tasks)} {_CLAUSES[does][len(tasks) > 1]}{_parenthesize(location)}"
        for (does, location), tasks in groups.items()
    ]
    return join_names(clauses)


def _describe_waiting(waiting: Mapping[str, Activity], target: str) -> str:
    """Return clauses such as ``worker-0 and worker-2 wait for it in a collective operation``."""
    groups: Dict[str, List[str]] = {}
    for task, activity in waiting.items():
        groups.setdefault(activity.waits, []).append(task)
    clauses = [
        f"{join_names(tasks)} {'waits' if len(tasks) == 1 else 'wait'} for {target} {where}"
        for where, tasks in groups.items()
    ]
    return join_names(clauses)


def _describe_all_waiting(waiting: Mapping[str, Activity], stuck: str) -> str:
    waits_and_locations = dict.fromkeys((activity.waits, activity.location) for activity in waiting.values())
    if stuck:
        waits = join_names(list(dict.fromkeys(waits for waits, _ in waits_and_locations)))
        return f"{stuck}, and all tasks wait for each other {waits}"
    if len(waits_and_locations) > 1:
        parts = [f"{task} {activity.waits}{_parenthesize(activity.location)}" for task, activity in waiting.items()]
        return f"all tasks wait for each other, at different places: {join_names(parts)}"
    where, location = next(iter(waits_and_locations))
    return f"all tasks wait for each other {where}{_parenthesize(location)}, and no connection between them is stuck"


def _parenthesize(location: str) -> str:
    return f" ({location})" if location else ""


def _stuck(inspections: Mapping[str, HangInspection], members: Sequence[Member]) -> str:
    """Return a clause on a pair whose connection is stuck; empty if there is none."""
    ends = {task: [read_connection(text) for text in inspection.sockets] for task, inspection in inspections.items()}
    owners = {connection.local: task for task, task_connections in ends.items() for connection in task_connections}
    owners.update({endpoint(connection.address, connection.port): connection.task for connection in members})
    for task, task_connections in ends.items():
        for connection in task_connections:
            other = owners.get(connection.remote) or _only_task_at(connection.remote, members)
            if other in ("", task):
                continue
            if connection.state == _ASKING:
                return f"nothing that {task} sends reaches {other} (no answer to a connection)"
            if connection.unsent:
                return f"nothing that {task} sends reaches {other} ({connection.unsent} bytes are not confirmed)"
    return ""


def _only_task_at(end: str, members: Sequence[Member]) -> str:
    """Return the only task at the address of `end`; empty if there is none or more than one."""
    address = end.rpartition(":")[0].strip("[]")
    tasks = [member.task for member in members if member.address == address]
    return tasks[0] if len(tasks) == 1 else ""
