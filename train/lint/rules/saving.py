"""Checkpoints and models on disk: MW4xx."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from train.lint.interpreter.names import Kind, keras_part, kind_of
from train.lint.interpreter.values import (
    DIFFERS,
    Bound,
    Call,
    Const,
    Either,
    Items,
    Made,
    Mark,
    Opaque,
    Value,
    options,
    text,
)
from train.lint.model import Severity
from train.lint.rules.together import GROUPS, only_some, taking_part
from train.lint.subject import Found, Subject, argument, inner, severity

_URL = re.compile(r"^[a-z][a-z0-9+]*://")
_HOME = re.compile(r"^(?:/home/|/Users/|/root/|~|[A-Za-z]:[\\/])")
_RESTORES = ("restore", "read", "load_weights", "load_model", "latest_checkpoint", "restore_or_initialize")
_DIRECTORY = 'os.environ.get("FLEET_CHECKPOINT_DIR", "checkpoints")'


def _only_the_chief(subject: Subject) -> Iterator[Found]:
    """MW401."""
    for call, guard in only_some(subject):
        if GROUPS.get(call.method) != "save":
            continue
        who = {"chief": "only the chief saves", "not_chief": "the chief does not save"}.get(
            guard.what, "only some of the workers save"
        )
        yield Found(
            call.place,
            Severity.ERROR,
            f"{who} ({call.method} under the condition in {guard.place.seen_from(call.place)})",
            "to save reads variables that the workers hold together: those that save wait for the others, for ever",
            "save on every worker, into directories of their own, and let all but the chief delete theirs: "
            'path if is_chief else f"{path}/workertemp_{task_id}"',
        )


def _one_path(subject: Subject) -> Iterator[Found]:
    """MW402."""
    for call in taking_part(subject):
        chosen = any(guard.marks & Mark.ROLE for guard in call.guards)
        if GROUPS.get(call.method) != "save" or chosen or not call.sure or call.starred:
            continue
        path = _path(subject, call)
        if path is None or any(_may_differ(option) for option in options(path)) or isinstance(path, Either):
            continue
        yield Found(
            call.place,
            Severity.WARNING,
            "every worker saves under one and the same path",
            "where they share a file system or a bucket, they write over each other's files, and what is left may "
            "be whole or not",
            "let all but the chief save into directories of their own, which they then delete: "
            'path if is_chief else f"{path}/workertemp_{task_id}"',
        )


def _path(subject: Subject, call: Call) -> Value | None:
    """Where something is saved."""
    owner = subject.made_by(call.receiver)
    if call.method == "save" and owner and owner[0].method == "CheckpointManager":
        return owner[0].argument("directory", 1)
    if call.name == "tensorflow.saved_model.save":
        return call.argument("export_dir", 1)
    for name in ("filepath", "file_prefix", "path"):
        if name in call.keywords:
            return call.keywords[name]
    return call.argument("filepath", 0)


def _may_differ(path: Value) -> bool:
    return bool(path.marks & (DIFFERS | Mark.UNKNOWN | Mark.TEMPORARY | Mark.TASK_PATH)) or not isinstance(
        path, Const | Opaque | Bound
    )


def _directories(subject: Subject) -> Iterator[tuple[Call, Value]]:
    """Directories that a script goes on from when it is started again."""
    for call in subject.trace.calls if subject.multi or subject.parameter_server else ():
        part = keras_part(call.name)
        if part in ("callbacks.BackupAndRestore", "callbacks.experimental.BackupAndRestore"):
            value = call.argument("backup_dir", 0)
        elif call.name == "tensorflow.train.CheckpointManager":
            value = call.argument("directory", 1)
        elif call.name == "tensorflow.train.Checkpoint.save":
            value = call.argument("file_prefix", 0)
        else:
            continue
        if value is not None:
            yield call, value


def _lost_directory(subject: Subject) -> Iterator[Found]:
    """MW403."""
    for call, value in _directories(subject):
        if all(option.marks & Mark.TEMPORARY for option in options(value)):
            yield Found(
                call.place,
                Severity.WARNING,
                "checkpoints are kept in a temporary directory",
                "it has another name in every process, or is deleted when the process ends: nothing is ever resumed "
                "from it",
                _DIRECTORY,
            )
        elif all(_HOME.match(_beginning(option)) for option in options(value)):
            yield Found(
                call.place,
                Severity.WARNING,
                f"checkpoints are kept in a directory of this computer's user ({_beginning(value)})",
                "the hosts have other users, and `fleet` does not copy it from the chief to the others",
                _DIRECTORY,
            )


def _own_directory(subject: Subject) -> Iterator[Found]:
    """MW404."""
    for call, value in _directories(subject) if subject.together else ():
        paths = [text(option) for option in options(value)]
        if all(path is not None and not _URL.match(path) and not _HOME.match(path) for path in paths):
            yield Found(
                call.place,
                Severity.HINT,
                f"checkpoints are kept in {paths[0]!r}, a directory that only the script knows of",
                "it is not copied from the chief to the other hosts: after a host was lost, or with directories that "
                "differ, the workers go on from different steps, and nothing tells",
                f"{_DIRECTORY}; or fleet train --checkpoint-dir",
            )


def _beginning(value: Value) -> str:
    if isinstance(value, Opaque) and value.what.startswith("path:"):
        return value.what.removeprefix("path:")
    return text(value) or ""


def _nothing_saved(subject: Subject) -> Iterator[Found]:
    """MW405."""
    if not subject.together or not subject.trace.complete or any(map(_restores, subject.trace.calls)):
        return
    for call in subject.trainings:
        given = argument(call, "callbacks")
        epochs = argument(call, "epochs")
        if call.starred or epochs is None or (isinstance(epochs, Const) and epochs.value == 1):
            continue
        if given is None or (isinstance(given, Items) and given.exact and all(map(_resumes_nothing, given.items))):
            saves = isinstance(given, Items) and not all(map(_keeps_nothing, given.items))
            yield Found(
                call.place,
                Severity.HINT,
                "ModelCheckpoint saves checkpoints, and nothing in the script restores one"
                if saves
                else "nothing is kept that training could go on from",
                "when a host is lost or the job is started again, it begins with the first epoch",
                f"callbacks=[tf.keras.callbacks.BackupAndRestore({_DIRECTORY})]",
            )


def _restores(call: Call) -> bool:
    """Whether a call may take up what was saved."""
    known = kind_of(call.receiver) is Kind.MODEL or keras_part(call.name) or call.name.startswith("tensorflow.train.")
    return call.method in _RESTORES and (bool(known) or call.name.startswith("?"))


def _resumes_nothing(value: Value) -> bool:
    """Return whether a callback is one of Keras that restores nothing by itself."""
    part = keras_part(value.call.name) if isinstance(value, Made) else ""
    return _keeps_nothing(value) or part == "callbacks.ModelCheckpoint"


def _keeps_nothing(value: Value) -> bool:
    """Whether a callback is one of Keras, and none that saves."""
    part = keras_part(value.call.name) if isinstance(value, Made) else ""
    return part.startswith("callbacks.") and part.rpartition(".")[2] not in (
        "BackupAndRestore",
        "ModelCheckpoint",
        "LambdaCallback",
        "Callback",
    )


def _no_optimizer(subject: Subject) -> Iterator[Found]:
    """MW406."""
    steps = [call for call in subject.of(Kind.OPTIMIZER, "apply_gradients") if call.replica]
    compiled = any(True for _ in subject.of(Kind.MODEL, "compile"))
    if not steps or compiled:
        return
    for call in subject.calls("Checkpoint"):
        held = list(call.everything())
        if call.name != "tensorflow.train.Checkpoint" or call.starred or not held:
            continue
        kinds = {kind_of(value) for value in held}
        unsure = any(_unclear(value) for value in held)
        if Kind.MODEL in kinds and Kind.OPTIMIZER not in kinds and not unsure:
            yield Found(
                call.place,
                severity(call, Severity.WARNING),
                "the checkpoint does not hold the optimizer",
                "after a restart its momentum and its count of steps begin anew: training goes on, but not where it "
                "was",
                "tf.train.Checkpoint(model=model, optimizer=optimizer, …)",
            )


def _unclear(value: Value) -> bool:
    return not isinstance(value, Made | Const) and kind_of(value) is not Kind.MODEL


def _counted_late(subject: Subject) -> Iterator[Found]:
    """MW407."""
    for save in subject.calls("save"):
        held = _held(subject, save)
        around = save.loops[-1:]
        if not around:
            continue
        for count in subject.calls("assign", "assign_add"):
            if count.receiver is None or count.loops[-1:] != around:
                continue
            before = [
                call
                for call in subject.calls("assign", "assign_add")
                if call.receiver is count.receiver and call.order < save.order and save.loops[-1] in call.loops
            ]
            if count.order > save.order and any(count.receiver is value for value in held) and not before:
                yield Found(
                    save.place,
                    severity(save, Severity.WARNING),
                    f"the checkpoint is saved before what it counts is counted ({count.place.seen_from(save.place)})",
                    "what is resumed is behind by one: the epoch that was just finished is done again, or a count "
                    "that stands at its end is divided by",
                    f"save after {count.place.seen_from(save.place)}",
                )
                break


def _held(subject: Subject, save: Call) -> list[Value]:
    """What a checkpoint holds."""
    owner = subject.made_by(save.receiver)
    if len(owner) != 1:
        return []
    call = owner[0]
    if call.method == "CheckpointManager":
        inside = subject.made_by(call.argument("checkpoint", 0))
        call = inside[0] if len(inside) == 1 else call
    return [value for item in call.everything() for value in inner(item)] if call.method == "Checkpoint" else []


RULES: dict[str, Callable[[Subject], Iterator[Found]]] = {
    "MW401": _only_the_chief,
    "MW402": _one_path,
    "MW403": _lost_directory,
    "MW404": _own_directory,
    "MW405": _nothing_saved,
    "MW406": _no_optimizer,
    "MW407": _counted_late,
}
