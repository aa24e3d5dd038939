"""What tasks do that make no progress, and who of them waits for whom. Pure.

A task that waits for its peers is inside TensorFlow: in a collective operation, at a barrier of the coordination
service, or at the start of its server. Whoever is elsewhere is the one waited for. The places are those of stacks of
TensorFlow 2.21, the format of stacks is that of CPython's faulthandler.
"""

import os
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from train.agent.protocol.cluster import endpoint
from train.agent.protocol.records import Member, Stalled

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
# Where a frame of TensorFlow waits for the peers: end of its file's name, name of its function; the first that fits.
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
_NEAR = 3  # frames from the innermost of TensorFlow on, among which the one that tells is
_SHARE = re.compile(r"now (\d+) % of a core")
_BUSY_PERCENT = 50
_ASKING = "SYN_SENT"
_SHUTDOWN = re.compile(r"/threading\.py _shutdown")


class Connection(NamedTuple):
    """A TCP connection as one of its ends sees it."""

    local: str  # address and port
    remote: str
    state: str
    unsent: int  # bytes that the other end has not confirmed
    unread: int  # bytes that our process has not read

    def __str__(self) -> str:
        return f"{self.local} > {self.remote} {self.state} {self.unsent} unsent {self.unread} unread"


def read_connection(text: str) -> Connection:
    """A connection from its text.

    Raises:
        ValueError: it is none.
    """
    words = text.split()
    if len(words) != 8 or words[1] != ">":
        raise ValueError(f"no connection: {text!r}")
    return Connection(words[0], words[2], words[3], int(words[4]), int(words[6]))


def main_first(text: str) -> str:
    """What faulthandler wrote, the main thread first; cut to `MOST_STACK`.

    It lists threads from the newest to the oldest, which is the main one.
    """
    threads = threads_of(text)
    if not threads:
        return text[:MOST_STACK]
    main = threads.pop()
    parts = ["\n".join([_MAIN, *main[1]]), *("\n".join([head, *frames]) for head, frames in threads)]
    whole = "\n\n".join(parts) + "\n"
    return whole if len(whole) <= MOST_STACK else whole[: MOST_STACK - len(_CUT)] + _CUT


def threads_of(text: str) -> List[Tuple[str, List[str]]]:
    """Heading and frames of each thread that faulthandler lists; the stack in C, as Python 3.14 has it, left out."""
    found: List[Tuple[str, List[str]]] = []
    for line in text.splitlines():
        if line.endswith(_HEAD) and "C stack" not in line:
            found.append((line, []))
        elif line.startswith("  ") and found:
            found[-1][1].append(line)
    return found


