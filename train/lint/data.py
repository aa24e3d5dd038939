"""Rules on data: its end, and each worker's share (MW3xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.lint.names import DATASET, DATASET_CREATOR, DISTRIBUTED, MODEL, STRATEGY, TFDS, keras_name, kind_of
from train.lint.rule import ERROR, HINT, WARNING, Violation, rule, severity
from train.lint.script import Chain, Script, argument, chain_of, is_multi, iterated
from train.lint.values import Call, Const, Items, Mark, Value, inner, is_none

_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}
_DATA = "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA"


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


@rule("MW301", ERROR)
def _endless(script: Script) -> Iterator[Violation]:
    for call, value, steps in _uses(script):
        chain = chain_of(value)
        if chain is not None and chain.endless and not chain.distributed and is_none(argument(call, steps)):
            yield Violation(
                call,
                f"{call.method} uses an endlessly repeated data set without {steps}",
                reason="Keras 2 raises a ValueError; Keras 3 never reaches its end",
                fix=f"set {steps}=… to the number of batches of all workers in one epoch",
            )
    for loop in script.calls("for"):
        chain = chain_of(iterated(loop.args[0]) or loop.args[0])
        if chain is not None and chain.endless and not loop.starred:
            yield Violation(
                loop.location,
                "this loop iterates over an endlessly repeated data set",
                reason="no statement leaves the loop: it never ends",
                fix="count the steps, and draw each with next(): for _ in range(steps): step(next(iterator))",
            )


@rule("MW302", ERROR)
def _few_files(script: Script) -> Iterator[Violation]:
    for call, chain, _ in _divided(script):
        files, source = chain.files, chain.source
        if files is None or files >= script.workers or chain.policy not in ("AUTO", "FILE"):
            continue
        read = f"the data set is read from {'one file' if files == 1 else f'{files} files'}"
        fix = f"{_DATA}, and dataset.with_options(options); or at least {script.workers} files of equal length"
        if script.adapt and chain.policy == "AUTO":
            message = f"{read}, which {script.workers} workers cannot divide"
            reason = "`fleet` divides it by elements unless --no-adapt is given; TensorFlow alone fails"
            yield Violation(source.location, message, HINT, reason, fix)
        else:
            message = f"{read}, and {script.workers} workers divide it by files"
            reason = "it fails: Could not apply FILE based sharding: the dataset only has "
            reason += f"{files} file(s), which is not enough for the required {script.workers} shards/workers"
            level = severity(call, WARNING if source.name == TFDS else ERROR)
            yield Violation(source, message, level, reason, fix)


@rule("MW303", ERROR, "it fails: Found an unshardable source dataset", _DATA)
def _no_files(script: Script) -> Iterator[Violation]:
    for call, chain, _ in _divided(script):
        has_none = chain.in_memory or chain.source.method == "from_generator"
        if chain.policy == "FILE" and has_none and not chain.step("interleave", "flat_map"):
            message = f"the policy is FILE, and {chain.source.method} has no files to divide"
            yield Violation(chain.source.location, message, severity(call, ERROR))


@rule(
    "MW304",
    WARNING,
    "every worker reads all of it: with N workers an epoch takes N times as long, and data of unequal length fail",
    f"{_DATA}; or dataset.shard(number_of_workers, index) before shuffle",
)
def _undivided(script: Script) -> Iterator[Violation]:
    for _, chain, _ in _divided(script):
        if chain.policy == "OFF" and chain.finite and not chain.sharded:
            yield Violation(chain.source.location, "the policy is OFF, and the script does not divide the data")


@rule(
    "MW305",
    ERROR,
    "it fails: ValueError: When providing a distributed dataset, you must specify the number of steps to run",
)
def _distributed(script: Script) -> Iterator[Violation]:
    for call, value, steps in _uses(script):
        if kind_of(value) == DISTRIBUTED and is_none(argument(call, steps)):
            message = f"{call.method} uses a data set that the strategy has distributed already, without {steps}"
            yield Violation(
                call, message, fix=f"{steps}=…; or give {call.method} the data set before its distribution"
            )


@rule(
    "MW306",
    WARNING,
    "unless it is exactly the number of batches, all epochs share one pass through the data: at its end "
    "training stops with a warning and exit code 0",
    "write dataset.repeat() before batch, or remove steps_per_epoch",
)
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
            reason = "at the end of the data it fails: OutOfRangeError: End of sequence" if creator else ""
            yield Violation(call, "steps_per_epoch is given, and the data set is not repeated", reason=reason)


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


@rule("MW307", HINT, fix="write global_batch_size = per_worker_batch_size * strategy.num_replicas_in_sync")
def _batch(script: Script) -> Iterator[Violation]:
    for call, size in _batches(script):
        number = size.value if isinstance(size, Const) else None
        if number != 1 and not size.marks & (Mark.UNKNOWN | Mark.REPLICAS):
            yield Violation(
                call,
                "the batch does not grow with the number of workers",
                reason=f"all workers share {'its examples' if number is None else f'{number} examples'} in one step: "
                "more workers make each share smaller, but training is not faster",
            )


@rule(
    "MW308",
    HINT,
    "an epoch then has fewer steps of the same size, and training needs more epochs",
    "write learning_rate=base * strategy.num_replicas_in_sync, after a warm-up if necessary",
)
def _rate(script: Script) -> Iterator[Violation]:
    if not script.together or not any(size.marks & Mark.REPLICAS for _, size in _batches(script)):
        return
    for call in script.of(MODEL, "compile"):
        optimizer = call.argument("optimizer", 0)
        made = optimizer.call if optimizer is not None and script.shared(call.receiver) else None
        if made is not None and keras_name(made.name).rpartition(".")[2] == "SGD" and not made.starred:
            rate = made.argument("learning_rate", 0)
            if rate is None or (isinstance(rate, Const) and not rate.marks & Mark.REPLICAS):
                message = "the batch grows with the number of workers, and the learning rate of SGD does not"
                yield Violation(made, message)


@rule(
    "MW309",
    WARNING,
    "every worker has a different order: shares overlap, and some examples are in none",
    "shard first, then shuffle; or use the same seed for all: shuffle(…, seed=1)",
)
def _shuffled(script: Script) -> Iterator[Violation]:
    if script.workers < 2 or any(script.calls("set_seed", "set_random_seed")):
        return
    for call in script.of(DATASET, "shard"):
        chain = chain_of(call.receiver)
        steps = (chain.step("shuffle"), chain.source) if chain is not None else ()
        for step in [step for step in steps if step is not None and _is_unseeded(step)][:1]:
            where = step.location.seen_from(call.location)
            yield Violation(call, f"shard comes after {step.method} ({where}), which has no seed")


def _is_unseeded(call: Call) -> bool:
    """Return whether a call shuffles in another order on each worker."""
    if call.method not in ("shuffle", "list_files") or call.starred:
        return False
    given = call.argument("shuffle", 1) if call.method == "list_files" else None
    shuffles = given is None or (isinstance(given, Const) and given.value is not False)
    return shuffles and is_none(call.argument("seed", 1 if call.method == "shuffle" else 2))


@rule(
    "MW310",
    WARNING,
    "every worker reads all of the data instead of its share",
    "iterate over strategy.experimental_distribute_dataset(dataset)",
)
def _same_batches(script: Script) -> Iterator[Violation]:
    for call in script.of(STRATEGY, "run") if script.together else ():
        given = call.argument("args", 1)
        chains = [chain_of(iterated(value)) for value in inner(given)] if isinstance(given, Items) else []
        if any(chain and chain.finite and not chain.distributed and not chain.sharded for chain in chains):
            yield Violation(call, "strategy.run uses batches of a data set that the strategy has not distributed")


@rule(
    "MW311",
    ERROR,
    "each worker draws batches independently: Keras cannot determine the end of an epoch, and raises an error",
    "set steps_per_epoch=…",
)
def _servers(script: Script) -> Iterator[Violation]:
    for call in script.of(MODEL, "fit") if not script.multi else ():
        made = call.receiver.call if call.receiver is not None else None
        served = made is not None and any(scope.call in script.parameter_server for scope in made.scopes)
        if served and not call.starred and is_none(argument(call, "steps_per_epoch")):
            yield Violation(call, "fit with parameter servers has no steps_per_epoch")
