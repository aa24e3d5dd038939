"""Rules on checkpoints and models on disk (MW4xx)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from train.lint.interpreter.api_names import Kind, keras_name, kind_of, type_of
from train.lint.interpreter.values import DIFFERS, Bound, Call, Const, Items, Made, Mark, Opaque, Value, options, text
from train.lint.rule import ERROR, HINT, WARNING, Violation, rule
from train.lint.rules.together import GROUPS, collective_calls, only_some
from train.lint.subject import Subject, argument, inner

_URL = re.compile(r"^[a-z][a-z0-9+]*://")
_HOME = re.compile(r"^(?:/home/|/Users/|/root/|~|[A-Za-z]:[\\/])")
_RESTORES = ("restore", "read", "load_weights", "load_model", "latest_checkpoint", "restore_or_initialize")
_DIRECTORY = 'os.environ.get("FLEET_CHECKPOINT_DIR", "checkpoints")'
# Name and position of the parameter for a directory from which a restarted script continues.
_PARAMETERS = {
    "callbacks.BackupAndRestore": ("backup_dir", 0),
    "callbacks.experimental.BackupAndRestore": ("backup_dir", 0),
    "tensorflow.train.CheckpointManager": ("directory", 1),
    "tensorflow.train.Checkpoint.save": ("file_prefix", 0),
}
_SAVERS = {"chief": "only the chief saves", "not_chief": "the chief does not save"}
_SAVING_CALLBACKS = ("BackupAndRestore", "ModelCheckpoint", "LambdaCallback")
_SEPARATE = DIFFERS | Mark.UNKNOWN | Mark.TEMPORARY | Mark.TASK_PATH


@rule(
    "MW401",
    ERROR,
    reason="saving reads variables that all workers share: the workers that save wait forever for the others",
    fix="save on every worker, each in a different directory, and delete all but the chief's: "
    'path if is_chief else f"{path}/workertemp_{task_id}"',
)
def _only_the_chief(subject: Subject) -> Iterator[Violation]:
    for call, guard in only_some(subject):
        if GROUPS.get(call.method) == "save":
            savers = _SAVERS.get(guard.meaning, "only some of the workers save")
            where = guard.location.seen_from(call.location)
            yield Violation(call.location, f"{savers} ({call.method} under the condition in {where})")


@rule(
    "MW402",
    WARNING,
    reason="on a shared file system or bucket they overwrite each other's files, and the result may be incomplete",
    fix="save in a different directory on every worker but the chief, and delete it afterwards: "
    'path if is_chief else f"{path}/workertemp_{task_id}"',
)
def _same_path(subject: Subject) -> Iterator[Violation]:
    for call in collective_calls(subject):
        chosen = any(guard.marks & Mark.ROLE for guard in call.guards)
        if GROUPS.get(call.method) == "save" and not chosen and call.sure and not call.starred:
            path = _path(subject, call)
            if isinstance(path, Const | Opaque | Bound) and not path.marks & _SEPARATE:
                yield Violation(call, "every worker saves to the same path")


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


def _directories(subject: Subject) -> Iterator[tuple[Call, Value]]:
    """Yield the directories from which a restarted script continues."""
    for call in subject.trace.calls if subject.multi or subject.parameter_server else ():
        parameter = _PARAMETERS.get(keras_name(call.name) or call.name)
        value = call.argument(*parameter) if parameter else None
        if value is not None:
            yield call, value


@rule("MW403", WARNING, fix=_DIRECTORY)
def _lost_directory(subject: Subject) -> Iterator[Violation]:
    for call, value in _directories(subject):
        if all(option.marks & Mark.TEMPORARY for option in options(value)):
            yield Violation(
                call,
                "checkpoints are saved in a temporary directory",
                reason="it has a different name in every process, or is deleted when the process ends: no attempt "
                "can resume from it",
            )
        elif all(_HOME.match(_beginning(option)) for option in options(value)):
            yield Violation(
                call,
                f"checkpoints are saved in the home directory of this computer's user ({_beginning(value)})",
                reason="the hosts have other users, and `fleet` does not copy the directory from the chief to the "
                "others",
            )


@rule(
    "MW404",
    HINT,
    reason="it is not copied from the chief to the other hosts: after a host is lost, or if the directories differ, "
    "the workers silently continue from different steps",
    fix=f"use {_DIRECTORY}, or fleet train --checkpoint-dir",
)
def _other_directory(subject: Subject) -> Iterator[Violation]:
    for call, value in _directories(subject) if subject.together else ():
        paths = [text(option) for option in options(value)]
        if all(path is not None and not _URL.match(path) and not _HOME.match(path) for path in paths):
            yield Violation(call, f"checkpoints are saved in {paths[0]!r}, a directory unknown to `fleet`")


def _beginning(value: Value) -> str:
    if isinstance(value, Opaque) and value.meaning.startswith("path:"):
        return value.meaning.removeprefix("path:")
    return text(value) or ""


@rule(
    "MW405",
    HINT,
    reason="after the loss of a host or a restart, training begins with the first epoch",
    fix=f"add callbacks=[tf.keras.callbacks.BackupAndRestore({_DIRECTORY})]",
)
def _nothing_saved(subject: Subject) -> Iterator[Violation]:
    if not subject.together or not subject.trace.complete or any(map(_restores, subject.trace.calls)):
        return
    for call in subject.trainings:
        given, epochs = argument(call, "callbacks"), argument(call, "epochs")
        if call.starred or epochs is None or (isinstance(epochs, Const) and epochs.value == 1):
            continue
        callbacks = given.items if isinstance(given, Items) and given.exact else None
        if given is None or (callbacks is not None and all(map(_resumes_nothing, callbacks))):
            saves = any(not _keeps_nothing(callback) for callback in callbacks or ())
            repeated = any(save.loops for save in subject.of(Kind.MODEL, "save", "save_weights"))
            saver = "ModelCheckpoint" if saves else "a callback" if repeated else ""
            unused = f"{saver} saves checkpoints, and the script does not restore them"
            yield Violation(call, unused if saver else "the script saves no checkpoint to continue from")


def _restores(call: Call) -> bool:
    """Return whether a call may restore a checkpoint."""
    may_restore = kind_of(call.receiver) is Kind.MODEL or call.name.startswith(("tensorflow.train.", "?"))
    return call.method in _RESTORES and (may_restore or bool(keras_name(call.name)))


def _resumes_nothing(value: Value) -> bool:
    """Return whether a callback of Keras restores nothing by itself."""
    return _keeps_nothing(value) or (
        isinstance(value, Made) and keras_name(value.call.name) == "callbacks.ModelCheckpoint"
    )


def _keeps_nothing(value: Value) -> bool:
    """Return whether a callback of Keras, or a class of the script with such a base, saves nothing."""
    part = keras_name(type_of(value))
    return part.startswith("callbacks.") and part.rpartition(".")[2] not in _SAVING_CALLBACKS


@rule(
    "MW406",
    WARNING,
    reason="after a restart its momentum and its number of steps are reset, and training does not continue where it "
    "stopped",
    fix="write tf.train.Checkpoint(model=model, optimizer=optimizer, …)",
)
def _no_optimizer(subject: Subject) -> Iterator[Violation]:
    has_steps = any(call.replica for call in subject.of(Kind.OPTIMIZER, "apply_gradients"))
    if not has_steps or any(subject.of(Kind.MODEL, "compile")):
        return
    for call in subject.calls("Checkpoint"):
        held = list(call.everything())
        kinds = {kind_of(value) for value in held}
        unsure = any(not isinstance(value, Made | Const) and kind_of(value) is not Kind.MODEL for value in held)
        lacks = Kind.MODEL in kinds and Kind.OPTIMIZER not in kinds and not unsure
        if lacks and call.name == "tensorflow.train.Checkpoint" and not call.starred:
            yield Violation(call, "the checkpoint does not include the optimizer")


@rule(
    "MW407",
    WARNING,
    reason="the saved counter is one too low: after a restart the last epoch is repeated, or its counter is out of "
    "range",
)
def _counted_late(subject: Subject) -> Iterator[Violation]:
    for save in subject.calls("save"):
        held = _held(subject, save)
        counts = [call for call in subject.calls("assign", "assign_add") if save.loops and call.receiver is not None]
        early = [call.receiver for call in counts if call.order < save.order and save.loops[-1] in call.loops]
        for count in counts:
            late = count.order > save.order and count.loops[-1:] == save.loops[-1:] and count.receiver not in early
            if late and any(count.receiver is value for value in held):
                where = count.location.seen_from(save.location)
                message = f"the checkpoint is saved before its counter is updated ({where})"
                yield Violation(save, message, fix=f"save after {where}")
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