class Frame(NamedTuple):
    """One call on a stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file} {self.function}"

    @property
    def place(self) -> str:
        """As a person is told of it: ``task.py:31 in load``."""
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


class Doing(NamedTuple):
    """What one task does."""

    waits: str = ""  # for its peers: where
    does: str = ""  # else: one of the keys of `_CLAUSES`; empty for one that nobody waits for
    place: str = ""
    busy: bool = False  # it uses the processor


Stack = List[Frame]

# Of one task, and of several.
_CLAUSES = {
    "ended": ("has ended", "have ended"),
    "stopped": ("is stopped", "are stopped"),
    "kernel": ("is stuck in the kernel", "are stuck in the kernel"),
    "mute": ("does not tell what it does", "do not tell what they do"),
    "silent": ("does not answer", "do not answer"),
    "code": ("is in user code", "are in user code"),
    "called": ("is in user code of its input pipeline", "are in user code of their input pipelines"),
    "input": ("waits for its own input data", "wait for their own input data"),
    "library": ("is in library code", "are in library code"),
    "computes": ("computes in TensorFlow", "compute in TensorFlow"),
    "threads": (
        "has come to the end of its script and waits for its own threads",
        "have come to the end of their scripts and wait for their own threads",
    ),
}


def doing(seen: Stalled) -> Doing:
    """What a task does, from its state and its stacks."""
    if seen.state in ("", "Z", "X", "x"):
        return Doing(does="ended")
    if seen.state in ("T", "t"):
        return Doing(does="stopped", place="by SIGSTOP or a debugger")
    stacks = [_frames(lines) for _, lines in threads_of(seen.stack)]
    if not stacks or not stacks[0]:
        return Doing(does="kernel" if seen.state == "D" else "mute", place=seen.kernel)
    found = _of_stack(stacks[0])
    if not found.waits:
        found = _elsewhere(stacks) or found
    if found.waits or found.does == "input":
        found = _called_back(stacks) or found
    if found.does == "threads":
        found = found._replace(place=next(filter(None, map(_users_place, stacks[1:])), ""))
    share = _SHARE.search(seen.kernel)
    return found._replace(busy=share is not None and int(share.group(1)) >= _BUSY_PERCENT)


def _frames(lines: Sequence[str]) -> Stack:
    found = (_FRAME.fullmatch(line) for line in lines)
    return [Frame(*one.groups()) for one in found if one]


def _is_users(frame: Frame) -> bool:
    return not (_STANDARD.search(frame.file) or _INSTALLED.search(frame.file))


def _place(stack: Stack) -> str:
    """Where user code is; what it called is added."""
    users = next((frame for frame in stack if _is_users(frame)), None)
    if users is None:
        return stack[0].place
    inner = stack[0]
    inside = "" if inner is users else f", inside {inner.function} of {os.path.basename(inner.file)}"
    return users.place + inside


def _users_place(stack: Stack) -> str:
    return next((frame.place for frame in stack if _is_users(frame)), "")


def _of_stack(stack: Stack) -> Doing:
    first = next((frame for frame in stack if not _STANDARD.search(frame.file)), None)
    if first is None:
        ends = any(_SHUTDOWN.search(str(frame)) for frame in stack)
        return Doing(does="threads") if ends else Doing(does="code", place=stack[0].place)
    if _is_users(first) or not _TENSORFLOW.search(first.file):
        return Doing(does="code", place=_place(stack))
    if _SERVES.search(str(first)):
        return Doing()
    if _INPUT.search(str(first)):
        return Doing(does="input", place=_users_place(stack))
    at = stack.index(first)
    for pattern, where in _WAITS:
        if any(pattern.search(str(frame)) for frame in stack[at : at + _NEAR]):
            return Doing(waits=where, place=_users_place(stack))
    return Doing(does="library", place=_place(stack))


def _elsewhere(stacks: List[Stack]) -> Optional[Doing]:
    """Where the main thread only waits for another one of its own: what that one waits for."""
    main = stacks[0]
    first = next((frame for frame in main if not _STANDARD.search(frame.file)), None)
    if not _JOINS.search(str(main[0])) and not (first is not None and _REPLICAS.search(str(first))):
        return None
    found = (_of_stack(stack) for stack in stacks[1:] if stack)
    return next((one for one in found if one.waits), None)


def _called_back(stacks: List[Stack]) -> Optional[Doing]:
    """User code that TensorFlow called from the input pipeline: a generator, a py_function."""
    for stack in stacks[1:]:
        if any(_CALLED_BACK.search(str(frame)) for frame in stack):
            return Doing(does="called", place=_place(stack))
    return None


def who_waits(stalled: Mapping[str, Stalled], members: Sequence[Member]) -> str:
    """One sentence, without a full stop, on who waits for whom; it says so where that is not clear.

    Args:
        stalled: What each task does, by the name under which `members` has it.
        members: All tasks of the attempt; one that is not in `stalled` did not answer.
    """
    waiting, others = _sorted(stalled, members)
    if waiting and others:
        return f"{_told(others)}, and {_waiting(waiting, 'it' if len(others) == 1 else 'them')}"
    if waiting:
        return _all_wait(waiting, _stuck(stalled, members))
    return f"{_told(others)}; no task waits for another" if others else "no task waits for another"


def waited_for(stalled: Mapping[str, Stalled], members: Sequence[Member]) -> str:
    """The one task for which others wait; empty where there is none, or more than one."""
    waiting, others = _sorted(stalled, members)
    return next(iter(others)) if waiting and len(others) == 1 else ""


def _sorted(stalled: Mapping[str, Stalled], members: Sequence[Member]) -> Tuple[Dict[str, Doing], Dict[str, Doing]]:
    """Those that wait for peers, and those that do something else."""
    found = {one.task: doing(stalled[one.task]) if one.task in stalled else Doing(does="silent") for one in members}
    others = {task: one for task, one in found.items() if one.does}
    waiting = {task: one for task, one in found.items() if one.waits}
    if not others:
        busy = {task: one._replace(does="computes") for task, one in waiting.items() if one.busy}
        if len(busy) < len(waiting):
            others = busy
            waiting = {task: one for task, one in waiting.items() if task not in busy}
    return waiting, others


def serves(seen: Stalled) -> bool:
    """Return whether a task waits in TensorFlow's ``Server.join`` for what a chief gives it to do."""
    stacks = [_frames(lines) for _, lines in threads_of(seen.stack)]
    return bool(stacks) and any(_SERVES.search(str(frame)) for frame in stacks[0])


