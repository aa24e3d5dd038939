"""Compare the evidence of all tasks and find the task that failed first, and the cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Container, Sequence
from dataclasses import replace

from train.agent.gang.hang import find_activity, is_serving
from train.agent.protocol.records import NO_REASON, Outcome, Reason, ReasonKind
from train.agent.protocol.wording import join_names, signal_name
from train.diagnosis import rules, storage, texts
from train.diagnosis.downloads import Download, find_download
from train.diagnosis.log_lines import error_in, shortened
from train.diagnosis.reading import Reading, Remote, ending, excerpt, headline, read, source_of
from train.diagnosis.rules import WORDING, Rule, find_rule, mentions_peers, rule_of
from train.diagnosis.tracebacks import Raised
from train.diagnosis.verdict import MOST_LINES, Cause, TaskEvidence, Verdict
from train.script.arguments import find_missing, words
from train.script.imports import advice

# Clocks of hosts differ by less than this; within it, the order of the reports to the chief's agent decides.
_CLOCKS_S = 1.0
# A peer may fail because of an early exit shortly before that process is gone.
_EXIT_S = 2.0
_CUT = re.compile(
    r"Connection timed out|failed to connect|OS Error|No route to host|Network is unreachable"
    r"|Connection reset by peer|Socket closed|Broken pipe|\"description\":\"EOF\""
)
_IMPORT = re.compile(r"(?:from \S+ )?import ")


def diagnose(
    evidence: Sequence[TaskEvidence], result_outcome: Outcome, first_failed_task: str, reason: Reason = NO_REASON
) -> Verdict | None:
    """Return the first cause of a failed attempt, or job; None: it succeeded, or was stopped on request.

    A decision of the gang comes first: the job ran too long, made no progress, or lost a host or an agent. Otherwise
    the task to blame is, in this order: the first that failed by itself; the task that exited with code 0 while
    others still needed it; the task whose error its peers received; the task that its peers lost; the task that
    never joined. If the evidence shows none of these, the kind is UNKNOWN.

    Args:
        evidence: The evidence of each task, in any order.
        result_outcome: How the job ended.
        first_failed_task: The task that the agents saw fail first; empty: none. It decides only if the clocks of the
            hosts do not.
        reason: Why it ended, as the agents report.
    """
    if result_outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):
        return None
    endpoints = {(item.address, item.port) for item in evidence}
    readings = sorted((read(item, endpoints) for item in evidence), key=lambda reading: (reading.at, reading.task))
    case = _Case(readings, first_failed_task, reason)
    return (
        case.decided()
        or case.independent_failure()
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


def _mentions(text: str, task: str) -> bool:
    """Return whether a text contains the whole name of a task."""
    return re.search(rf"(?<![\w-]){re.escape(task)}(?![\w-])", text) is not None


def _one_line(reason: Reason) -> Reason:
    """Return a reason with its first line and the number of further lines."""
    first, *others = reason.text.strip().splitlines() or [""]
    return reason._replace(text=f"{first} (and {len(others)} more)" if others else first)


class _Case:
    """A failed attempt.

    Args:
        readings: Its tasks in the order in which they ended.
        first_failed_task: The task that the agents saw fail first.
        reason: Why it ended, as the agents report.
    """

    def __init__(self, readings: list[Reading], first_failed_task: str, reason: Reason) -> None:
        self._readings = readings
        self._by_task = {reading.task: reading for reading in readings}
        self._first_failed_task = first_failed_task
        self._leader = "chief-0" if "chief-0" in self._by_task else "worker-0"
        self._victims = [reading for reading in readings if reading.collateral and not reading.ours]
        self._reason = _one_line(reason)

    # --- the task -------------------------------------------------------------------------------------------------

    def decided(self) -> Verdict | None:
        """Return the decision of the gang."""
        return self._find_reason([(self._reason, ""), *self._reasons(self._readings)], rules.DECISIONS)

    def reported(self) -> Verdict | None:
        """Return what the agents report; used if the logs show no cause."""
        order = sorted(self._readings, key=lambda reading: reading.task != self._first_failed_task)
        return self._find_reason([*self._reasons(order), (self._reason, "")], rules.REASONS)

    @staticmethod
    def _reasons(readings: Sequence[Reading]) -> list[tuple[Reason, str]]:
        return [(reading.evidence.reason, reading.task) for reading in readings]

    def _find_reason(self, reasons: Sequence[tuple[Reason, str]], kinds: Container[ReasonKind]) -> Verdict | None:
        """Return the verdict for the first of `reasons` whose class is one of `kinds`."""
        for reason, task in reasons:
            if reason and reason.kind in kinds:
                return self._from_reason(_one_line(reason), task)
        return None

    def _from_reason(self, reason: Reason, task: str) -> Verdict:
        """Return a verdict from the reason that an agent reported.

        Args:
            reason: The agent's reason, one line.
            task: The agent's task; empty for a reason of the gang.
        """
        kind = rules.REASONS[reason.kind]
        if kind is Cause.HANG:
            return self._hang(reason.text, task)
        if kind in (Cause.DEADLINE, Cause.LIFETIME):
            return self._verdict(None, kind, reason.text, ())
        about = task or self._first_failed_task
        message = reason.text
        if about and not _mentions(message, about):
            message = f"{self._called(about)} {WORDING[kind].clause}: {message}"
        return self._verdict(about, kind, message)

    def _hang(self, reason: str, task: str) -> Verdict:
        stuck = next((reading for reading in self._readings if reading.fatal and not reading.collateral), None)
        if stuck and stuck.fatal:
            raised = describe(stuck.fatal)
            message = f"{stuck.name} raised {raised}, but its process did not end, and the others waited for it"
            return self._verdict(stuck, Cause.HANG, message, excerpt(stuck.lines, stuck.fatal), stuck.fatal.location)
        inspections = {item.task: item.evidence.inspection for item in self._readings if item.evidence.inspection}
        activities = {name: find_activity(seen) for name, seen in inspections.items()}
        stacks = {name: _filled(seen.stack.splitlines()) for name, seen in inspections.items()}
        if inspections and all(is_serving(seen) for seen in inspections.values()):
            first = next(iter(inspections))
            message = f"{reason.partition(':')[0]}: all tasks wait in Server.join for a chief, and there is none"
            location = activities[first].location
            return self._verdict(None, Cause.HANG, message, stacks[first], location, hint=texts.SERVERS_HINT)
        awaited = [name for name, activity in activities.items() if activity.does]
        about = self._first_failed_task or task or (awaited[0] if len(awaited) == 1 else "")
        message = reason
        if about and not _mentions(reason, about):
            message = f"{self._called(about)} {WORDING[Cause.HANG].clause}: {reason}"
        if about in inspections:
            location = activities[about].location.partition(", inside")[0]
            return self._verdict(about, Cause.HANG, message, stacks[about] or (inspections[about].kernel,), location)
        return self._verdict(about, Cause.HANG, message)

    def independent_failure(self) -> Verdict | None:
        """Return the earliest failure that no peer caused."""
        failed = [reading for reading in self._readings if self._failed_by_itself(reading)]
        if not failed:
            return None
        first = failed[0]
        near = (reading for reading in failed if not reading.at > first.at + _CLOCKS_S)
        first = next((reading for reading in near if reading.task == self._first_failed_task), first)
        return self._of_task(first, [reading.task for reading in failed])

    def _failed_by_itself(self, reading: Reading) -> bool:
        if self._has_independent_reason(reading):
            return True
        if reading.ours or reading.code == 0:
            return False
        if not reading.collateral and (reading.fatal or not reading.unseen):
            return True
        return reading.unseen and bool(reading.evidence.reason) and self._first_failed_task in ("", reading.task)

    def _has_independent_reason(self, reading: Reading) -> bool:
        """Return whether the reason that the agent reported is the cause of the task's end."""
        kind = reading.evidence.reason.kind
        return kind in rules.INDEPENDENT_REASONS or (kind in rules.REASONS and reading.code == 0 and not reading.ours)

    def early_exit(self) -> Verdict | None:
        """Return the first task that exited with code 0 before its peers failed because of that."""
        latest = max((victim.at for victim in self._victims), default=0) + _EXIT_S
        left = (item for item in self._readings if item.code == 0 and not item.ours and item.at <= latest)
        first = next(left, None) if self._victims else None
        if first is None:
            return None
        for line in reversed(first.last_words):
            rule = find_rule(line, rules.EARLY_WORDS)
            if rule:
                message = f"{first.name} {WORDING[rule.kind].clause} and exited while the others were still training"
                return self._verdict(first, rule.kind, message, (shortened(line),))
        message = f"{first.name} {WORDING[Cause.STOPPED_EARLY].clause}"
        hint = texts.JOIN_HINT if first.is_server else ""
        return self._verdict(first, Cause.STOPPED_EARLY, message, hint=hint)

    def lost_leader(self) -> Verdict | None:
        """Return the chief if it answered none of the other tasks."""
        leader = self._leader
        others = [reading for reading in self._victims if reading.task != leader]
        if not others or not all(other.lost_leader for other in others):
            return None
        accusers = [reading.task for reading in self._readings if others[0].task in reading.accused]
        if len(others) == 1 and len(self._readings) > 2 and accusers:
            return None  # this task was cut off, not the chief
        where = self._called(leader)
        if len(others) == 1 and leader in accusers:
            message = (
                f"{where} and {others[0].name} lost each other: the network between them broke, or one was frozen"
            )
            return self._verdict(None, Cause.PEER_UNREACHABLE, message, _about_peers(others[0]))
        names = join_names([other.task for other in others])
        message = f"{where} stopped answering {names}: it was frozen, or cut off from the network"
        return self._verdict(leader, Cause.PEER_UNREACHABLE, message, _about_peers(others[0]))

    def reported_by_peers(self) -> Verdict | None:
        """Return the task that answered its peers with an error."""
        for witness in self._witnesses():
            if not witness.answers:
                continue
            answer = witness.answers[0]
            if rules.RESTARTED_FOR_SURE.search(answer.text):
                return self._came_back(witness, answer.task, _about_peers(witness))
            return self._of_answer(witness, answer)
        return None

    def _of_answer(self, reading: Reading, answer: Remote) -> Verdict:
        rule = rule_of(answer.raised)
        answer_text = f"{answer.raised.short}: {shortened(answer.text, 240)}"
        kind = rule.kind if rule else Cause.UNKNOWN
        if rule and rule.shared:
            return self._verdict(
                None, kind, f"{rule.clause or WORDING[kind].shared} ({answer_text})", _about_peers(reading)
            )
        message = f"{self._called(answer.task)} reported: {answer_text}"
        return self._verdict(answer.task, kind, message, _about_peers(reading), hint=rule.hint if rule else "")

    def _witnesses(self) -> list[Reading]:
        """Return the tasks whose output may mention their peers; tasks that fleet did not stop come first."""
        failed = [
            reading for reading in self._readings if reading.code != 0 and (reading.collateral or not reading.ours)
        ]
        return sorted(failed, key=lambda reading: (reading.ours, reading.at))

    def lost_by_peers(self) -> Verdict | None:
        """Return the task that the others report as gone."""
        for witness in self._witnesses():
            if not witness.accused:
                continue
            accused = witness.accused[0]
            cut = "Connection timed out" in witness.fatal.message if witness.fatal else False
            loss = f"lost its connection to {self._called(accused)}" if cut else f"lost {self._called(accused)}"
            why = "the network between them is broken" if cut else "it was frozen, cut off from the network, or ended"
            return self._verdict(
                accused, Cause.PEER_UNREACHABLE, f"{witness.task} {loss}: {why}", _about_peers(witness)
            )
        return None

    def never_started(self) -> Verdict | None:
        """Return a task that the others still waited for at the end."""
        leader = self._by_task.get(self._leader)
        if leader and leader.is_idle_after_start and leader.leads and leader.code != 0:
            message = (
                f"{leader.name} could not reach its own server at the address that TF_CONFIG gives it: "
                "that address is another host's, or a proxy is set and no_proxy does not except it"
            )
            return self._verdict(leader, Cause.PEER_UNREACHABLE, message)
        for reading in self._readings:
            deserted = self._deserted(reading)
            absent = [task for task in self._by_task if reading.arrived and task not in reading.arrived]
            if reading.code == 0 or not (reading.awaited or deserted or absent):
                continue
            missing = [task for task in reading.awaited if task] or absent or ([self._leader] if deserted else [])
            names = join_names([self._called(task) for task in missing]) or "some of its peers"
            lines = tuple(
                shortened(line) for line in reading.lines if "waiting for" in line.lower() or "/task:" in line
            )
            message = f"{reading.task} waited for {names}, which never joined"
            return self._verdict(
                missing[0] if missing else "",
                Cause.PEER_NEVER_STARTED,
                message,
                lines[-MOST_LINES:] or ending(reading.lines),
            )
        return None

    def missed_barrier(self) -> Verdict | None:
        """Return the task that did not reach a barrier at which the others waited."""
        for witness in self._witnesses():
            barrier, missing = witness.barrier
            if missing:
                suspect = self._by_task.get(missing[0]) if len(missing) == 1 else None
                names = join_names([self._called(task) for task in missing])
                message = f"{names} did not come to the barrier '{barrier}', at which {witness.task} waited"
                return self._verdict(suspect, Cause.HANG, message, _about_peers(witness))
        return None

    def _deserted(self, reading: Reading) -> bool:
        """Return whether it waited for a chief that never started."""
        if reading.fatal:
            return "CoordinationService/RegisterTask" in reading.fatal.message
        leader = self._by_task.get(self._leader)
        return reading.task != self._leader and reading.is_idle_after_start and not (leader and leader.serves)

    def all_collateral(self) -> Verdict | None:
        """Return what the failures have in common if each is a consequence of another."""
        victims = self._victims
        if victims and all(victim.fatal and rules.TIMED_OUT.search(victim.fatal.message) for victim in victims):
            others = [reading for reading in self._readings if reading not in victims and reading.code is None]
            suspect = others[0] if len(others) == 1 else None
            stuck = suspect.name if suspect else "one of the workers"
            message = (
                f"{stuck} made no progress: the collectives of {join_names([v.task for v in victims])} timed out"
            )
            return self._verdict(suspect, Cause.HANG, message, _about_peers(victims[0]))
        for victim in victims:
            rule = rule_of(victim.fatal) if victim.fatal else None
            if rule:
                message = f"the workers failed together: {_failure(victim)}"
                return self._verdict(None, rule.kind, message, _about_peers(victim))
        if victims and any(_CUT.search(line) for line in victims[0].lines):
            message = f"the workers lost each other, and none of their logs shows why: {_failure(victims[0])}"
            return self._verdict(None, Cause.PEER_UNREACHABLE, message, _about_peers(victims[0]))
        return None

    def unknown(self) -> Verdict:
        """Describe the first failure without a cause."""
        reading = self._by_task.get(self._first_failed_task) or next(
            (reading for reading in self._readings if reading.code != 0), None
        )
        if reading is None:
            text = self._reason.text or "the job failed for an unknown reason"
            return Verdict(self._first_failed_task, Cause.UNKNOWN, text)
        if self._reason and (reading.ours or reading.unseen):
            return self._verdict(reading, Cause.UNKNOWN, self._reason.text)
        if reading.fatal:
            message = f"{reading.name} raised {describe(reading.fatal)}"
            lines = excerpt(reading.lines, reading.fatal)
            return self._verdict(reading, Cause.UNKNOWN, message, lines, reading.fatal.location)
        words = _last_output(reading.last_output) or ", and its log does not show why"
        return self._verdict(reading, Cause.UNKNOWN, f"{reading.name} {self._ended(reading)}{words}")

    # --- the cause ------------------------------------------------------------------------------------------------

    def _of_task(self, reading: Reading, failed: list[str]) -> Verdict:
        """Return the verdict on a task that failed by itself."""
        if self._has_independent_reason(reading):
            kind = rules.REASONS[reading.evidence.reason.kind]
            message = f"{reading.name} {WORDING[kind].clause}: {reading.evidence.reason.text}"
            return self._verdict(reading, kind, message, but=failed)
        if reading.fatal and reading.signal != signal.SIGINT:
            return self._of_exception(reading, reading.fatal, failed)
        if reading.unseen:
            return self._of_lost(reading)
        for line in reversed(reading.last_words):
            rule = find_rule(line, rules.LAST_WORDS)
            if rule:
                clause, hint = self._clause_and_hint(reading, rule)
                text = f"{reading.name} {clause}: {shortened(error_in(line) or line.strip(), 200)}"
                return self._verdict(reading, rule.kind, text, but=failed, hint=hint)
        if reading.signal:
            return self._of_signal(reading, failed)
        return self._of_code(reading, failed)

    def _of_exception(self, reading: Reading, fatal: Raised, failed: list[str]) -> Verdict:
        restarted = rules.RESTARTED if reading.progressed else rules.RESTARTED_FOR_SURE
        if restarted.search(fatal.message):
            return self._came_back(reading, reading.named(fatal.message), excerpt(reading.lines, fatal))
        download = find_download(fatal, reading.lines, {host for host, _ in reading.endpoints})
        if download is not None:
            return self._of_download(reading, fatal, download, failed)
        rule = rule_of(fatal) or _memory(reading, fatal) or self._incomplete(reading, fatal)
        kind = Cause.SERVICE_UNREACHABLE if reading.service else rule.kind if rule else Cause.SCRIPT_EXCEPTION
        text = describe(fatal)
        lines = excerpt(reading.lines, fatal)
        if kind is Cause.VERSION_MISMATCH and self._resumed_apart():
            kind = Cause.CHECKPOINT_NOT_SHARED
        elif kind is Cause.CHECKPOINT_NOT_SHARED and rule and not rule.clause and self._leader in failed:
            kind = Cause.FILE_NOT_FOUND
        if rule and rule.shared:
            message = f"{rule.clause or WORDING[kind].shared} ({text})"
            return self._verdict(None, kind, message, lines, fatal.location, hint=rule.hint)
        too = self._too(reading, fatal, failed)
        clause, hint = self._clause_and_hint(reading, rule) if rule and rule.kind is kind else ("", "")
        hint = storage.hint(fatal.message, reading.lines) or hint
        if kind in (Cause.SCRIPT_EXCEPTION, Cause.UNKNOWN):
            if fatal.location and text.endswith(".") and not text.endswith(".."):
                text = text[:-1]  # the sentence continues
            where = f" at {fatal.location}" if fatal.location else ""
            by = next((f", as {answer.task} reported" for answer in reading.answers if answer.line < fatal.end), "")
            message = f"{reading.name} raised {text}{where}{by}{too}"
            hint = hint or _arguments_hint(lines) or rules.hint_of(fatal)
            hint = hint or _package_hint(fatal) or _import_hint(reading, fatal)
        elif kind is Cause.SERVICE_UNREACHABLE:
            message = (
                f"{reading.name} could not reach {reading.service}, which is not a task of this job: {text}{too}"
            )
        else:
            message = f"{reading.name} {clause or WORDING[kind].clause}: {text}{too}"
        return self._verdict(reading, kind, message, lines, fatal.location, but=failed, hint=hint)

    def _incomplete(self, reading: Reading, fatal: Raised) -> Rule | None:
        """Return the rule for a file that is read while another task downloads it to the same place."""
        downloading = [each for each in self._readings if any(map(rules.DOWNLOADING.match, each.lines))]
        fits = downloading and reading not in downloading and rules.INCOMPLETE.fits(fatal)
        return rules.INCOMPLETE if fits else None

    def _too(self, reading: Reading, fatal: Raised, failed: list[str]) -> str:
        """Return which other tasks failed in the same way, as the end of a sentence."""
        alike = [task for task in failed if task != reading.task and _same(self._by_task[task].fatal, fatal)]
        return f"; so did {join_names(alike)}" if alike else ""

    def _of_download(self, reading: Reading, fatal: Raised, download: Download, failed: list[str]) -> Verdict:
        message = f"{reading.name} could not download {download.url}: {download.reason}"
        message += self._too(reading, fatal, failed)
        hint = "" if download.files else texts.SERVER_HINT
        if download.files and download.files[0].endswith(" "):
            hint = texts.PUSHED_HINT
        if download.cache:
            hint = texts.CACHE_HINT.format(cache=download.cache, parent=download.cache.rpartition("/")[0] or ".")
        lines = excerpt(reading.lines, fatal)
        verdict = self._verdict(reading, Cause.DOWNLOAD, message, lines, fatal.location, but=failed, hint=hint)
        return replace(verdict, downloads=download.files)

    def _clause_and_hint(self, reading: Reading, rule: Rule) -> tuple[str, str]:
        """Return the clause and the hint of a rule for one task; the hint is empty if it is that of the kind."""
        if rule.kind is Cause.PORT_IN_USE and reading.listens and reading.evidence.port not in (0, reading.listens):
            if reading.fatal and "cluster_resolver" in source_of(reading.lines, reading.fatal):
                return (
                    f"could not listen on port {reading.listens}, which is not its port in this job",
                    texts.RESOLVER_HINT,
                )
            return (
                f"could not listen on port {reading.listens}, which was in use. fleet gave it port "
                f"{reading.evidence.port}: the script sets TF_CONFIG, or opens a port of its own",
                texts.TASK_PORT_HINT,
            )
        if rule.kind is Cause.NAME_RESOLUTION and not reading.names_task:
            return WORDING[rule.kind].clause, texts.NAME_HINT
        return rule.clause or WORDING[rule.kind].clause, rule.hint

    def _came_back(self, reading: Reading, peer: str, lines: Sequence[str]) -> Verdict:
        """Blame a peer that ended and was restarted, which this task only noticed."""
        lost = self._called(peer) if peer else "a peer"
        message = f"{reading.task} lost {lost}: it ended, and was started again while the others continued"
        hint = texts.RESTARTED_HINT
        return self._verdict(peer, Cause.PEER_UNREACHABLE, message, lines, but=[reading.task], hint=hint)

    def _resumed_apart(self) -> bool:
        """Return whether the tasks began with different epochs, or one while the chief was still restoring."""
        epochs = {each.first_epoch for each in self._readings if each.first_epoch}
        leader = self._by_task.get(self._leader)
        return len(epochs) > 1 or bool(epochs and leader and not leader.first_epoch)

    def _of_lost(self, reading: Reading) -> Verdict:
        """Return the verdict on a task with an unknown end: its agent or its host is gone."""
        kind = rules.REASONS.get(reading.evidence.reason.kind, Cause.UNKNOWN)
        message = f"{reading.name} was lost: {reading.evidence.reason.text}"
        return self._verdict(reading, kind, message)

    def _of_signal(self, reading: Reading, failed: list[str]) -> Verdict:
        name, reason = signal_name(reading.signal), reading.evidence.reason.text
        event, hint = f"was killed by {name}", ""
        if reading.signal == signal.SIGINT:
            where = f" at {reading.fatal.location}" if reading.fatal and reading.fatal.location else ""
            event, hint = f"was interrupted by SIGINT or KeyboardInterrupt{where}", texts.INTERRUPT_HINT
        elif reading.signal == signal.SIGILL:
            event, hint = f"crashed: its CPU does not have an instruction ({name})", texts.ILLEGAL_HINT
        elif reading.signal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE):
            event, hint = f"crashed in native code ({name}){_last_output(reading.error)}", texts.CRASH_HINT
        message = f"{reading.name} {event}"
        if reason and name not in reason:
            message = f"{message} ({reason})"
        return self._verdict(reading, Cause.KILLED, message, but=failed, hint=hint)

    def _of_code(self, reading: Reading, failed: list[str]) -> Verdict:
        """Return the verdict on a task that exited without an exception and without a known message."""
        lines, hint = ending(reading.lines), _arguments_hint(ending(reading.lines))
        last = next((line.strip() for line in lines if find_missing([line])), reading.last_output)
        if hint or (reading.code == 1 and last in lines and rules.COMPLAINT.search(last)):
            message, hint = f"{reading.name} {self._ended(reading)}: {shortened(last, 200)}", hint or texts.EXIT_HINT
            return self._verdict(reading, Cause.SCRIPT_EXCEPTION, message, lines, but=failed, hint=hint)
        message = f"{reading.name} {self._ended(reading)} without a traceback{_last_output(reading.last_output)}"
        return self._verdict(reading, Cause.UNKNOWN, message, but=failed)

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _verdict(
        self,
        blamed: Reading | str | None,
        kind: Cause,
        message: str,
        lines: Sequence[str] | None = None,
        location: str = "",
        *,
        but: Sequence[str] = (),
        hint: str = "",
    ) -> Verdict:
        """Return the verdict, with the tasks that failed because of it.

        Args:
            blamed: The task to blame; None: no single task.
            kind: The class of the cause.
            message: The cause.
            lines: The lines of the log that decided; None: the last lines of the task to blame.
            location: Where in the user's code it was raised.
            but: Tasks that failed by themselves.
            hint: What to change; empty: that of the kind.
        """
        task = blamed.task if isinstance(blamed, Reading) else blamed or ""
        reading = blamed if isinstance(blamed, Reading) else self._by_task.get(task)
        if lines is None:
            lines = ending(reading.lines) if reading else ()
        follow = tuple(
            sorted(item.task for item in self._readings if item.collateral and item.task not in (task, *but))
        )
        return Verdict(task, kind, message, tuple(lines[:MOST_LINES]), location, follow, hint or WORDING[kind].hint)

    def _called(self, task: str) -> str:
        reading = self._by_task.get(task)
        return reading.name if reading else task

    @staticmethod
    def _ended(reading: Reading) -> str:
        if reading.ours:
            return "was stopped"
        if reading.unseen:
            return "ended unseen"
        return f"was killed by signal {reading.signal}" if reading.signal else f"exited with code {reading.code}"


