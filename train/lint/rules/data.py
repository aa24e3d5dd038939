"""Rules on data: its end, and each worker's share (MW3xx)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from train.lint.datasets import Chain, chains, iterated
from train.lint.interpreter.api_names import DATASET_CREATOR, TFDS, Kind, keras_name, kind_of
from train.lint.interpreter.values import Call, Const, Items, Made, Mark, Value, is_none, options
from train.lint.rule import ERROR, HINT, WARNING, Violation, rule, severity
from train.lint.subject import Subject, argument, inner

_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}
_ALL_STEPS = (*_STEPS.values(), "validation_steps")
_DATA = "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA"


def _uses(subject: Subject) -> Iterator[tuple[Call, Value, str]]:
    """Yield the data sets that models use, and the argument with the number of their batches."""
    for call in subject.of(Kind.MODEL, *_STEPS):
        given = {"x": _STEPS[call.method]} | ({"validation_data": "validation_steps"} if call.method == "fit" else {})
        for name, steps in given.items() if not call.starred else ():
            value = argument(call, name)
            if value is not None:
                yield call, value, steps


@rule("MW301", ERROR)
def _endless(subject: Subject) -> Iterator[Violation]:
    for call, value, steps in _uses(subject):
        result = chains(value)
        endless = all(chain.endless and chain.distributed is None for chain in result)
        if result and endless and is_none(argument(call, steps)):
            yield Violation(
                call,
                f"{call.method} uses an endlessly repeated data set without {steps}",
                reason="Keras 2 raises a ValueError; Keras 3 never reaches its end",
                fix=f"set {steps}=… to the number of batches of all workers in one epoch",
            )
    for loop in subject.trace.loops:
        result = chains(iterated(loop.over) or loop.over)
        if result and all(chain.endless for chain in result) and not loop.left:
            yield Violation(
                loop.location,
                "this loop iterates over an endlessly repeated data set",
                reason="no statement leaves the loop: it never ends",
                fix="count the steps, and draw each with next(): for _ in range(steps): step(next(iterator))",
            )


def _divided(subject: Subject, steps: Collection[str] = _ALL_STEPS) -> Iterator[tuple[Call, list[Chain]]]:
    """Yield the data sets that TensorFlow divides among the workers.

    Args:
        subject: The script.
        steps: Names of arguments for numbers of batches: only data for these arguments of models is included.
    """
    if subject.workers < 2:
        return
    for call, value, name in _uses(subject):
        result = chains(value) if name in steps and subject.shared(call.receiver) else []
        if result and all(chain.distributed is None for chain in result):
            yield call, result
    for call in subject.of(Kind.STRATEGY, "experimental_distribute_dataset"):
        result = chains(call.argument("dataset", 0))
        if result and call.receiver is not None and subject.is_multi(call.receiver):
            yield call, result


@rule("MW302", ERROR)
def _few_files(subject: Subject) -> Iterator[Violation]:
    for call, result in _divided(subject):
        files = [chain.files for chain in result if chain.policy in ("AUTO", "FILE")]
        small = [number for number in files if number is not None and number < subject.workers]
        if len(small) != len(result):
            continue
        source = result[0].source
        number = "one file" if small[0] == 1 else f"{small[0]} files"
        fix = f"{_DATA}, and dataset.with_options(options); or at least {subject.workers} files of equal length"
        if subject.adapt and all(chain.policy == "AUTO" for chain in result):
            yield Violation(
                source.location,
                f"the data set is read from {number}, which {subject.workers} workers cannot divide",
                HINT,
                "`fleet` divides it by elements unless --no-adapt is given; TensorFlow alone fails",
                fix,
            )
        else:
            yield Violation(
                source,
                f"the data set is read from {number}, and {subject.workers} workers divide it by files",
                severity(call, WARNING if source.name == TFDS else ERROR),
                "it fails: Could not apply FILE based sharding: the dataset only has "
                f"{small[0]} file(s), which is not enough for the required {subject.workers} shards/workers",
                fix,
            )


@rule("MW303", ERROR, reason="it fails: Found an unshardable source dataset", fix=_DATA)
def _no_files(subject: Subject) -> Iterator[Violation]:
    for call, result in _divided(subject):
        source = result[0].source
        mapped = result[0].step("interleave") or result[0].step("flat_map")
        if not mapped and all(item.policy == "FILE" and (item.in_memory or item.generated) for item in result):
            message = f"the policy is FILE, and {source.method} has no files to divide"
            yield Violation(source.location, message, severity(call, ERROR))


@rule(
    "MW304",
    WARNING,
    reason="every worker reads all of it: with N workers an epoch takes N times as long, and data of unequal length "
    "fail",
    fix=f"{_DATA}; or dataset.shard(number_of_workers, index) before shuffle",
)
def _undivided(subject: Subject) -> Iterator[Violation]:
    for _, result in _divided(subject):
        if all(chain.policy == "OFF" and chain.finite and not chain.sharded for chain in result):
            yield Violation(result[0].source.location, "the policy is OFF, and the script does not divide the data")


@rule(
    "MW305",
    ERROR,
    reason="it fails: ValueError: When providing a distributed dataset, you must specify the number of steps to run",
)
def _distributed(subject: Subject) -> Iterator[Violation]:
    for call, value, steps in _uses(subject):
        if kind_of(value) is Kind.DISTRIBUTED and is_none(argument(call, steps)):
            message = f"{call.method} uses a data set that the strategy has distributed already, without {steps}"
            fix = f"{steps}=…; or give {call.method} the data set before its distribution"
            yield Violation(call, message, fix=fix)


@rule(
    "MW306",
    WARNING,
    reason="unless it is exactly the number of batches, all epochs share one pass through the data: at its end "
    "training stops with a warning and exit code 0",
    fix="write dataset.repeat() before batch, or remove steps_per_epoch",
)
def _runs_out(subject: Subject) -> Iterator[Violation]:
    for call in subject.of(Kind.MODEL, "fit"):
        epochs, steps = argument(call, "epochs"), argument(call, "steps_per_epoch")
        is_single_epoch = is_none(epochs) or (isinstance(epochs, Const) and epochs.value == 1)
        if call.starred or is_single_epoch or steps is None or is_none(steps):
            continue
        if steps.marks & (Mark.UNKNOWN | Mark.REPLICAS):  # the number may be exact
            continue
        data = argument(call, "x")
        is_created = isinstance(data, Made) and data.call.name == DATASET_CREATOR
        result = chains(data.call.returned if isinstance(data, Made) and is_created else data)
        if result and all(chain.finite and chain.transparent and chain.step("repeat") is None for chain in result):
            reason = "at the end of the data it fails: OutOfRangeError: End of sequence" if is_created else ""
            yield Violation(call, "steps_per_epoch is given, and the data set is not repeated", reason=reason)


def _batches(subject: Subject) -> Iterator[tuple[Call, Value]]:
    """Yield the sizes of batches for all workers together."""
    for chain in (chain for _, result in _divided(subject, ("steps_per_epoch",)) for chain in result):
        call, size = chain.batch()
        if call is not None and size is not None and not chain.sharded and chain.policy != "OFF":
            yield call, size
    for call in subject.trainings:
        size = argument(call, "batch_size")
        if size is not None and not is_none(size) and not call.starred and subject.workers > 1:
            yield call, size


@rule("MW307", HINT, fix="write global_batch_size = per_worker_batch_size * strategy.num_replicas_in_sync")
def _batch(subject: Subject) -> Iterator[Violation]:
    for call, size in _batches(subject):
        is_one = isinstance(size, Const) and size.value == 1
        if not is_one and not any(option.marks & (Mark.UNKNOWN | Mark.REPLICAS) for option in options(size)):
            yield Violation(
                call,
                "the batch does not grow with the number of workers",
                reason=f"all workers share {f'{size.value} examples' if isinstance(size, Const) else 'its examples'} "
                "in one step: more workers make each share smaller, but training is not faster",
            )


@rule(
    "MW308",
    HINT,
    reason="an epoch then has fewer steps of the same size, and training needs more epochs",
    fix="write learning_rate=base * strategy.num_replicas_in_sync, after a warm-up if necessary",
)
def _rate(subject: Subject) -> Iterator[Violation]:
    if not subject.together or not any(size.marks & Mark.REPLICAS for _, size in _batches(subject)):
        return
    for call in subject.of(Kind.MODEL, "compile"):
        for made in subject.made_by(call.argument("optimizer", 0)) if subject.shared(call.receiver) else ():
            rate = made.argument("learning_rate", 0)
            fixed = rate is None or (isinstance(rate, Const) and not rate.marks & Mark.REPLICAS)
            if fixed and keras_name(made.name).rpartition(".")[2] == "SGD" and not made.starred:
                message = "the batch grows with the number of workers, and the learning rate of SGD does not"
                yield Violation(made, message)


@rule(
    "MW309",
    WARNING,
    reason="every worker has a different order: shares overlap, and some examples are in none",
    fix="shard first, then shuffle; or use the same seed for all: shuffle(…, seed=1)",
)
def _shuffled(subject: Subject) -> Iterator[Violation]:
    if subject.workers < 2 or any(subject.calls("set_seed", "set_random_seed")):
        return
    for call in subject.of(Kind.DATASET, "shard"):
        for chain in chains(call.receiver):
            mixed = chain.step("shuffle")
            listed = chain.source if chain.source.method == "list_files" else None
            first = next((item for item in (mixed, listed) if item is not None and _unseeded(item)), None)
            if first is not None:
                where = first.location.seen_from(call.location)
                yield Violation(call, f"shard comes after {first.method} ({where}), which has no seed")


def _unseeded(call: Call) -> bool:
    if call.starred or not is_none(call.argument("seed", 1 if call.method == "shuffle" else 2)):
        return False
    given = call.argument("shuffle", 1) if call.method == "list_files" else None
    return given is None or (isinstance(given, Const) and given.value is not False)


@rule(
    "MW310",
    WARNING,
    reason="every worker reads all of the data instead of its share",
    fix="iterate over strategy.experimental_distribute_dataset(dataset)",
)
def _same_batches(subject: Subject) -> Iterator[Violation]:
    for call in subject.of(Kind.STRATEGY, "run") if subject.together else ():
        given = call.argument("args", 1)
        results = [chains(iterated(value)) for value in inner(given)] if isinstance(given, Items) else []
        if any(result and all(map(_is_undistributed, result)) for result in results):
            yield Violation(call, "strategy.run uses batches of a data set that the strategy has not distributed")


def _is_undistributed(chain: Chain) -> bool:
    return chain.distributed is None and chain.finite and not chain.sharded


@rule(
    "MW311",
    ERROR,
    reason="each worker draws batches independently: Keras cannot determine the end of an epoch, and raises an error",
    fix="set steps_per_epoch=…",
)
def _servers(subject: Subject) -> Iterator[Violation]:
    strategies = {entry.method for entry in subject.parameter_server} if not subject.multi else set()
    for call in subject.of(Kind.MODEL, "fit"):
        scopes = [scope for entry in subject.made_by(call.receiver) for scope in entry.scopes]
        names = {item.call.method for item in scopes if isinstance(item, Made)}
        if names & strategies and not call.starred and is_none(argument(call, "steps_per_epoch")):
            yield Violation(call, "fit with parameter servers has no steps_per_epoch")
