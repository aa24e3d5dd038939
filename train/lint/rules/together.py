"""Rules on operations that all workers must run together, equally often (MW5xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.lint.interpreter.api_names import Kind, kind_of
from train.lint.interpreter.trace import Exit
from train.lint.interpreter.values import Call, Const, Guard, Instance, Made, Mark, Value
from train.lint.rule import ERROR, WARNING, Violation, rule
from train.lint.subject import Subject, inner

GROUPS = {
    **dict.fromkeys(("fit", "fit_generator", "train_on_batch"), "fit"),
    **dict.fromkeys(("evaluate", "test_on_batch"), "evaluate"),
    **dict.fromkeys(("predict", "predict_on_batch"), "predict"),
    **dict.fromkeys(("save", "save_weights", "write"), "save"),
    **dict.fromkeys(("run", "reduce", "gather", "experimental_run_v2"), "step"),
}
"""Collective methods, which all workers must call, and their effect."""

_SAVERS = ("tensorflow.train.Checkpoint", "tensorflow.train.CheckpointManager")
_NO_GANG = ("outside", "inside", "has_tf_config", "no_tf_config")
_CHANCE = Mark.TIME | Mark.RANDOM | Mark.HOST | Mark.LOCAL
_WORDS = {
    Mark.TIME: "the clock",
    Mark.RANDOM: "chance",
    Mark.HOST: "the host or the process",
    Mark.LOCAL: "a result of only one worker",
}
_WORKERS = {"chief": "only the chief", "not_chief": "every worker but the chief"}


def collective_calls(subject: Subject) -> list[Call]:
    """Return the calls in which all workers must take part."""
    return [call for call in subject.trace.calls if subject.together and _collective(subject, call)]


def only_some(subject: Subject) -> list[tuple[Call, Guard]]:
    """Return the collective calls that only some workers reach, with the condition, unless the others do the same."""
    calls = collective_calls(subject)
    result = []
    for call in calls:
        conditions = (guard for guard in call.guards if guard.marks & Mark.ROLE and guard.meaning not in _NO_GANG)
        result += [(call, guard) for guard in conditions if not _elsewhere(call, guard, calls)][:1]
    return result


def _collective(subject: Subject, call: Call) -> bool:
    if call.method not in GROUPS:
        return False
    if call.name == "tensorflow.saved_model.save":
        return subject.shared(call.argument("obj", 0))
    if kind_of(call.receiver) is Kind.STRATEGY:
        return call.receiver is not None and subject.is_multi(call.receiver) and GROUPS[call.method] == "step"
    if kind_of(call.receiver) is Kind.MODEL:
        return subject.shared(call.receiver)
    owners = subject.made_by(call.receiver)
    return bool(owners) and all(owner.name in _SAVERS and _holds_shared(subject, owner) for owner in owners)


def _holds_shared(subject: Subject, call: Call, depth: int = 2) -> bool:
    """Return whether a checkpoint or its manager contains a value that all workers share."""
    for value in (value for item in call.everything() for value in inner(item)):
        made = value.call if isinstance(value, Made | Instance) else None
        if made is None:
            continue
        if made.name in _SAVERS and depth and _holds_shared(subject, made, depth - 1):
            return True
        if kind_of(value) is Kind.MODEL and subject.inside(made):
            return True
    return False


def _elsewhere(call: Call, guard: Guard, calls: list[Call]) -> bool:
    """Return whether workers that do not reach this call do the same at another place."""
    return any(
        other.number == guard.number and other.arm != guard.arm and GROUPS[item.method] == GROUPS[call.method]
        for item in calls
        for other in item.guards
    )


@rule("MW501", ERROR)
def _some(subject: Subject) -> Iterator[Violation]:
    for call, guard in only_some(subject):
        if GROUPS[call.method] != "save":
            workers = _WORKERS.get(guard.meaning, "not every worker")
            where = guard.location.seen_from(call.location)
            yield Violation(
                call.location,
                f"{workers} reaches {call.method} (the condition in {where} depends on the task)",
                reason="it is a collective operation: the workers that reach it wait forever for the others, or "
                "fail when they exit",
                fix="run it on every worker; keep only local operations such as print under the condition",
            )
    for exit_, guard, call in _exits(subject, Mark.ROLE):
        if guard.meaning not in _NO_GANG and exit_.loops:
            where = call.location.seen_from(guard.location)
            yield Violation(
                guard.location,
                f"some workers leave the loop around {call.method} ({where}) before the others",
                reason="the remaining workers wait for them forever, or fail when they exit",
                fix="leave the loop at the same step on all workers",
            )


@rule(
    "MW502",
    WARNING,
    reason="sooner or later the workers decide differently, and the remaining workers wait forever for the others",
    fix="use a value that is the same on all workers: the number of steps, or a loss reduced with strategy.reduce",
)
def _apart(subject: Subject) -> Iterator[Violation]:
    reached = ((guard, call) for call in collective_calls(subject) for guard in call.guards if guard.marks & _CHANCE)
    decisions = [(guard, call, "whether it comes to {} ({})") for guard, call in reached]
    decisions += [(guard, call, "when the loop around {} ({}) ends") for _, guard, call in _exits(subject, _CHANCE)]
    seen: set[int] = set()
    for guard, call, decision in decisions:
        if guard.number not in seen:
            seen.add(guard.number)
            action = decision.format(call.method, call.location.seen_from(guard.location))
            causes = [words for mark, words in _WORDS.items() if guard.marks & mark]
            yield Violation(guard.location, f"{action} depends on {' and '.join(causes)}")


def _exits(subject: Subject, marks: Mark) -> Iterator[tuple[Exit, Guard, Call]]:
    """Yield the places where a collective loop is left under a condition that depends on `marks`."""
    calls = collective_calls(subject)
    for exit_ in subject.trace.exits:
        call = next((item for item in calls if set(exit_.loops) & set(item.loops)), None)
        if call is None:
            continue
        inside = [guard.number for guard in exit_.guards]
        start = inside.index(exit_.loops[0]) + 1 if exit_.loops[0] in inside else 0
        for guard in exit_.guards[start:]:
            if guard.marks & marks and guard.kind != "loop":
                yield exit_, guard, call


@rule(
    "MW503",
    WARNING,
    reason="if the script raises an exception while the thread runs, the process keeps sending heartbeats: the "
    "others wait forever, and no failure is reported",
    fix="write threading.Thread(…, daemon=True)",
)
def _threads(subject: Subject) -> Iterator[Violation]:
    last = max((call.order for call in collective_calls(subject)), default=0)
    for call in subject.calls("start"):
        for made in subject.made_by(call.receiver):
            is_thread = made.name in ("threading.Thread", "threading.Timer") and not made.starred
            if is_thread and call.order <= last and _daemon(call.receiver, made) is False:
                yield Violation(made.location, "the script starts a thread that is not a daemon")


def _daemon(value: Value | None, made: Call) -> bool | None:
    """Return whether a thread is a daemon; None if unknown."""
    given = made.keywords.get("daemon")
    if isinstance(value, Made) and "daemon" in value.attrs:
        given = value.attrs["daemon"]
    if given is None:
        return False
    return bool(given.value) if isinstance(given, Const) else None
