"""What all workers have to do together, as often as each other: MW5xx."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.lint.interpreter.names import Kind, kind_of
from train.lint.interpreter.trace import Leave
from train.lint.interpreter.values import Call, Const, Guard, Instance, Made, Mark, Value
from train.lint.model import Severity
from train.lint.subject import Found, Subject, inner, severity

GROUPS = {
    **dict.fromkeys(("fit", "fit_generator", "train_on_batch"), "fit"),
    **dict.fromkeys(("evaluate", "test_on_batch"), "evaluate"),
    **dict.fromkeys(("predict", "predict_on_batch"), "predict"),
    **dict.fromkeys(("save", "save_weights", "write"), "save"),
    **dict.fromkeys(("run", "reduce", "gather", "experimental_run_v2"), "step"),
}
"""Methods that are of use only where all workers call them, and what they do."""

_SAVERS = ("tensorflow.train.Checkpoint", "tensorflow.train.CheckpointManager")
_NO_GANG = ("outside", "inside", "has_tf_config", "no_tf_config")
_CHANCE = Mark.TIME | Mark.RANDOM | Mark.HOST | Mark.LOCAL
_WORDS = {
    Mark.TIME: "the clock",
    Mark.RANDOM: "chance",
    Mark.HOST: "the host or the process",
    Mark.LOCAL: "what one worker has computed by itself",
}


def taking_part(subject: Subject) -> list[Call]:
    """Calls in which all workers have to take part."""
    return [call for call in subject.trace.calls if subject.together and _collective(subject, call)]


def only_some(subject: Subject) -> list[tuple[Call, Guard]]:
    """Those of them that only some workers get to, with the condition; not where the others do the same."""
    calls = taking_part(subject)
    result = []
    for call in calls:
        for guard in call.guards:
            if guard.marks & Mark.ROLE and guard.what not in _NO_GANG and not _elsewhere(call, guard, calls):
                result.append((call, guard))
                break
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
    """Whether a checkpoint, or what manages one, holds something that all workers have together."""
    for item in call.everything():
        for value in inner(item):
            made = value.call if isinstance(value, Made | Instance) else None
            if made is None:
                continue
            if made.name in _SAVERS and depth and _holds_shared(subject, made, depth - 1):
                return True
            if kind_of(value) is Kind.MODEL and subject.inside(made):
                return True
    return False


def _elsewhere(call: Call, guard: Guard, calls: list[Call]) -> bool:
    """Whether those that do not get here do the same at another place."""
    return any(
        other.number == guard.number and other.arm != guard.arm and GROUPS[item.method] == GROUPS[call.method]
        for item in calls
        for other in item.guards
    )


def _some(subject: Subject) -> Iterator[Found]:
    """MW501."""
    for call, guard in only_some(subject):
        if GROUPS[call.method] == "save":
            continue
        who = {"chief": "only the chief", "not_chief": "every worker but the chief"}.get(
            guard.what, "not every worker"
        )
        where = guard.place.seen_from(call.place)
        yield Found(
            call.place,
            Severity.ERROR,
            f"{who} gets to {call.method} (the condition in {where} asks which task it is)",
            "all workers work in step there: those that come wait for the others, for ever, or fail when these exit",
            "let every worker do it, and put under the condition only what one of them can do alone, such as print",
        )
    for leave, guard, call in _leaves(subject, Mark.ROLE):
        if guard.what not in _NO_GANG and leave.loops:
            where = call.place.seen_from(guard.place)
            yield Found(
                guard.place,
                Severity.ERROR,
                f"some workers leave the loop around {call.method} ({where}) before the others",
                "those that go on wait for them, for ever, or fail when they exit",
                "let all of them leave it at the same step",
            )


def _apart(subject: Subject) -> Iterator[Found]:
    """MW502."""
    seen: set[int] = set()
    for call in taking_part(subject):
        for guard in call.guards:
            if guard.marks & _CHANCE and guard.number not in seen:
                seen.add(guard.number)
                yield _differs(guard, f"whether it comes to {call.method} ({call.place.seen_from(guard.place)})")
    for _, guard, call in _leaves(subject, _CHANCE):
        if guard.number not in seen:
            seen.add(guard.number)
            yield _differs(guard, f"when the loop around {call.method} ({call.place.seen_from(guard.place)}) ends")


def _differs(guard: Guard, what: str) -> Found:
    causes = [words for mark, words in _WORDS.items() if guard.marks & mark]
    return Found(
        guard.place,
        Severity.WARNING,
        f"{what} depends on {' and '.join(causes)}",
        "the workers decide differently, sooner or later: those that go on wait for the others, for ever",
        "decide by something that is the same on all workers: the count of steps, or a loss that was put together "
        "with strategy.reduce",
    )


def _leaves(subject: Subject, marks: Mark) -> Iterator[tuple[Leave, Guard, Call]]:
    """Where a loop that all workers go through together is left under a condition that depends on `marks`."""
    calls = taking_part(subject)
    for leave in subject.trace.leaves:
        inside = [guard.number for guard in leave.guards]
        start = inside.index(leave.loops[0]) + 1 if leave.loops[0] in inside else 0
        for guard in leave.guards[start:]:
            if not guard.marks & marks or guard.kind == "loop":
                continue
            call = next((item for item in calls if set(leave.loops) & set(item.loops)), None)
            if call is not None:
                yield leave, guard, call


def _threads(subject: Subject) -> Iterator[Found]:
    """MW503."""
    last = max((call.order for call in taking_part(subject)), default=0)
    for call in subject.calls("start"):
        for made in subject.made_by(call.receiver):
            if made.name not in ("threading.Thread", "threading.Timer") or call.order > last or made.starred:
                continue
            if _daemon(call.receiver, made) is False:
                yield Found(
                    made.place,
                    severity(call, Severity.WARNING),
                    "a thread is started that is no daemon",
                    "if the script raises while it runs, the process stays, and keeps telling the others that it is "
                    "alive: they wait for ever, and nothing is reported",
                    "threading.Thread(…, daemon=True)",
                )


def _daemon(value: Value | None, made: Call) -> bool | None:
    """Whether a thread is a daemon; None: nobody knows."""
    given = made.keywords.get("daemon")
    if isinstance(value, Made) and "daemon" in value.attrs:
        given = value.attrs["daemon"]
    if given is None:
        return False
    return bool(given.value) if isinstance(given, Const) else None


RULES: dict[str, Callable[[Subject], Iterator[Found]]] = {
    "MW501": _some,
    "MW502": _apart,
    "MW503": _threads,
}
