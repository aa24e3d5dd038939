"""Rules on checkpoints and models on disk (MW4xx)."""

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
from train.lint.subject import Subject, Violation, argument, inner, severity

_URL = re.compile(r"^[a-z][a-z0-9+]*://")
_HOME = re.compile(r"^(?:/home/|/Users/|/root/|~|[A-Za-z]:[\\/])")
_RESTORES = ("restore", "read", "load_weights", "load_model", "latest_checkpoint", "restore_or_initialize")
_DIRECTORY = 'os.environ.get("FLEET_CHECKPOINT_DIR", "checkpoints")'


def _only_the_chief(subject: Subject) -> Iterator[Violation]:
    """Check for MW401."""
    for call, guard in only_some(subject):
        if GROUPS.get(call.method) != "save":
            continue
        savers = {"chief": "only the chief saves", "not_chief": "the chief does not save"}.get(
            guard.meaning, "only some of the workers save"
        )
        yield Violation(
            call.place,
            Severity.ERROR,
            f"{savers} ({call.method} under the condition in {guard.place.seen_from(call.place)})",
            "saving reads variables that all workers share: the workers that save wait forever for the others",
            "save on every worker, each in a different directory, and delete all but the chief's: "
            'path if is_chief else f"{path}/workertemp_{task_id}"',
        )


def _one_path(subject: Subject) -> Iterator[Violation]:
    """Check for MW402."""
    for call in taking_part(subject):
        chosen = any(guard.marks & Mark.ROLE for guard in call.guards)
        if GROUPS.get(call.method) != "save" or chosen or not call.sure or call.starred:
            continue
        path = _path(subject, call)
        if path is None or any(_may_differ(option) for option in options(path)) or isinstance(path, Either):
            continue
        yield Violation(
            call.place,
            Severity.WARNING,
            "every worker saves to the same path",
            "on a shared file system or bucket they overwrite each other's files, and the result may be incomplete",
            "save in a different directory on every worker but the chief, and delete it afterwards: "
            'path if is_chief else f"{path}/workertemp_{task_id}"',
        )


def _path(subject: Subject, call: Call) -> Value | None:
    """Return the path of a save."""
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
    """Yield the directories from which a restarted script continues."""
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


def _lost_directory(subject: Subject) -> Iterator[Violation]:
    """Check for MW403."""
    for call, value in _directories(subject):
        if all(option.marks & Mark.TEMPORARY for option in options(value)):
            yield Violation(
                call.place,
                Severity.WARNING,
                "checkpoints are saved in a temporary directory",
                "it has a different name in every process, or is deleted when the process ends: no attempt can "
                "resume from it",
                _DIRECTORY,
            )
        elif all(_HOME.match(_beginning(option)) for option in options(value)):
            yield Violation(
                call.place,
                Severity.WARNING,
                f"checkpoints are saved in the home directory of this computer's user ({_beginning(value)})",
                "the hosts have other users, and `fleet` does not copy the directory from the chief to the others",
                _DIRECTORY,
            )


def _own_directory(subject: Subject) -> Iterator[Violation]:
    """Check for MW404."""
    for call, value in _directories(subject) if subject.together else ():
        paths = [text(option) for option in options(value)]
        if all(path is not None and not _URL.match(path) and not _HOME.match(path) for path in paths):
            yield Violation(
                call.place,
                Severity.HINT,
                f"checkpoints are saved in {paths[0]!r}, a directory unknown to `fleet`",
                "it is not copied from the chief to the other hosts: after a host is lost, or if the directories "
                "differ, the workers silently continue from different steps",
                f"use {_DIRECTORY}, or fleet train --checkpoint-dir",
            )


def _beginning(value: Value) -> str:
    if isinstance(value, Opaque) and value.meaning.startswith("path:"):
        return value.meaning.removeprefix("path:")
    return text(value) or ""


def _nothing_saved(subject: Subject) -> Iterator[Violation]:
    """Check for MW405."""
    if not subject.together or not subject.trace.complete or any(map(_restores, subject.trace.calls)):
        return
    for call in subject.trainings:
        given = argument(call, "callbacks")
        epochs = argument(call, "epochs")
        if call.starred or epochs is None or (isinstance(epochs, Const) and epochs.value == 1):
            continue
        if given is None or (isinstance(given, Items) and given.exact and all(map(_resumes_nothing, given.items))):
            saves = isinstance(given, Items) and not all(map(_keeps_nothing, given.items))
            yield Violation(
                call.place,
                Severity.HINT,
                "ModelCheckpoint saves checkpoints, and the script does not restore them"
                if saves
                else "the script saves no checkpoint to continue from",
                "after the loss of a host or a restart, training begins with the first epoch",
                f"add callbacks=[tf.keras.callbacks.BackupAndRestore({_DIRECTORY})]",
            )


def _restores(call: Call) -> bool:
    """Return whether a call may restore a checkpoint."""
    is_model = (
        kind_of(call.receiver) is Kind.MODEL or keras_part(call.name) or call.name.startswith("tensorflow.train.")
    )
    return call.method in _RESTORES and (bool(is_model) or call.name.startswith("?"))


def _resumes_nothing(value: Value) -> bool:
    """Return whether a callback of Keras restores nothing by itself."""
    part = keras_part(value.call.name) if isinstance(value, Made) else ""
    return _keeps_nothing(value) or part == "callbacks.ModelCheckpoint"


def _keeps_nothing(value: Value) -> bool:
    """Return whether a callback of Keras saves nothing."""
    part = keras_part(value.call.name) if isinstance(value, Made) else ""
    return part.startswith("callbacks.") and part.rpartition(".")[2] not in (
        "BackupAndRestore",
        "ModelCheckpoint",
        "LambdaCallback",
        "Callback",
    )


def _no_optimizer(subject: Subject) -> Iterator[Violation]:
    """Check for MW406."""
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
            yield Violation(
                call.place,
                severity(call, Severity.WARNING),
                "the checkpoint does not include the optimizer",
                "after a restart its momentum and its number of steps are reset, and training does not continue "
                "where it stopped",
                "write tf.train.Checkpoint(model=model, optimizer=optimizer, …)",
            )


def _unclear(value: Value) -> bool:
    return not isinstance(value, Made | Const) and kind_of(value) is not Kind.MODEL


def _counted_late(subject: Subject) -> Iterator[Violation]:
    """Check for MW407."""
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
                yield Violation(
                    save.place,
                    severity(save, Severity.WARNING),
                    f"the checkpoint is saved before its counter is updated ({count.place.seen_from(save.place)})",
                    "the saved counter is one too low: after a restart the last epoch is repeated, or its "
                    "counter is out of range",
                    f"save after {count.place.seen_from(save.place)}",
                )
                break


def _held(subject: Subject, save: Call) -> list[Value]:
    """Return the contents of a checkpoint."""
    owner = subject.made_by(save.receiver)
    if len(owner) != 1:
        return []
    call = owner[0]
    if call.method == "CheckpointManager":
        inside = subject.made_by(call.argument("checkpoint", 0))
        call = inside[0] if len(inside) == 1 else call
    return [value for item in call.everything() for value in inner(item)] if call.method == "Checkpoint" else []


RULES: dict[str, Callable[[Subject], Iterator[Violation]]] = {
    "MW401": _only_the_chief,
    "MW402": _one_path,
    "MW403": _lost_directory,
    "MW404": _own_directory,
    "MW405": _nothing_saved,
    "MW406": _no_optimizer,
    "MW407": _counted_late,
}