def _package_hint(fatal: Raised) -> str:
    """Return what to do about a module that was not found; empty: it is another exception."""
    package = re.match(r"No module named '([\w.-]{1,80})'(?!; )", fatal.message)
    return advice(package.group(1).partition(".")[0]) if package else ""


def _arguments_hint(lines: Sequence[str]) -> str:
    """Return the hint for arguments that were missing; empty: it is another failure."""
    missing = find_missing(lines)
    return f"{texts.ARGUMENTS_HINT}fleet train SCRIPT -- {' '.join(words(missing))}" if missing else ""


def _import_hint(reading: Reading, fatal: Raised) -> str:
    """Return the hint for an exception out of a package that the script imports; empty: that of the kind."""
    inside = bool(fatal.frames) and str(fatal.frames[-1]) != fatal.location
    return texts.PACKAGE_HINT if inside and _IMPORT.match(source_of(reading.lines, fatal)) else ""


def _memory(reading: Reading, fatal: Raised) -> Rule | None:
    """Return the rule for an exception caused by missing memory; earlier lines show whether it is the GPU's."""
    if not any(rule.fits(fatal) for rule in rules.MEMORY):
        return None
    matches = (find_rule(line, rules.MEMORY_WORDS) for line in reversed(reading.lines))
    return next((rule for rule in matches if rule), next(rule for rule in rules.MEMORY if rule.fits(fatal)))


def describe(raised: Raised) -> str:
    """Return type and message of an exception: ``ValueError: loss is not a number``."""
    text = headline(raised)
    return f"{raised.short}: {text}" if text else raised.short


def _failure(reading: Reading) -> str:
    return describe(reading.fatal) if reading.fatal else (ending(reading.lines, 1) or ("",))[0]


def _same(raised: Raised | None, other: Raised) -> bool:
    """Return whether two tasks failed with the same exception at the same place."""
    return raised is not None and raised.short == other.short and raised.location == other.location


def _last_output(line: str) -> str:
    return f"; last output: {shortened(line, 200)}" if line else ""


def _filled(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(shortened(line) for line in lines if line.strip())


def _about_peers(reading: Reading) -> tuple[str, ...]:
    """Return the lines in which a task mentions its peers."""
    if reading.fatal:
        return excerpt(reading.lines, reading.fatal)
    lines = [shortened(line) for line in reading.last_words if mentions_peers(line) or "/task:" in line]
    return tuple(lines[:MOST_LINES]) or ending(reading.lines)