def told(seen: Stalled) -> str:
    """What one task does, as a sentence without a full stop: ``worker-1 is in user code (task.py:31 in load)``."""
    one = doing(seen)
    if one.waits:
        return f"{seen.task} waits for its peers {one.waits}{_bracketed(one.place)}"
    return _told({seen.task: one}) if one.does else f"{seen.task} serves its peers"


def _told(others: Mapping[str, Doing]) -> str:
    """``worker-1 is in user code (task.py:31 in load)``; tasks that do the same are told of together."""
    groups: Dict[Tuple[str, str], List[str]] = {}
    for task, one in others.items():
        groups.setdefault((one.does, one.place), []).append(task)
    return listed(
        [
            f"{listed(tasks)} {_CLAUSES[does][len(tasks) > 1]}" + (f" ({place})" if place else "")
            for (does, place), tasks in groups.items()
        ]
    )


def _waiting(waiting: Mapping[str, Doing], whom: str) -> str:
    """``worker-0 and worker-2 wait for it in a collective operation``."""
    groups: Dict[str, List[str]] = {}
    for task, one in waiting.items():
        groups.setdefault(one.waits, []).append(task)
    return listed(
        [
            f"{listed(tasks)} {'waits' if len(tasks) == 1 else 'wait'} for {whom} {where}"
            for where, tasks in groups.items()
        ]
    )


def _all_wait(waiting: Mapping[str, Doing], stuck: str) -> str:
    places = dict.fromkeys((one.waits, one.place) for one in waiting.values())
    if stuck:
        return f"{stuck}, and all tasks wait for each other {listed(list(dict.fromkeys(one for one, _ in places)))}"
    if len(places) > 1:
        parts = [f"{task} {one.waits}{_bracketed(one.place)}" for task, one in waiting.items()]
        return f"all tasks wait for each other, at different places: {listed(parts)}"
    where, place = next(iter(places))
    return f"all tasks wait for each other {where}{_bracketed(place)}, and no connection between them is stuck"


def _bracketed(place: str) -> str:
    return f" ({place})" if place else ""


def _stuck(stalled: Mapping[str, Stalled], members: Sequence[Member]) -> str:
    """A pair between which nothing passes, as a clause; empty where there is none."""
    ends = {task: [read_connection(text) for text in seen.sockets] for task, seen in stalled.items()}
    owners = {one.local: task for task, own in ends.items() for one in own}
    owners.update({endpoint(one.address, one.port): one.task for one in members})
    for task, own in ends.items():
        for one in own:
            other = owners.get(one.remote) or _alone_at(one.remote, members)
            if other in ("", task):
                continue
            if one.state == _ASKING:
                return f"nothing that {task} sends reaches {other} (no answer to a connection)"
            if one.unsent:
                return f"nothing that {task} sends reaches {other} ({one.unsent} bytes are not confirmed)"
    return ""


def _alone_at(end: str, members: Sequence[Member]) -> str:
    """The one task at the address of `end`; empty where there is none, or several."""
    address = end.rpartition(":")[0].strip("[]")
    tasks = [one.task for one in members if one.address == address]
    return tasks[0] if len(tasks) == 1 else ""


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
