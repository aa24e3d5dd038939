"""Check that the hosts of a gang are ready before any user code runs. Pure.

Without this check TensorFlow waits up to an hour in silence for a port that it cannot reach. If versions or GPUs
differ, it fails with an obscure error or with none.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from train.agent.files.disk import DISK_LOW, DISK_RESERVE, readable_size
from train.agent.gang.assignment import TRAINING
from train.agent.protocol.cluster import parse_task
from train.agent.protocol.records import Member, ReasonKind
from train.agent.protocol.wording import endpoint, join_names

if TYPE_CHECKING:
    from typing import TypeAlias

CLOCKS_APART_S = 5.0
_NAMED = 4  # names in a message before the rest is counted

TIMED_OUT = "timed out"
REFUSED = "connection refused"
UNKNOWN_NAME = "its name cannot be resolved there"
SILENT = "the connection is accepted, but not answered by an agent of this job"
STRANGER = "another program answers there"
ANOTHER = "answers there"  # follows the name of a task

_ALL_TCP = "(all TCP among the hosts of the fleet)"
# Releases of one package may differ between hosts only in their third number.
_PACKAGES = {"tensorflow": "TensorFlow", "keras": "Keras", "tf_keras": "tf-keras"}


class ReadinessFacts(NamedTuple):
    """The properties of its host that an agent reports when it joins."""

    versions: Dict[str, str]  # installed versions of python, tensorflow, keras, tf_keras
    gpus: List[str]  # names of the GPUs visible to the task
    disk_free: int  # bytes, in the file system of the task's directory
    ahead_s: float = 0.0  # by which its clock is ahead of the chief's
    machine: str = ""  # x86_64, aarch64; empty: unknown


class Readiness(NamedTuple):
    """Why the gang cannot start, and the warnings if it can; one sentence each."""

    problems: Tuple[str, ...]
    warnings: Tuple[str, ...]
    first_failed_task: str  # the only task that all problems involve; empty if there is none
    kind: ReasonKind = ReasonKind.OTHER  # of the first problem


class _Problem(NamedTuple):
    text: str
    task: str = ""
    kind: ReasonKind = ReasonKind.OTHER


Pairs: TypeAlias = "Mapping[Tuple[str, str], str]"
"""Maps two tasks to the reason why the first cannot reach the second; empty if it can."""


def visible(gpus: Sequence[str], given: Optional[str]) -> List[str]:
    """Return the GPUs that CUDA shows to a process whose CUDA_VISIBLE_DEVICES is `wanted`; None means not set.

    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
    """
    if given is None:
        return list(gpus)
    result = []
    for item in (item.strip() for item in given.split(",")):
        if item.isdigit() and int(item) < len(gpus):
            result.append(gpus[int(item)])
        elif item.startswith(("GPU-", "MIG-")):
            result.append(gpus[0] if gpus else "GPU")
        else:  # an invalid one hides all that follow
            break
    return result


def verdict(members: Sequence[Member], facts: Mapping[str, ReadinessFacts], pairs: Pairs) -> Readiness:
    """Decide whether the gang of `members` may start; all facts and every pair of `probed_tasks` must be known."""
    hosts = [(member, facts[member.task]) for member in members if member.task in facts]
    problems = [*_reachability_problems(members, pairs), *_host_problems(hosts)]
    problems += [
        _Problem(f"{_label(member)} did not join", member.task, ReasonKind.NOT_JOINED)
        for member in members
        if member.task not in facts
    ]
    blamed = {problem.task for problem in problems}
    first = next(iter(blamed)) if len(blamed) == 1 else ""
    kind = problems[0].kind if problems else ReasonKind.OTHER
    texts = tuple(problem.text for problem in problems)
    return Readiness(texts, tuple(_warnings(hosts)), first, kind)


def _label(member: Member) -> str:
    return f"{member.task} ({member.address})"


def _join_names(names: Sequence[str]) -> str:
    """Join names: ``a``, ``a and b``, ``a, b, c and 9 more``."""
    shown = list(names) if len(names) <= _NAMED else [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
    return join_names(shown)


# --- which ports are probed -----------------------------------------------------------------------------------------
#
# In a small gang every task probes all others. In a large one that would cost each host CPU time in proportion to the
# number of hosts, so a task probes those at distances of 1, 2, 4, ... in both directions of a ring. Every port is
# then still probed from several hosts, and each neighbour of the ring all-reduce is among them. Tasks that all
# others need are probed by all and probe all: the first one, which runs TensorFlow's coordination service, and
# parameter servers.

ALL_PAIRS_MAX = 32
"""The largest number of tasks of which all pairs are probed."""


def probe_targets(members: Sequence[Member], slot: str) -> Tuple[Member, ...]:
    """Return the members whose ports the task in a slot probes, in the order of `members`.

    Args:
        members: All tasks of the attempt, in order.
        slot: The slot of the task that probes; without a task it probes nothing.
    """
    at = next((index for index, member in enumerate(members) if member.slot == slot), None)
    if at is None:
        return ()
    targets = _targets(len(members), _hubs(members), at)
    return tuple(member for index, member in enumerate(members) if index in targets)


def probed_tasks(members: Sequence[Member]) -> Dict[str, List[str]]:
    """Return for each task the tasks that it probes."""
    count, hubs = len(members), _hubs(members)
    return {
        member.task: [members[index].task for index in sorted(_targets(count, hubs, at))]
        for at, member in enumerate(members)
    }


def _hubs(members: Sequence[Member]) -> Set[int]:
    return {index for index, member in enumerate(members) if index == 0 or parse_task(member.task)[0] == "ps"}


def _targets(count: int, hubs: Set[int], at: int) -> Set[int]:
    if count <= ALL_PAIRS_MAX or at in hubs:
        return set(range(count)) - {at}
    distances = [1 << power for power in range((count // 2).bit_length())]
    ring = {(at + sign * distance) % count for distance in distances for sign in (1, -1)}
    return (hubs | ring) - {at}


# --- reachability --------------------------------------------------------------------------------------------------


def _reachability_problems(members: Sequence[Member], pairs: Pairs) -> List[_Problem]:
    probed = probed_tasks(members)
    silent = [member for member in members if any((member.task, other) not in pairs for other in probed[member.task])]
    problems = [
        _Problem(
            f"{_label(member)} did not report in time which hosts it reaches; try again when its host is idle",
            member.task,
        )
        for member in silent
    ]
    broken: Dict[str, Set[Tuple[str, str]]] = {}
    tasks = {member.task for member in members}
    for pair, clause in pairs.items():
        if clause and pair[0] != pair[1] and tasks.issuperset(pair):
            broken.setdefault(clause, set()).add(pair)
    blamed = _find_common_task({pair for group in broken.values() for pair in group})
    problems += [
        _Problem(text, blamed, ReasonKind.NAME_RESOLUTION if clause == UNKNOWN_NAME else ReasonKind.UNREACHABLE)
        for clause, group in sorted(broken.items())
        for text in _describe_pairs(members, probed, clause, group)
    ]
    return problems


def _find_common_task(broken: Set[Tuple[str, str]]) -> str:
    """Return the task that is the target of all broken pairs, or else the one that is in all of them."""
    targets = {target for _, target in broken}
    if len(targets) == 1:
        return next(iter(targets))
    common = set.intersection(*(set(pair) for pair in broken)) if broken else set()
    return next(iter(common)) if len(common) == 1 else ""


def _describe_pairs(
    members: Sequence[Member], probed: Mapping[str, Sequence[str]], clause: str, broken: Set[Tuple[str, str]]
) -> Iterator[str]:
    """Yield a sentence for each pair that is broken in the same way; one for several that share an end."""
    endpoints = {member.task: endpoint(member.address, member.port) for member in members}
    if len(members) > 2 and len(broken) == sum(len(targets) for targets in probed.values()):
        ends = _join_names([f"{member.task} at {endpoints[member.task]}" for member in members])
        yield f"no host can reach another ({ends}): {clause}; {_advice(clause, members)}"
        return
    left = set(broken)
    probers_of = Counter(target for targets in probed.values() for target in targets)
    failures_of = Counter(target for _, target in broken)
    reached_by_none = {task for task, count in failures_of.items() if count == probers_of[task]}
    others = "the others" if len(members) <= ALL_PAIRS_MAX else "the others that were tried"
    for source in members:
        targets = [member for member in members if (source.task, member.task) in broken]
        is_cut_off = 1 < len(probed[source.task]) == len(targets)
        if is_cut_off and any(member.task not in reached_by_none for member in targets):
            left -= {(source.task, member.task) for member in targets}
            ends = _join_names([f"{member.task} at {endpoints[member.task]}" for member in targets])
            yield f"{_label(source)} can reach none of {others} ({ends}): {clause}; {_advice(clause, targets)}"
    for target in members:
        sources = [member for member in members if (member.task, target.task) in left]
        if sources:
            probers = _join_names([_label(member) for member in sources])
            if 1 < probers_of[target.task] == len(sources):
                probers = f"none of {others} ({probers}) can"
            else:
                probers += " cannot"
            yield f"{probers} reach {target.task} at {endpoints[target.task]}: {clause}; {_advice(clause, [target])}"


def _advice(clause: str, targets: Sequence[Member]) -> str:
    ports = sorted({member.port for member in targets})
    open_ports = f"TCP port{'s' if len(ports) > 1 else ''} {_join_names([str(port) for port in ports])}"
    hosts = _join_names([f"{member.address} is the address of the host of {member.task}" for member in targets])
    if clause == UNKNOWN_NAME:
        return f"give {_join_names([member.task for member in targets])} an address that all hosts can resolve"
    if clause in (STRANGER, SILENT) or clause.endswith(ANOTHER):
        return f"check that {hosts}, and of no other host"
    if clause == REFUSED:
        return f"check that {hosts}, and that no firewall rejects {open_ports} between the hosts {_ALL_TCP}"
    return f"open {open_ports} between the hosts {_ALL_TCP}"


# --- properties of the hosts ---------------------------------------------------------------------------------------


Hosts: TypeAlias = "Sequence[Tuple[Member, ReadinessFacts]]"
Groups: TypeAlias = "Dict[str, List[Member]]"
"""Members by a property of their hosts."""


def _host_problems(hosts: Hosts) -> Iterator[_Problem]:
    for member, facts in hosts:
        if facts.disk_free < DISK_RESERVE:
            text = (
                f"{_label(member)} has {readable_size(facts.disk_free)} of disk left for the job, less than "
                f"{readable_size(DISK_RESERVE)}; free some space on the host"
            )
            yield _Problem(text, member.task, ReasonKind.DISK_FULL)
    architectures = _group_by(_of_types(hosts, TRAINING), lambda facts: facts.machine)
    architectures.pop("", None)
    if len(architectures) > 1:
        text = f"the hosts have different architectures: {_format(architectures)}; use hosts of one architecture"
        yield _Problem(text, _find_outlier(architectures))
    for name, title in _PACKAGES.items():
        releases = _group_by(hosts, _release_of(name))
        if name != "tensorflow":  # the script may not need the other packages
            releases.pop("none", None)
        if len(releases) > 1:
            text = f"{title} differs: {_format(releases)}; install the same release on all hosts, "
            text += "or select an interpreter that has it"
            yield _Problem(text, _find_outlier(releases), ReasonKind.VERSIONS)
    has_servers = bool(_of_types(hosts, ("ps",)))
    computing = _of_types(hosts, ("worker",) if has_servers else TRAINING)  # a coordinator does not compute
    if len({len(facts.gpus) for _, facts in computing}) > 1:
        gpus = _group_by(computing, _describe_gpus)
        text = f"GPUs differ: {_format(gpus)}; TensorFlow requires the same number on each worker: set "
        text += "CUDA_VISIBLE_DEVICES, or fix the driver if nvidia-smi shows none"
        yield _Problem(text, _find_outlier(gpus))


def _of_types(hosts: Hosts, types: Sequence[str]) -> Hosts:
    return [(member, facts) for member, facts in hosts if parse_task(member.task)[0] in types]


def _group_by(hosts: Hosts, key: Callable[[ReadinessFacts], str]) -> Groups:
    groups: Groups = {}
    for member, facts in hosts:
        groups.setdefault(key(facts), []).append(member)
    return groups


def _format(groups: Groups) -> str:
    """Return values with their tasks: ``2.21 on worker-0 (10.0.0.2), 2.19 on worker-1 (10.0.0.3)``."""
    return ", ".join(
        f"{value} on {_join_names([_label(member) for member in tasks])}" for value, tasks in groups.items()
    )


def _find_outlier(groups: Groups) -> str:
    """Return the only task that differs from all others, if there are at least two others."""
    sizes = sorted((len(tasks), tasks[0].task) for tasks in groups.values())
    return sizes[0][1] if len(sizes) == 2 and sizes[0][0] == 1 < sizes[1][0] else ""


def _release_of(package: str) -> Callable[[ReadinessFacts], str]:
    return lambda facts: ".".join(facts.versions.get(package, "none").split(".")[:2])


def _describe_gpus(facts: ReadinessFacts) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in Counter(facts.gpus).items()) or "none"


def _warnings(hosts: Hosts) -> Iterator[str]:
    low = [(member, facts) for member, facts in hosts if DISK_RESERVE <= facts.disk_free < DISK_LOW]
    if low:
        spaces = _group_by(low, lambda facts: readable_size(facts.disk_free))
        yield f"disk space is low: {_format(spaces)}; list ended jobs with fleet jobs, delete them with --prune"
    pythons = _group_by(hosts, _release_of("python"))
    if len(pythons) > 1:
        yield f"Python differs: {_format(pythons)}; scripts may behave differently"
    for name in ("keras", "tf_keras"):
        releases = _group_by(hosts, _release_of(name))
        if "none" in releases and len(releases) > 1:
            yield f"{_PACKAGES[name]} is not on all hosts: {_format(releases)}; a script that imports it fails"
    gpus = _group_by(hosts, _describe_gpus)
    if len(gpus) > 1 and len({len(facts.gpus) for _, facts in hosts}) == 1:
        yield f"GPUs are of different kinds: {_format(gpus)}; the slowest sets the pace"
    by_clock = sorted((facts.ahead_s, _label(member)) for member, facts in hosts)
    apart_s = by_clock[-1][0] - by_clock[0][0] if by_clock else 0.0
    if apart_s > CLOCKS_APART_S:
        yield (
            f"the clock of {by_clock[-1][1]} is {apart_s:.0f} s ahead of that of {by_clock[0][1]}; "
            "synchronize the clocks with NTP: times that the script prints or stores are not comparable"
        )
