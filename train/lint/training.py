"""Rules on the scope of the strategy (MW2xx), data (MW3xx), saving (MW4xx), and operations of all workers (MW5xx)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from train.lint.names import TFDS, is_in, keras_name, kind_of
from train.lint.script import (
    ERROR,
    WARNING,
    Chain,
    Script,
    Violation,
    argument,
    chain_of,
    is_multi,
    iterated,
    rule,
    severity,
    violation,
)
from train.lint.values import DIFFERS, MISSING, NO_CALL, Call, Const, Guard, Items, Mark, Value, inner, is_none, text

_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}
_EFFECTS = {
    "fit": ("fit", "fit_generator", "train_on_batch"),
    "evaluate": ("evaluate", "test_on_batch"),
    "predict": ("predict", "predict_on_batch"),
    "save": ("save", "save_weights", "write"),
    "step": ("run", "reduce", "gather", "experimental_run_v2"),
}
_COLLECTIVE = {method: effect for effect, methods in _EFFECTS.items() for method in methods}
"""Methods that all workers must call, and their effect."""
_SAVERS = ("tensorflow.train.Checkpoint", "tensorflow.train.CheckpointManager")
_NO_GANG = ("outside", "inside", "has_tf_config", "no_tf_config")
_CAUSES = {
    Mark.TIME: "the clock",
    Mark.RANDOM: "chance",
    Mark.HOST: "the host or the process",
    Mark.LOCAL: "a result of only one worker",
}
_WORKERS = {"chief": "only the chief", "not_chief": "every worker but the chief"}
_SAVING_WORKERS = {"chief": "only the chief saves", "not_chief": "the chief does not save"}
_SEPARATE = DIFFERS | Mark.UNKNOWN | Mark.TEMPORARY | Mark.TASK_PATH
_HOME = re.compile(r"^(?:/home/|/Users/|/root/|~|[A-Za-z]:[\\/])")
_URL = re.compile(r"^[a-z][a-z0-9+]*://")
_RESTORES = ("restore", "read", "load_weights", "load_model", "latest_checkpoint", "restore_or_initialize")
# Name and position of the parameter for a directory from which a restarted script continues.
_PARAMETERS = {
    "callbacks.BackupAndRestore": ("backup_dir", 0),
    "callbacks.experimental.BackupAndRestore": ("backup_dir", 0),
    "tensorflow.train.CheckpointManager": ("directory", 1),
    "tensorflow.train.Checkpoint.save": ("file_prefix", 0),
}

# --- the scope ----------------------------------------------------------------------------------------------------


@rule("MW201")
def _model(script: Script) -> Iterator[Violation]:
    for call in script.of("model", "fit", "fit_generator", "train_on_batch", "__call__"):
        made, late = call.receiver.made, any(strategy.order < call.order for strategy in script.multi)
        if late and (call.replica or call.method != "__call__") and _outside(script, made):
            yield violation(made, "", severity(call, ERROR), near=call)


def _outside(script: Script, call: Call) -> bool:
    """Return whether a call is in no scope of a strategy that is created under the same conditions."""
    return script.outside(call) and any(not call.excludes(strategy) for strategy in script.multi)


@rule("MW202")
def _optimizer(script: Script) -> Iterator[Violation]:
    for call in script.of("optimizer", "apply_gradients") if script.keras_3 is not False else ():
        if call.replica and _outside(script, call.receiver.made):
            yield violation(call.receiver.made, "optimizer", ERROR if script.keras_3 else WARNING)
    for call in script.of("model", "compile"):
        for value in inner(call.argument("metrics", 2)) if script.shared(call.receiver) else ():
            if kind_of(value) == "metric" and _outside(script, value.made):
                yield violation(value.made, "metric")


@rule("MW203")
def _variables(script: Script) -> Iterator[Violation]:
    for call in script.calls("gradient", "minimize"):
        given = call.argument("sources" if call.method == "gradient" else "var_list", 1)
        for made in (value.made for value in inner(given)):
            if call.replica and made.name == "tensorflow.Variable" and script.outside(made):
                yield violation(made)


@rule("MW204")
def _gradients(script: Script) -> Iterator[Violation]:
    for call in script.of("optimizer", "apply_gradients", "minimize"):
        if not call.replica and script.shared(call.receiver):
            yield violation(call)


@rule("MW205")
def _reduction(script: Script) -> Iterator[Violation]:
    for call in script.of("loss", "__call__") if script.multi else ():
        made = call.receiver.made
        given = made.keywords.get("reduction")
        name = "auto" if given is None else text(given) or given.name.rpartition(".")[2].lower()
        if call.replica and not made.starred and name in ("auto", "sum_over_batch_size", "mean"):
            yield violation(made.location, method=made.method)


# --- data: its end, and each worker's share -------------------------------------------------------------------------


def _uses(script: Script) -> Iterator[tuple[Call, Value, str]]:
    """Yield the data sets that models use, and the argument with the number of their batches."""
    for call in script.of("model", *_STEPS):
        given = {"x": _STEPS[call.method]} | ({"validation_data": "validation_steps"} if call.method == "fit" else {})
        yield from ((call, argument(call, name), steps) for name, steps in given.items() if not call.starred)


def _divided(script: Script) -> Iterator[tuple[Call, Chain, bool]]:
    """Yield the data sets that TensorFlow divides among the workers, and whether they are for training."""
    used = [(call, value, steps) for call, value, steps in _uses(script) if script.shared(call.receiver)]
    given = [call for call in script.of("strategy", "experimental_distribute_dataset") if is_multi(call.receiver)]
    used += [(call, call.argument("dataset", 0), "") for call in given]
    for call, value, steps in used if script.workers > 1 else ():
        chain = chain_of(value)
        if chain is not None and not chain.distributed:
            yield call, chain, steps == "steps_per_epoch"


@rule("MW301")
def _endless(script: Script) -> Iterator[Violation]:
    for call, value, steps in _uses(script):
        chain = chain_of(value)
        if chain is not None and chain.endless and not chain.distributed and is_none(argument(call, steps)):
            yield violation(call, "model", steps=steps)
    for loop in script.calls("for"):
        chain = chain_of(iterated(loop.args[0]) or loop.args[0])
        if chain is not None and chain.endless and not loop.starred:
            yield violation(loop.location, "loop")


@rule("MW302")
def _few_files(script: Script) -> Iterator[Violation]:
    for call, chain, _ in _divided(script):
        files, source = chain.files, chain.source
        if files is None or files >= script.workers or chain.policy not in ("AUTO", "FILE"):
            continue
        read = "one file" if files == 1 else f"{files} files"
        if script.adapt and chain.policy == "AUTO":
            yield violation(source.location, "adapted", read=read, workers=script.workers)
        else:
            level = severity(call, WARNING if source.name == TFDS else ERROR)
            yield violation(source, "files", level, read=read, files=files, workers=script.workers)


@rule("MW303")
def _no_files(script: Script) -> Iterator[Violation]:
    for call, chain, _ in _divided(script):
        has_none = chain.in_memory or chain.source.method == "from_generator"
        if chain.policy == "FILE" and has_none and not chain.step("interleave", "flat_map"):
            yield violation(chain.source.location, "", severity(call, ERROR), method=chain.source.method)


@rule("MW304")
def _undivided(script: Script) -> Iterator[Violation]:
    for _, chain, _ in _divided(script):
        if chain.policy == "OFF" and chain.finite and not chain.sharded:
            yield violation(chain.source.location)


@rule("MW305")
def _distributed(script: Script) -> Iterator[Violation]:
    for call, value, steps in _uses(script):
        if kind_of(value) == "distributed" and is_none(argument(call, steps)):
            yield violation(call, steps=steps)


@rule("MW306")
def _runs_out(script: Script) -> Iterator[Violation]:
    for call in script.of("model", "fit"):
        steps, data = argument(call, "steps_per_epoch"), argument(call, "x")
        # The number may be exact if it is unknown.
        is_given = not is_none(steps) and not steps.marks & (Mark.UNKNOWN | Mark.REPLICAS)
        if is_given and not call.starred and _has_epochs(call):
            makes_data = is_in("takes_input_context", data.name)
            chain = chain_of(data.made.returned if makes_data else data)
            if chain is not None and chain.finite and not chain.step("apply", "repeat"):
                yield violation(call, "creator" if makes_data else "pass")


def _has_epochs(call: Call) -> bool:
    """Return whether a training has several epochs, or may have."""
    epochs = argument(call, "epochs")
    return not is_none(epochs) and not (isinstance(epochs, Const) and epochs.value == 1)


def _batches(script: Script) -> Iterator[tuple[Call, Value]]:
    """Yield the sizes of batches for all workers together."""
    for _, chain, trains in _divided(script):
        call = chain.step("batch", "padded_batch") or NO_CALL
        size = call.argument("batch_size", 0)
        if trains and not call.starred and not is_none(size) and not chain.sharded and chain.policy != "OFF":
            yield call, size
    for call in script.trainings:
        size = argument(call, "batch_size")
        if not is_none(size) and not call.starred and script.workers > 1:
            yield call, size


@rule("MW307")
def _batch(script: Script) -> Iterator[Violation]:
    for call, size in _batches(script):
        number = size.value if isinstance(size, Const) else None
        if number != 1 and not size.marks & (Mark.UNKNOWN | Mark.REPLICAS):
            yield violation(call, examples="its examples" if number is None else f"{number} examples")


@rule("MW308")
def _rate(script: Script) -> Iterator[Violation]:
    grows = script.together and any(size.marks & Mark.REPLICAS for _, size in _batches(script))
    for call in script.of("model", "compile") if grows else ():
        made = call.argument("optimizer", 0).made
        if script.shared(call.receiver) and keras_name(made.name).endswith("SGD") and not made.starred:
            rate = made.argument("learning_rate", 0)
            if isinstance(rate, Const) and not rate.marks & Mark.REPLICAS:
                yield violation(made)


@rule("MW309")
def _shuffled(script: Script) -> Iterator[Violation]:
    if script.workers < 2 or any(script.calls("set_seed", "set_random_seed")):
        return
    for call in script.of("dataset", "shard"):
        chain = chain_of(call.receiver)
        steps = (chain.step("shuffle"), chain.source) if chain is not None else ()
        for step in [step for step in steps if step is not None and _is_unseeded(step)][:1]:
            yield violation(call, near=step, method=step.method)


def _is_unseeded(call: Call) -> bool:
    """Return whether a call shuffles in another order on each worker."""
    if call.method not in ("shuffle", "list_files") or call.starred:
        return False
    given = call.argument("shuffle", 1) if call.method == "list_files" else MISSING
    shuffles = isinstance(given, Const) and given.value is not False
    return shuffles and is_none(call.argument("seed", 1 if call.method == "shuffle" else 2))


@rule("MW310")
def _same_batches(script: Script) -> Iterator[Violation]:
    for call in script.of("strategy", "run") if script.together else ():
        given = call.argument("args", 1)
        chains = [chain_of(iterated(value)) for value in inner(given)] if isinstance(given, Items) else []
        if any(chain and chain.finite and not chain.distributed and not chain.sharded for chain in chains):
            yield violation(call)


@rule("MW311")
def _servers(script: Script) -> Iterator[Violation]:
    for call in script.of("model", "fit") if not script.multi else ():
        served = any(scope.call in script.parameter_server for scope in call.receiver.made.scopes)
        if served and not call.starred and is_none(argument(call, "steps_per_epoch")):
            yield violation(call)


# --- operations that all workers run together ---------------------------------------------------------------------


def _collectives(script: Script) -> list[Call]:
    """Return the calls in which all workers must take part."""
    return [call for call in script.calls(*_COLLECTIVE) if script.together and _is_collective(script, call)]


def _is_collective(script: Script, call: Call) -> bool:
    if call.name == "tensorflow.saved_model.save":
        return script.shared(call.argument("obj", 0))
    if kind_of(call.receiver) == "strategy":
        return is_multi(call.receiver) and _COLLECTIVE[call.method] == "step"
    if kind_of(call.receiver) == "model":
        return script.shared(call.receiver)
    made = call.receiver.made
    return made.name in _SAVERS and any(map(script.shared, _held(made)))


def _held(saver: Call) -> list[Value]:
    """Return the contents of a checkpoint or of its manager."""
    values = [value for item in saver.everything() for value in inner(item)]
    inside = [value.made for value in values if value.made.name == _SAVERS[0]]
    return [*values, *(value for call in inside for value in _held(call) if call is not saver)]


def _only_some(script: Script) -> Iterator[tuple[Call, Guard]]:
    """Yield the collective calls that only some workers reach, with the condition, unless the others do the same."""
    calls = _collectives(script)
    for call in calls:
        others = {(g.number, g.arm) for item in calls if _effect(item) == _effect(call) for g in item.guards}
        guards = (g for g in call.guards if g.marks & Mark.ROLE and g.meaning not in _NO_GANG)
        yield from [(call, g) for g in guards if (g.number, 1 - g.arm) not in others][:1]


def _effect(call: Call) -> str:
    return _COLLECTIVE[call.method]


def _leaves(script: Script, marks: Mark) -> Iterator[tuple[Guard, Call]]:
    """Yield the conditions that depend on `marks` under which a collective loop is left, with a call in the loop."""
    calls = _collectives(script)
    for event in script.calls("leave"):
        call = next((item for item in calls if set(event.left) & set(item.loops)), None)
        numbers = [guard.number for guard in event.guards]
        inside = event.guards[numbers.index(event.left[0]) + 1 :] if call is not None else ()
        for guard in inside:
            if guard.marks & marks and guard.kind != "loop" and call is not None:
                yield guard, call


@rule("MW501")
def _some(script: Script) -> Iterator[Violation]:
    for call, guard in _only_some(script):
        if _effect(call) != "save":
            workers = _WORKERS.get(guard.meaning, "not every worker")
            yield violation(call.location, "call", near=guard, method=call.method, workers=workers)
    for guard, call in _leaves(script, Mark.ROLE):
        if guard.meaning not in _NO_GANG:
            yield violation(guard.location, "loop", near=call, method=call.method)


@rule("MW502")
def _apart(script: Script) -> Iterator[Violation]:
    is_seeded = any(script.calls("seed", "set_seed", "set_random_seed"))
    chance = {mark: cause for mark, cause in _CAUSES.items() if not (is_seeded and mark is Mark.RANDOM)}
    reached = [(g, call, "reached") for call in _collectives(script) for g in call.guards]
    left = [(g, call, "left") for g, call in _leaves(script, DIFFERS)]
    seen: set[int] = set()
    for guard, call, variant in reached + left:
        causes = [cause for mark, cause in chance.items() if guard.marks & mark]
        if causes and guard.number not in seen:
            seen.add(guard.number)
            yield violation(guard.location, variant, near=call, method=call.method, causes=" and ".join(causes))


@rule("MW503")
def _threads(script: Script) -> Iterator[Violation]:
    last = max((call.order for call in _collectives(script)), default=0)
    for call in script.calls("start"):
        made = call.receiver.made
        if made.name in ("threading.Thread", "threading.Timer") and not made.starred:
            daemon = call.receiver.parts.get("daemon") or made.keywords.get("daemon") or Const(value=False)
            if call.order <= last and isinstance(daemon, Const) and not daemon.value:
                yield violation(made.location)


# --- saving -------------------------------------------------------------------------------------------------------


@rule("MW401")
def _only_the_chief(script: Script) -> Iterator[Violation]:
    for call, guard in _only_some(script):
        if _effect(call) == "save":
            savers = _SAVING_WORKERS.get(guard.meaning, "only some of the workers save")
            yield violation(call.location, near=guard, method=call.method, savers=savers)


@rule("MW402")
def _same_path(script: Script) -> Iterator[Violation]:
    for call in _collectives(script):
        chosen = any(guard.marks & Mark.ROLE for guard in call.guards)
        if _effect(call) == "save" and not chosen and call.sure and not call.starred:
            path = _path(call)
            if not is_none(path) and not path.marks & _SEPARATE:
                yield violation(call)


def _path(call: Call) -> Value:
    """Return the path of a save."""
    owner = call.receiver.made
    if call.method == "save" and owner.method == "CheckpointManager":
        return owner.argument("directory", 1)
    if call.name == "tensorflow.saved_model.save":
        return call.argument("export_dir", 1)
    named = (call.keywords[name] for name in ("filepath", "file_prefix", "path") if name in call.keywords)
    return next(named, call.argument("filepath", 0))


def _directories(script: Script) -> Iterator[tuple[Call, Value]]:
    """Yield the directories from which a restarted script continues."""
    for call in script.calls() if script.multi or script.parameter_server else ():
        parameter = _PARAMETERS.get(keras_name(call.name) or call.name)
        if parameter:
            yield call, call.argument(*parameter)


@rule("MW403")
def _lost_directory(script: Script) -> Iterator[Violation]:
    for call, value in _directories(script):
        path = text(value) or value.meaning.removeprefix("path:")
        if value.marks & Mark.TEMPORARY:
            yield violation(call, "temporary")
        elif _HOME.match(path):
            yield violation(call, "home", path=path)


@rule("MW404")
def _other_directory(script: Script) -> Iterator[Violation]:
    for call, value in _directories(script) if script.together else ():
        path = text(value)
        if path is not None and not _URL.match(path) and not _HOME.match(path):
            yield violation(call, path=path)


@rule("MW405")
def _nothing_saved(script: Script) -> Iterator[Violation]:
    if not script.together or not script.trace.complete or any(map(_restores, script.calls(*_RESTORES))):
        return
    repeated = any(save.loops for save in script.of("model", "save", "save_weights"))
    for call in script.trainings:
        given = argument(call, "callbacks")
        given = Items() if is_none(given) else given
        kinds = [keras_name(callback.made.name) for callback in inner(given, 1) if callback is not given]
        keeps_none = all(
            name.startswith("callbacks.") and not name.endswith(("BackupAndRestore", "LambdaCallback"))
            for name in kinds
        )
        is_known = isinstance(given, Items) and given.exact and not call.starred
        if is_known and keeps_none and _has_epochs(call):
            saver = "ModelCheckpoint" if "callbacks.ModelCheckpoint" in kinds else "a callback" if repeated else ""
            yield violation(call, "unused" if saver else "none", saver=saver)


def _restores(call: Call) -> bool:
    """Return whether a call may restore a checkpoint."""
    may_restore = kind_of(call.receiver) == "model" or call.name.startswith(("tensorflow.train.", "?"))
    return may_restore or bool(keras_name(call.name))


@rule("MW406")
def _no_optimizer(script: Script) -> Iterator[Violation]:
    has_steps = any(call.replica for call in script.of("optimizer", "apply_gradients"))
    for call in script.calls("Checkpoint") if has_steps and not any(script.of("model", "compile")) else ():
        held = call.everything()
        kinds = {kind_of(value) for value in held}
        unsure = call.starred or any(value.call is None and not isinstance(value, Const) for value in held)
        if call.name == _SAVERS[0] and "model" in kinds and "optimizer" not in kinds and not unsure:
            yield violation(call)


@rule("MW407")
def _counted_late(script: Script) -> Iterator[Violation]:
    for save in script.calls("save"):
        made = save.receiver.made
        held = _held(made) if save.loops and made.name in _SAVERS else []
        counts = [call for call in script.calls("assign", "assign_add") if call.receiver in held]
        early = [call.receiver for call in counts if call.order < save.order and save.loops[-1] in call.loops]
        for count in counts:
            if count.order > save.order and count.loops[-1:] == save.loops[-1:] and count.receiver not in early:
                yield violation(save, near=count)
                break
