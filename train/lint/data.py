"""Rules on data: its end, and each worker's share (MW3xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.lint.names import DATASET, DATASET_CREATOR, DISTRIBUTED, MODEL, STRATEGY, TFDS, keras_name, kind_of
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
from train.lint.values import Call, Const, Items, Mark, Value, inner, is_none

_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}


def _uses(script: Script) -> Iterator[tuple[Call, Value, str]]:
    """Yield the data sets that models use, and the argument with the number of their batches."""
    for call in script.of(MODEL, *_STEPS):
        given = {"x": _STEPS[call.method]} | ({"validation_data": "validation_steps"} if call.method == "fit" else {})
        for name, steps in given.items() if not call.starred else ():
            value = argument(call, name)
            if value is not None:
                yield call, value, steps


def _divided(script: Script) -> Iterator[tuple[Call, Chain, bool]]:
    """Yield the data sets that TensorFlow divides among the workers, and whether they are for training."""
    for call, value, steps in _uses(script) if script.workers > 1 else ():
        chain = chain_of(value) if script.shared(call.receiver) else None
        if chain is not None and not chain.distributed:
            yield call, chain, steps == "steps_per_epoch"
    for call in script.of(STRATEGY, "experimental_distribute_dataset") if script.workers > 1 else ():
        chain = chain_of(call.argument("dataset", 0))
        if chain is not None and is_multi(call.receiver):
            yield call, chain, False


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
        if kind_of(value) == DISTRIBUTED and is_none(argument(call, steps)):
            yield violation(call, steps=steps)


@rule("MW306")
def _runs_out(script: Script) -> Iterator[Violation]:
    for call in script.of(MODEL, "fit"):
        epochs, steps, data = (argument(call, name) for name in ("epochs", "steps_per_epoch", "x"))
        is_single_epoch = is_none(epochs) or (isinstance(epochs, Const) and epochs.value == 1)
        # The number may be exact if it is unknown.
        if (
            call.starred
            or is_single_epoch
            or steps is None
            or is_none(steps)
            or steps.marks & (Mark.UNKNOWN | Mark.REPLICAS)
        ):
            continue
        creator = data.call if data is not None and data.name == DATASET_CREATOR else None
        chain = chain_of(creator.returned if creator is not None else data)
        if chain is not None and chain.finite and not chain.step("apply", "repeat"):
            yield violation(call, "creator" if creator else "pass")


def _batches(script: Script) -> Iterator[tuple[Call, Value]]:
    """Yield the sizes of batches for all workers together."""
    for _, chain, trains in _divided(script):
        call, size = chain.batch
        if trains and call is not None and size is not None and not chain.sharded and chain.policy != "OFF":
            yield call, size
    for call in script.trainings:
        size = argument(call, "batch_size")
        if size is not None and not is_none(size) and not call.starred and script.workers > 1:
            yield call, size


@rule("MW307")
def _batch(script: Script) -> Iterator[Violation]:
    for call, size in _batches(script):
        number = size.value if isinstance(size, Const) else None
        if number != 1 and not size.marks & (Mark.UNKNOWN | Mark.REPLICAS):
            yield violation(call, examples="its examples" if number is None else f"{number} examples")


@rule("MW308")
def _rate(script: Script) -> Iterator[Violation]:
    if not script.together or not any(size.marks & Mark.REPLICAS for _, size in _batches(script)):
        return
    for call in script.of(MODEL, "compile"):
        optimizer = call.argument("optimizer", 0)
        made = optimizer.call if optimizer is not None and script.shared(call.receiver) else None
        if made is not None and keras_name(made.name).rpartition(".")[2] == "SGD" and not made.starred:
            rate = made.argument("learning_rate", 0)
            if rate is None or (isinstance(rate, Const) and not rate.marks & Mark.REPLICAS):
                yield violation(made)


@rule("MW309")
def _shuffled(script: Script) -> Iterator[Violation]:
    if script.workers < 2 or any(script.calls("set_seed", "set_random_seed")):
        return
    for call in script.of(DATASET, "shard"):
        chain = chain_of(call.receiver)
        steps = (chain.step("shuffle"), chain.source) if chain is not None else ()
        for step in [step for step in steps if step is not None and _is_unseeded(step)][:1]:
            where = step.location.seen_from(call.location)
            yield violation(call, method=step.method, where=where)


def _is_unseeded(call: Call) -> bool:
    """Return whether a call shuffles in another order on each worker."""
    if call.method not in ("shuffle", "list_files") or call.starred:
        return False
    given = call.argument("shuffle", 1) if call.method == "list_files" else None
    shuffles = given is None or (isinstance(given, Const) and given.value is not False)
    return shuffles and is_none(call.argument("seed", 1 if call.method == "shuffle" else 2))


@rule("MW310")
def _same_batches(script: Script) -> Iterator[Violation]:
    for call in script.of(STRATEGY, "run") if script.together else ():
        given = call.argument("args", 1)
        chains = [chain_of(iterated(value)) for value in inner(given)] if isinstance(given, Items) else []
        if any(chain and chain.finite and not chain.distributed and not chain.sharded for chain in chains):
            yield violation(call)


@rule("MW311")
def _servers(script: Script) -> Iterator[Violation]:
    for call in script.of(MODEL, "fit") if not script.multi else ():
        made = call.receiver.call if call.receiver is not None else None
        served = made is not None and any(scope.call in script.parameter_server for scope in made.scopes)
        if served and not call.starred and is_none(argument(call, "steps_per_epoch")):
            yield violation(call)
