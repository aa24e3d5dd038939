"""Compares what is left of all tasks and says which failed first, and of what."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from train.agent.records import Outcome
from train.diagnosis.model import MOST_LINES, Kind, TaskEvidence, Verdict
from train.diagnosis.reading import Reading, ending, excerpt, headline, read
from train.diagnosis.rules import (
    CLAUSES,
    EARLY_WORDS,
    LAST_WORDS,
    NEXT_STEPS,
    OWN_REASONS,
    REASONS,
    SHARED_CLAUSES,
    Rule,
    reading,
    rule_of,
    tells_of_peers,
)
from train.diagnosis.text import shortened
from train.diagnosis.tracebacks import Raised

# Clocks of hosts differ by less; within it the order in which the chief's agent heard of the ends decides.
_CLOCKS_S = 1.0
# A peer may die of an early exit a little before that process is gone.
_EXIT_S = 2.0


def diagnose(evidence: Sequence[TaskEvidence], result_outcome: Outcome, first_task: str) -> Verdict | None:
    """The first cause of a failed job; None: the job succeeded, or was stopped on request.

    The task to blame is, in this order: the first that ended by a failure of its own; the one that exited with
    code 0 while others still needed it; the one that its peers name; the one that never joined. Where nothing of this
    is in the evidence, the kind is UNKNOWN.

    Args:
        evidence: What is left of each task, in any order.
        result_outcome: How the job ended.
        first_task: The task that the agents saw fail first; empty: none. It decides only where the clocks of the
            hosts do not.
    """
    if result_outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):
        return None
    readings = sorted((read(item) for item in evidence), key=lambda one: (one.at, one.task))
    case = _Case(readings, first_task)
    return (
        case.own_failure()
        or case.early_exit()
        or case.lost_leader()
        or case.named_by_peers()
        or case.never_started()
        or case.reported()
        or case.all_collateral()
        or case.unknown()
    )


class _Case:
    """A failed job.

    Args:
        readings: Its tasks, the one that ended first before the others.
        first_task: The one that the agents saw fail first.
    """

    def __init__(self, readings: list[Reading], first_task: str) -> None:
        self._readings = readings
        self._by_task = {one.task: one for one in readings}
        self._first_task = first_task
        self._leader = "chief-0" if "chief-0" in self._by_task else "worker-0"

    # --- who ------------------------------------------------------------------------------------------------------

    def own_failure(self) -> Verdict | None:
        """The earliest end that nobody else caused."""
        failed = [one for one in self._readings if self._failed_by_itself(one)]
        if not failed:
            return None
        first = failed[0]
        told = self._by_task.get(self._first_task)
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
        return self._first_task in ("", one.task)

    def _own_reason(self, one: Reading) -> Rule | None:
        """What its agent says of itself that is a cause."""
        reason = one.evidence.reason
        if not reason or any(task in reason for task in self._by_task if task != one.task):
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
                sentence = f"{first.name} {CLAUSES[rule.kind]} and exited while the others were still training"
                return self._verdict(first, rule.kind, sentence, (shortened(line),))
        return self._verdict(
            first, Kind.STOPPED_EARLY, f"{first.name} {CLAUSES[Kind.STOPPED_EARLY]}", ending(first.lines)
        )

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
            sentence = (
                f"{where} and {others[0].name} lost each other: the network between them broke, or one was frozen"
            )
            return self._verdict(None, Kind.PEER_UNREACHABLE, sentence, _about_peers(others[0]))
        names = _listed([one.task for one in others])
        sentence = f"{where} stopped answering {names}: it was frozen, or cut off from the network"
        return self._verdict(leader, Kind.PEER_UNREACHABLE, sentence, _about_peers(others[0]))

    def named_by_peers(self) -> Verdict | None:
        """The task that the others say is gone."""
        witnesses = sorted(
            (one for one in self._readings if one.accused and one.code != 0), key=lambda one: (one.ours, one.at)
        )
        for one in witnesses:
            if one.ours and not one.collateral:
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
            sentence = (
                f"{leader.name} could not reach its own server at the address that TF_CONFIG gives it: "
                "that address is another host's, or a proxy is set and no_proxy does not except it"
            )
            return self._verdict(leader, Kind.PEER_UNREACHABLE, sentence, ending(leader.lines))
        for one in self._readings:
            deserted = self._deserted(one)
            absent = [task for task in self._by_task if one.arrived and task not in one.arrived]
            if one.code == 0 or not (one.awaited or deserted or absent):
                continue
            missing = [task for task in one.awaited if task] or absent or ([self._leader] if deserted else [])
            names = _listed([self._called(task) for task in missing]) or "some of its peers"
            lines = tuple(shortened(line) for line in one.lines if "waiting for" in line.lower() or "/task:" in line)
            sentence = f"{one.task} waited for {names}, which never joined"
            return self._verdict(
                missing[0] if missing else "",
                Kind.PEER_NEVER_STARTED,
                sentence,
                lines[-MOST_LINES:] or ending(one.lines),
            )
        return None

    def _deserted(self, one: Reading) -> bool:
        """Whether it waited for the chief, which never was there."""
        if one.fatal:
            return "CoordinationService/RegisterTask" in one.fatal.message
        leader = self._by_task.get(self._leader)
        return one.task != self._leader and one.alone and not (leader and leader.serves)

    def reported(self) -> Verdict | None:
        """What the agents say, where the logs say nothing."""
        order = sorted(self._readings, key=lambda one: one.task != self._first_task)
        for one in order:
            reason = one.evidence.reason
            rule = reading(reason, REASONS) if reason else None
            if rule is None:
                continue
            about = next((task for task in self._by_task if task in reason), one.task)
            sentence = reason if about in reason else f"{one.name} {CLAUSES[rule.kind]}: {reason}"
            stuck = self._stuck_exception() if rule.kind is Kind.HANG else None
            if stuck and stuck.fatal:
                what = f"{stuck.fatal.short}: {headline(stuck.fatal)}"
                sentence = f"{stuck.name} raised {what}, but its process did not end, and the others waited for it"
                return self._verdict(stuck, rule.kind, sentence, excerpt(stuck.lines, stuck.fatal), stuck.fatal.place)
            return self._verdict(about, rule.kind, sentence, ending(self._by_task[about].lines))
        return None

    def _stuck_exception(self) -> Reading | None:
        """A task that raised and stayed."""
        return next((one for one in self._readings if one.fatal and not one.collateral), None)

    def all_collateral(self) -> Verdict | None:
        """What the failures have in common where each only follows from another."""
        victims = [one for one in self._readings if one.collateral and not one.ours]
        for one in victims:
            rule = rule_of(one.fatal) if one.fatal else None
            if rule:
                sentence = f"the workers failed together: {_failure(one)}"
                return self._verdict(None, rule.kind, sentence, _about_peers(one))
        if victims and any(
            "Connection timed out" in line or "failed to connect" in line for line in victims[0].lines
        ):
            sentence = f"the workers lost each other, and none of their logs says why: {_failure(victims[0])}"
            return self._verdict(None, Kind.PEER_UNREACHABLE, sentence, _about_peers(victims[0]))
        return None

    def unknown(self) -> Verdict:
        """What can be said where nothing is known."""
        one = self._by_task.get(self._first_task) or next((one for one in self._readings if one.code != 0), None)
        if one is None:
            return Verdict(self._first_task, Kind.UNKNOWN, "the job failed, and nothing is left that tells why")
        sentence = f"{one.name} {self._ended(one)}, and its log does not say why"
        return self._verdict(one, Kind.UNKNOWN, sentence, ending(one.lines))

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
                text = f"{one.name} {CLAUSES[rule.kind]}: {shortened(line.strip(), 200)}"
                return self._verdict(one, rule.kind, text, ending(one.lines), but=failed)
        if one.signal:
            return self._of_signal(one, failed)
        return self._of_code(one, failed)

    def _of_exception(self, one: Reading, fatal: Raised, failed: list[str]) -> Verdict:
        rule = rule_of(fatal)
        kind = rule.kind if rule else Kind.SCRIPT_EXCEPTION
        said = says(fatal)
        lines = excerpt(one.lines, fatal)
        if kind is Kind.VERSION_MISMATCH and self._resumed_apart():
            kind = Kind.CHECKPOINT_NOT_SHARED
        elif kind is Kind.CHECKPOINT_NOT_SHARED and self._leader in failed:
            kind = Kind.FILE_NOT_FOUND
        if rule and rule.shared:
            return self._verdict(None, kind, f"{SHARED_CLAUSES[kind]} ({said})", lines, fatal.place)
        alike = [task for task in failed if task != one.task and _same(self._by_task[task].fatal, fatal)]
        too = f"; so did {_listed(alike)}" if alike else ""
        if kind is Kind.SCRIPT_EXCEPTION:
            where = f" at {fatal.place}" if fatal.place else ""
            sentence = f"{one.name} raised {said}{where}{too}"
        else:
            sentence = f"{one.name} {CLAUSES[kind]}: {said}{too}"
        verdict = self._verdict(one, kind, sentence, lines, fatal.place, but=failed)
        package = re.match(r"No module named '([\w.-]{1,80})'", fatal.message)
        if kind is Kind.SCRIPT_EXCEPTION and package:
            return replace(verdict, next_step=f"install {package.group(1)} on every host, or push it with the script")
        return verdict

    def _resumed_apart(self) -> bool:
        """Whether the tasks began with different epochs, or one began while the chief was still restoring."""
        epochs = {each.first_epoch for each in self._readings if each.first_epoch}
        leader = self._by_task.get(self._leader)
        return len(epochs) > 1 or bool(epochs and leader and not leader.first_epoch)

    def _of_lost(self, one: Reading) -> Verdict:
        """A task whose end nobody saw: its agent or its host is gone."""
        rule = reading(one.evidence.reason, REASONS)
        kind = rule.kind if rule else Kind.UNKNOWN
        sentence = f"{one.name} was lost: {one.evidence.reason}"
        return self._verdict(one, kind, sentence, ending(one.lines))

    def _of_signal(self, one: Reading, failed: list[str]) -> Verdict:
        try:
            name = signal.Signals(one.signal).name
        except ValueError:
            name = f"signal {one.signal}"
        what = f"{one.name} was killed by {name}"
        if one.signal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
            what = f"{one.name} crashed in native code ({name})"
            step = "run the script with PYTHONFAULTHANDLER=1 to see which call crashes"
        else:
            step = NEXT_STEPS[Kind.KILLED]
        rule = reading(one.evidence.reason, REASONS) if one.evidence.reason else None
        if rule and rule.kind is Kind.PREEMPTED:
            return self._verdict(one, rule.kind, f"{what}: {one.evidence.reason}", ending(one.lines), but=failed)
        if one.evidence.reason and name not in one.evidence.reason:
            what = f"{what} ({one.evidence.reason})"
        return replace(self._verdict(one, Kind.KILLED, what, ending(one.lines), but=failed), next_step=step)

    def _of_code(self, one: Reading, failed: list[str]) -> Verdict:
        """A task that ended by itself, without an exception and without known last words."""
        words = f"; its last words: {shortened(one.said, 200)}" if one.said else ""
        sentence = f"{one.name} {self._ended(one)} without a traceback{words}"
        return self._verdict(one, Kind.UNKNOWN, sentence, ending(one.lines), but=failed)

    # --- how it is said -------------------------------------------------------------------------------------------

    def _verdict(
        self,
        one: Reading | str | None,
        kind: Kind,
        sentence: str,
        lines: Sequence[str],
        place: str = "",
        *,
        but: Sequence[str] = (),
    ) -> Verdict:
        """The verdict, with the tasks that failed for it; those in `but` failed by themselves."""
        task = one.task if isinstance(one, Reading) else one or ""
        follow = tuple(
            sorted(each.task for each in self._readings if each.collateral and each.task not in (task, *but))
        )
        return Verdict(task, kind, sentence, tuple(lines[:MOST_LINES]), place, follow, NEXT_STEPS[kind])

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
