"""Compares what is left of all tasks and says which failed first, and of what."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from train.agent.gang.hang import doing, serves
from train.agent.protocol.records import Outcome
from train.diagnosis.messages import (
    CLAUSES,
    CRASH_HINT,
    HINTS,
    ILLEGAL_HINT,
    INTERRUPT_HINT,
    JOIN_HINT,
    OWN_PORT_HINT,
    PACKAGE_HINT,
    RESTARTED_HINT,
    SERVERS_HINT,
    SHARED_CLAUSES,
)
from train.diagnosis.model import MOST_LINES, Kind, TaskEvidence, Verdict
from train.diagnosis.reading import Cluster, Reading, Remote, ending, excerpt, headline, read, source_of
from train.diagnosis.rules import (
    DECISIONS,
    EARLY_WORDS,
    LAST_WORDS,
    MEMORY,
    MEMORY_WORDS,
    OWN_REASONS,
    REASONS,
    RESTARTED,
    RESTARTED_FOR_SURE,
    TIMED_OUT,
    Rule,
    hint_of,
    reading,
    rule_of,
    tells_of_peers,
)
from train.diagnosis.text import error_in, shortened
from train.diagnosis.tracebacks import Raised
from train.script.packages import advice

# Clocks of hosts differ by less; within it the order in which the chief's agent heard of the ends decides.
_CLOCKS_S = 1.0
# A peer may die of an early exit a little before that process is gone.
_EXIT_S = 2.0
_CUT = re.compile(
    r"Connection timed out|failed to connect|OS Error|No route to host|Network is unreachable"
    r"|Connection reset by peer|Socket closed|Broken pipe|\"description\":\"EOF\""
)
_IMPORT = re.compile(r"(?:from \S+ )?import ")


def diagnose(
    evidence: Sequence[TaskEvidence], result_outcome: Outcome, first_failed_task: str, reason: str = ""
) -> Verdict | None:
    """Return the first cause of a failed attempt, or job; None: it succeeded, or was stopped on request.

    What the gang itself decided goes first: that time was up, that there was no progress, that a host or an agent
    was lost. Else the task to blame is, in this order: the first that ended by a failure of its own; the one that
    exited with code 0 while others still needed it; the one whose error its peers received; the one that its peers
    lost; the one that never joined. If nothing of this is in the evidence, the kind is UNKNOWN.

    Args:
        evidence: What is left of each task, in any order.
        result_outcome: How the job ended.
        first_failed_task: The task that the agents saw fail first; empty: none. It decides only if the clocks of the
            hosts do not.
        reason: Why it ended, as the agents report; empty: they do not.
    """
    if result_outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):
        return None
    tasks = _by_role(evidence)
    cluster = Cluster(tasks, {(item.address, item.port) for item in evidence})
    readings = sorted((read(item, cluster) for item in evidence), key=lambda one: (one.at, one.task))
    case = _Case(readings, first_failed_task, tasks, reason)
    return (
        case.decided()
        or case.own_failure()
        or case.early_exit()
        or case.lost_leader()
        or case.reported_by_peers()
        or case.lost_by_peers()
        or case.never_started()
        or case.missed_barrier()
        or case.reported()
        or case.all_collateral()
        or case.unknown()
    )


def _by_role(evidence: Sequence[TaskEvidence]) -> dict[str, str]:
    """The tasks by the names that TensorFlow has for them."""
    tasks = {item.task: item.task for item in evidence if item.role in ("", item.task)}
    return {**tasks, **{item.role: item.task for item in evidence if item.role}}


def _mentions(text: str, task: str) -> bool:
    """Whether a text names a task, and not one whose name only begins alike."""
    return re.search(rf"(?<![\w-]){re.escape(task)}(?![\w-])", text) is not None


def _one_line(reason: str) -> str:
    """A reason of several lines in one."""
    first, *others = reason.strip().splitlines() or [""]
    return f"{first} (and {len(others)} more)" if others else first


class _Case:
    """A failed attempt.

    Args:
        readings: Its tasks, the one that ended first before the others.
        first_failed_task: The one that the agents saw fail first.
        tasks: The tasks by the names that TensorFlow has for them.
        reason: Why it ended, as the agents say.
    """

    def __init__(
        self, readings: list[Reading], first_failed_task: str, tasks: Mapping[str, str], reason: str
    ) -> None:
        self._readings = readings
        self._by_task = {one.task: one for one in readings}
        self._first_failed_task = first_failed_task
        self._leader = tasks.get("chief-0", tasks.get("worker-0", "worker-0"))
        self._reason = _one_line(reason)

    # --- who ------------------------------------------------------------------------------------------------------

    def decided(self) -> Verdict | None:
        """What the gang found out by itself."""
        known = [(self._reason, "")] + [(_one_line(one.evidence.reason), one.task) for one in self._readings]
        for reason, task in known:
            rule = reading(reason, DECISIONS) if reason else None
            if rule:
                return self._said(rule.kind, reason, task)
        return None

    def _said(self, kind: Kind, reason: str, task: str) -> Verdict:
        """A verdict in the words of an agent.

        Args:
            kind: What it says.
            reason: Its words.
            task: Its own; empty: those of the gang.
        """
        if kind is Kind.HANG:
            return self._hang(reason, task)
        if kind is Kind.DEADLINE:
            return self._verdict(None, kind, reason, ())
        named = [one for one in self._by_task if _mentions(reason, one)]
        named.sort(key=lambda one: (one != self._first_failed_task, reason.index(one)))
        about = named[0] if named else task or self._first_failed_task
        message = reason if named else f"{self._called(about)} {CLAUSES[kind]}: {reason}" if about else reason
        lines = ending(self._by_task[about].lines) if about in self._by_task else ()
        return self._verdict(about, kind, message, lines)

    def _hang(self, reason: str, task: str) -> Verdict:
        stuck = next((one for one in self._readings if one.fatal and not one.collateral), None)
        if stuck and stuck.fatal:
            what = f"{stuck.fatal.short}: {headline(stuck.fatal)}"
            message = f"{stuck.name} raised {what}, but its process did not end, and the others waited for it"
            return self._verdict(stuck, Kind.HANG, message, excerpt(stuck.lines, stuck.fatal), stuck.fatal.place)
        looked = {one.task: one.evidence.stalled for one in self._readings if one.evidence.stalled is not None}
        doings = {name: doing(seen) for name, seen in looked.items()}
        awaited = [name for name, one in doings.items() if one.does]
        if looked and all(serves(seen) for seen in looked.values()):
            first = next(iter(looked.values()))
            message = f"{reason.partition(':')[0]}: all tasks wait in Server.join for a chief, and there is none"
            lines = tuple(shortened(line) for line in first.stack.splitlines() if line.strip())
            return self._verdict(None, Kind.HANG, message, lines, doing(first).place, hint=SERVERS_HINT)
        about = self._first_failed_task or task or (awaited[0] if len(awaited) == 1 else "")
        message = reason
        if about and not _mentions(reason, about):
            message = f"{self._called(about)} {CLAUSES[Kind.HANG]}: {reason}"
        if about in looked:
            lines = tuple(shortened(line) for line in looked[about].stack.splitlines() if line.strip())
            place = doings[about].place.partition(", inside")[0]
            return self._verdict(about, Kind.HANG, message, lines or (looked[about].kernel,), place)
        lines = ending(self._by_task[about].lines) if about in self._by_task else ()
        return self._verdict(about, Kind.HANG, message, lines)

    def own_failure(self) -> Verdict | None:
        """The earliest end that nobody else caused."""
        failed = [one for one in self._readings if self._failed_by_itself(one)]
        if not failed:
            return None
        first = failed[0]
        told = self._by_task.get(self._first_failed_task)
        if told in failed and told is not None and not told.at > first.at + _CLOCKS_S:
            first = told
        return self._of_task(first, [one.task for one in failed])

    def _failed_by_itself(self, one: Reading) -> bool:
        if self._own_reason(one):
            return True
        if one.ours or one.code == 0:
            return False
        if one.unseen:
            return (one.fatal is not None and not one.collateral) or bool(one.evidence.reason and self._is_lost(one))
        return not one.collateral

    def _is_lost(self, one: Reading) -> bool:
        """Whether the end of a task that nobody saw was the first thing that happened."""
        return self._first_failed_task in ("", one.task)

    def _own_reason(self, one: Reading) -> Rule | None:
        """What its agent says of itself that is a cause."""
        reason = one.evidence.reason
        if not reason or any(_mentions(reason, task) for task in self._by_task if task != one.task):
            return None
        rule = reading(reason, REASONS)
        if one.ours:
            return rule if rule and rule.kind in OWN_REASONS else None
        return rule if one.code == 0 or (rule and rule.kind in OWN_REASONS) else None

    def early_exit(self) -> Verdict | None:
        """The first that exited with code 0 before others that then failed for want of it."""
        victims = [one for one in self._readings if one.collateral and not one.ours]
        if not victims:
            return None
        latest = max(one.at for one in victims)
        left = [one for one in self._readings if one.code == 0 and not one.ours and one.at <= latest + _EXIT_S]
        if not left:
            return None
        first = left[0]
        for line in reversed(first.last_words):
            rule = reading(line, EARLY_WORDS)
            if rule:
                message = f"{first.name} {CLAUSES[rule.kind]} and exited while the others were still training"
                return self._verdict(first, rule.kind, message, (shortened(line),))
        message = f"{first.name} {CLAUSES[Kind.STOPPED_EARLY]}"
        hint = JOIN_HINT if first.is_server else ""
        return self._verdict(first, Kind.STOPPED_EARLY, message, ending(first.lines), hint=hint)

    def lost_leader(self) -> Verdict | None:
        """The chief, where none of the others had an answer from it."""
        leader = self._leader
        others = [one for one in self._readings if one.task != leader and one.collateral and not one.ours]
        if not others or not all(one.lost_leader for one in others):
            return None
        accusers = [one for one in self._readings if one.task == leader and others[0].task in one.accused]
        if (
            len(others) == 1
            and len(self._readings) > 2
            and any(others[0].task in one.accused for one in self._readings)
        ):
            return None  # it was the one that was cut off
        where = self._called(leader)
        if len(others) == 1 and accusers:
            message = (
                f"{where} and {others[0].name} lost each other: the network between them broke, or one was frozen"
            )
            return self._verdict(None, Kind.PEER_UNREACHABLE, message, _about_peers(others[0]))
        names = _listed([one.task for one in others])
        message = f"{where} stopped answering {names}: it was frozen, or cut off from the network"
        return self._verdict(leader, Kind.PEER_UNREACHABLE, message, _about_peers(others[0]))

    def reported_by_peers(self) -> Verdict | None:
        """The task that answered its peers with an error: it was there, whatever wraps its words."""
        for one in self._witnesses():
            if not one.answers:
                continue
            answer = one.answers[0]
            if RESTARTED_FOR_SURE.search(answer.text):
                return self._came_back(one, answer.task, _about_peers(one))
            return self._of_answer(one, answer)
        return None

    def _of_answer(self, one: Reading, answer: Remote) -> Verdict:
        rule = rule_of(answer.raised)
        says = f"{answer.raised.short}: {shortened(answer.text, 240)}"
        kind = rule.kind if rule else Kind.UNKNOWN
        if rule and rule.shared:
            return self._verdict(None, kind, f"{rule.clause or SHARED_CLAUSES[kind]} ({says})", _about_peers(one))
        message = f"{self._called(answer.task)} reported: {says}"
        return self._verdict(answer.task, kind, message, _about_peers(one), hint=rule.hint if rule else "")

    def _witnesses(self) -> list[Reading]:
        """The tasks whose output may tell of their peers, the best first: those that nobody stopped."""
        failed = [one for one in self._readings if one.code != 0 and (one.collateral or not one.ours)]
        return sorted(failed, key=lambda one: (one.ours, one.at))

    def lost_by_peers(self) -> Verdict | None:
        """The task that the others say is gone."""
        for one in self._witnesses():
            if not one.accused:
                continue
            accused = one.accused[0]
            cut = "Connection timed out" in one.fatal.message if one.fatal else False
            what = f"lost its connection to {self._called(accused)}" if cut else f"lost {self._called(accused)}"
            why = "the network between them is broken" if cut else "it was frozen, cut off from the network, or ended"
            return self._verdict(accused, Kind.PEER_UNREACHABLE, f"{one.task} {what}: {why}", _about_peers(one))
        return None

    def never_started(self) -> Verdict | None:
        """A task for which the others still waited at the end."""
        leader = self._by_task.get(self._leader)
        if leader and leader.alone and leader.leads and leader.code != 0:
            message = (
                f"{leader.name} could not reach its own server at the address that TF_CONFIG gives it: "
                "that address is another host's, or a proxy is set and no_proxy does not except it"
            )
            return self._verdict(leader, Kind.PEER_UNREACHABLE, message, ending(leader.lines))
        for one in self._readings:
            deserted = self._deserted(one)
            absent = [task for task in self._by_task if one.arrived and task not in one.arrived]
            if one.code == 0 or not (one.awaited or deserted or absent):
                continue
            missing = [task for task in one.awaited if task] or absent or ([self._leader] if deserted else [])
            names = _listed([self._called(task) for task in missing]) or "some of its peers"
            lines = tuple(shortened(line) for line in one.lines if "waiting for" in line.lower() or "/task:" in line)
            message = f"{one.task} waited for {names}, which never joined"
            return self._verdict(
                missing[0] if missing else "",
                Kind.PEER_NEVER_STARTED,
                message,
                lines[-MOST_LINES:] or ending(one.lines),
            )
        return None

    def missed_barrier(self) -> Verdict | None:
        """The task that did not come to a barrier at which the others waited."""
        for one in self._witnesses():
            barrier, missing = one.barrier
            if missing:
                who = self._by_task.get(missing[0]) if len(missing) == 1 else None
                names = _listed([self._called(task) for task in missing])
                message = f"{names} did not come to the barrier '{barrier}', at which {one.task} waited"
                return self._verdict(who, Kind.HANG, message, _about_peers(one))
        return None

    def _deserted(self, one: Reading) -> bool:
        """Whether it waited for the chief, which never was there."""
        if one.fatal:
            return "CoordinationService/RegisterTask" in one.fatal.message
        leader = self._by_task.get(self._leader)
        return one.task != self._leader and one.alone and not (leader and leader.serves)

    def reported(self) -> Verdict | None:
        """What the agents say, where the logs say nothing."""
        order = sorted(self._readings, key=lambda one: one.task != self._first_failed_task)
        for reason, task in [(_one_line(one.evidence.reason), one.task) for one in order] + [(self._reason, "")]:
            rule = reading(reason, REASONS) if reason else None
            if rule:
                return self._said(rule.kind, reason, task)
        return None

    def all_collateral(self) -> Verdict | None:
        """What the failures have in common where each only follows from another."""
        victims = [one for one in self._readings if one.collateral and not one.ours]
        if victims and all(one.fatal and TIMED_OUT.search(one.fatal.message) for one in victims):
            others = [one for one in self._readings if one not in victims and one.code is None]
            who = others[0] if len(others) == 1 else None
            stuck = who.name if who else "one of the workers"
            message = f"{stuck} made no progress: the collectives of {_listed([v.task for v in victims])} timed out"
            return self._verdict(who, Kind.HANG, message, _about_peers(victims[0]))
        for one in victims:
            rule = rule_of(one.fatal) if one.fatal else None
            if rule:
                message = f"the workers failed together: {_failure(one)}"
                return self._verdict(None, rule.kind, message, _about_peers(one))
        if victims and any(_CUT.search(line) for line in victims[0].lines):
            message = f"the workers lost each other, and none of their logs says why: {_failure(victims[0])}"
            return self._verdict(None, Kind.PEER_UNREACHABLE, message, _about_peers(victims[0]))
        return None

    def unknown(self) -> Verdict:
        """What the evidence says, if it does not say the cause."""
        one = self._by_task.get(self._first_failed_task) or next(
            (one for one in self._readings if one.code != 0), None
        )
        if one is None:
            text = self._reason or "the job failed for an unknown reason"
            return Verdict(self._first_failed_task, Kind.UNKNOWN, text)
        if self._reason and (one.ours or one.unseen):
            return self._verdict(one, Kind.UNKNOWN, self._reason, ending(one.lines))
        if one.fatal:
            message = f"{one.name} raised {says(one.fatal)}"
            return self._verdict(one, Kind.UNKNOWN, message, excerpt(one.lines, one.fatal), one.fatal.place)
        words = f"; its last words: {shortened(one.said, 200)}" if one.said else ", and its log does not say why"
        return self._verdict(one, Kind.UNKNOWN, f"{one.name} {self._ended(one)}{words}", ending(one.lines))

    # --- of what --------------------------------------------------------------------------------------------------

    def _of_task(self, one: Reading, failed: list[str]) -> Verdict:
        """The verdict on a task that failed by itself."""
        rule = self._own_reason(one)
        if rule:
            return self._verdict(
                one,
                rule.kind,
                f"{one.name} {CLAUSES[rule.kind]}: {one.evidence.reason}",
                ending(one.lines),
                but=failed,
            )
        if one.fatal and one.signal != signal.SIGINT:
            return self._of_exception(one, one.fatal, failed)
        if one.unseen:
            return self._of_lost(one)
        for line in reversed(one.last_words):
            rule = reading(line, LAST_WORDS)
            if rule:
                what, hint = self._what_of(one, rule)
                text = f"{one.name} {what}: {shortened(error_in(line) or line.strip(), 200)}"
                return self._verdict(one, rule.kind, text, ending(one.lines), but=failed, hint=hint)
        if one.signal:
            return self._of_signal(one, failed)
        return self._of_code(one, failed)

    def _of_exception(self, one: Reading, fatal: Raised, failed: list[str]) -> Verdict:
        if RESTARTED_FOR_SURE.search(fatal.message) or (RESTARTED.search(fatal.message) and one.progressed):
            return self._came_back(one, one.named(fatal.message), excerpt(one.lines, fatal))
        rule = rule_of(fatal) or _memory(one, fatal)
        kind = Kind.SERVICE_UNREACHABLE if one.service else rule.kind if rule else Kind.SCRIPT_EXCEPTION
        said = says(fatal)
        lines = excerpt(one.lines, fatal)
        if kind is Kind.VERSION_MISMATCH and self._resumed_apart():
            kind = Kind.CHECKPOINT_NOT_SHARED
        elif kind is Kind.CHECKPOINT_NOT_SHARED and rule and not rule.clause and self._leader in failed:
            kind = Kind.FILE_NOT_FOUND
        if rule and rule.shared:
            message = f"{rule.clause or SHARED_CLAUSES[kind]} ({said})"
            return self._verdict(None, kind, message, lines, fatal.place, hint=rule.hint)
        alike = [task for task in failed if task != one.task and _same(self._by_task[task].fatal, fatal)]
        too = f"; so did {_listed(alike)}" if alike else ""
        what, hint = self._what_of(one, rule) if rule and rule.kind is kind else ("", "")
        if kind in (Kind.SCRIPT_EXCEPTION, Kind.UNKNOWN):
            if fatal.place and said.endswith(".") and not said.endswith(".."):
                said = said[:-1]  # the sentence continues
            where = f" at {fatal.place}" if fatal.place else ""
            by = next((f", as {answer.task} reported" for answer in one.answers if answer.line < fatal.end), "")
            message = f"{one.name} raised {said}{where}{by}{too}"
            hint = hint_of(fatal) or _package_hint(fatal) or _import_hint(one, fatal)
        elif kind is Kind.SERVICE_UNREACHABLE:
            message = f"{one.name} could not reach {one.service}, which is not a task of this job: {said}{too}"
        else:
            message = f"{one.name} {what or CLAUSES[kind]}: {said}{too}"
        return self._verdict(one, kind, message, lines, fatal.place, but=failed, hint=hint)

    def _what_of(self, one: Reading, rule: Rule) -> tuple[str, str]:
        """Return the clause and the hint of a rule for one task; the hint is empty if it is that of the kind."""
        if rule.kind is Kind.PORT_IN_USE and one.listens and one.evidence.port not in (0, one.listens):
            return (
                f"could not listen on port {one.listens}, which was in use. fleet gave it port {one.evidence.port}: "
                "the script sets TF_CONFIG, or opens a port of its own",
                OWN_PORT_HINT,
            )
        return rule.clause or CLAUSES[rule.kind], rule.hint

    def _came_back(self, one: Reading, peer: str, lines: Sequence[str]) -> Verdict:
        """A peer ended and was started again, which this task only noticed."""
        what = f"{one.task} lost {self._called(peer) if peer else 'a peer'}"
        message = f"{what}: it ended, and was started again while the others continued"
        return self._verdict(peer, Kind.PEER_UNREACHABLE, message, lines, but=[one.task], hint=RESTARTED_HINT)

    def _resumed_apart(self) -> bool:
        """Whether the tasks began with different epochs, or one began while the chief was still restoring."""
        epochs = {each.first_epoch for each in self._readings if each.first_epoch}
        leader = self._by_task.get(self._leader)
        return len(epochs) > 1 or bool(epochs and leader and not leader.first_epoch)

    def _of_lost(self, one: Reading) -> Verdict:
        """A task whose end nobody saw: its agent or its host is gone."""
        rule = reading(one.evidence.reason, REASONS)
        kind = rule.kind if rule else Kind.UNKNOWN
        message = f"{one.name} was lost: {one.evidence.reason}"
        return self._verdict(one, kind, message, ending(one.lines))

    def _of_signal(self, one: Reading, failed: list[str]) -> Verdict:
        try:
            name = signal.Signals(one.signal).name
        except ValueError:
            name = f"signal {one.signal}"
        what, hint = f"{one.name} was killed by {name}", ""
        if one.signal == signal.SIGINT:
            where = f" at {one.fatal.place}" if one.fatal and one.fatal.place else ""
            what, hint = f"{one.name} was interrupted by SIGINT or KeyboardInterrupt{where}", INTERRUPT_HINT
        if one.signal == signal.SIGILL:
            what, hint = f"{one.name} crashed: its CPU does not have an instruction ({name})", ILLEGAL_HINT
        elif one.signal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE):
            words = f"; its last words: {shortened(one.error, 200)}" if one.error else ""
            what, hint = f"{one.name} crashed in native code ({name}){words}", CRASH_HINT
        rule = reading(one.evidence.reason, REASONS) if one.evidence.reason else None
        if rule and rule.kind is Kind.PREEMPTED:
            return self._verdict(one, rule.kind, f"{what}: {one.evidence.reason}", ending(one.lines), but=failed)
        if one.evidence.reason and name not in one.evidence.reason:
            what = f"{what} ({one.evidence.reason})"
        return self._verdict(one, Kind.KILLED, what, ending(one.lines), but=failed, hint=hint)

    def _of_code(self, one: Reading, failed: list[str]) -> Verdict:
        """A task that ended by itself, without an exception and without known last words."""
        words = f"; its last words: {shortened(one.said, 200)}" if one.said else ""
        message = f"{one.name} {self._ended(one)} without a traceback{words}"
        return self._verdict(one, Kind.UNKNOWN, message, ending(one.lines), but=failed)

    # --- how it is said -------------------------------------------------------------------------------------------

    def _verdict(
        self,
        one: Reading | str | None,
        kind: Kind,
        message: str,
        lines: Sequence[str],
        place: str = "",
        *,
        but: Sequence[str] = (),
        hint: str = "",
    ) -> Verdict:
        """Return the verdict, with the tasks that failed because of it.

        Args:
            one: The task to blame; None: no single one.
            kind: The class of the cause.
            message: The cause.
            lines: The lines of the log that decided.
            place: Where in the user's code it was raised.
            but: Tasks that failed by themselves.
            hint: What to change; empty: that of the kind.
        """
        task = one.task if isinstance(one, Reading) else one or ""
        follow = tuple(
            sorted(each.task for each in self._readings if each.collateral and each.task not in (task, *but))
        )
        return Verdict(task, kind, message, tuple(lines[:MOST_LINES]), place, follow, hint or HINTS[kind])

    def _called(self, task: str) -> str:
        known = self._by_task.get(task)
        return known.name if known else task

    @staticmethod
    def _ended(one: Reading) -> str:
        if one.ours:
            return "was stopped"
        if one.unseen:
            return "ended unseen"
        return f"was killed by signal {one.signal}" if one.signal else f"exited with code {one.code}"


def _package_hint(fatal: Raised) -> str:
    """Return what to do about a module that was not found; empty: it is another exception."""
    package = re.match(r"No module named '([\w.-]{1,80})'(?!; )", fatal.message)
    return advice(package.group(1).partition(".")[0]) if package else ""


def _import_hint(one: Reading, fatal: Raised) -> str:
    """Return the hint for an exception out of a package that the script imports; empty: that of the kind."""
    inside = bool(fatal.frames) and str(fatal.frames[-1]) != fatal.place
    return PACKAGE_HINT if inside and _IMPORT.match(source_of(one.lines, fatal)) else ""


def _memory(one: Reading, fatal: Raised) -> Rule | None:
    """The rule for an exception that is for want of memory, by what the lines before say of whose."""
    if not any(rule.fits(fatal) for rule in MEMORY):
        return None
    found = (reading(line, MEMORY_WORDS) for line in reversed(one.lines))
    return next((rule for rule in found if rule), next(rule for rule in MEMORY if rule.fits(fatal)))


def says(raised: Raised) -> str:
    """``ValueError: loss is not a number``."""
    text = headline(raised)
    return f"{raised.short}: {text}" if text else raised.short


def _failure(one: Reading) -> str:
    return says(one.fatal) if one.fatal else (ending(one.lines, 1) or ("",))[0]


def _same(one: Raised | None, other: Raised) -> bool:
    """Whether two tasks failed alike."""
    return one is not None and one.short == other.short and one.place == other.place


def _about_peers(one: Reading) -> tuple[str, ...]:
    """The lines in which a task tells of its peers."""
    if one.fatal:
        return excerpt(one.lines, one.fatal)
    lines = [shortened(line) for line in one.last_words if tells_of_peers(line) or "/task:" in line]
    return tuple(lines[:MOST_LINES]) or ending(one.lines)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
