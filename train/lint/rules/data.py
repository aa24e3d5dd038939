"""Rules on data: its end, and each worker's share (MW3xx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.lint.datasets import Chain, chains, iterated
from train.lint.interpreter.names import TFDS, Kind, keras_part, kind_of
from train.lint.interpreter.values import Call, Const, Items, Made, Mark, Value, is_none, options
from train.lint.model import Severity
from train.lint.subject import Subject, Violation, argument, inner, severity

_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}
_DATA = "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA"


def _uses(subject: Subject) -> Iterator[tuple[Call, Value, str]]:
    """Yield the data sets that models use, and the argument with the number of their batches."""
    for call in subject.of(Kind.MODEL, *_STEPS):
        if call.starred:
            continue
        value = argument(call, "x")
        if value is not None:
            yield call, value, _STEPS[call.method]
        value = argument(call, "validation_data") if call.method == "fit" else None
        if value is not None:
            yield call, value, "validation_steps"


def _endless(subject: Subject) -> Iterator[Violation]:
    """Check for MW301."""
    for call, value, steps in _uses(subject):
        result = chains(value)
        endless = all(chain.endless and chain.distributed is None for chain in result)
        if result and endless and is_none(argument(call, steps)):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                f"{call.method} uses an endlessly repeated data set without {steps}",
                "Keras 2 raises a ValueError; Keras 3 never reaches its end",
                f"set {steps}=… to the number of batches of all workers in one epoch",
            )
    for loop in subject.trace.loops:
        over = iterated(loop.over) or loop.over
        result = chains(over)
        if result and all(chain.endless for chain in result) and not loop.left:
            yield Violation(
                loop.place,
                Severity.ERROR,
                "this loop iterates over an endlessly repeated data set",
                "no statement leaves the loop: it never ends",
                "count the steps, and draw each with next(): for _ in range(steps): step(next(iterator))",
            )


def _divided(subject: Subject) -> Iterator[tuple[Call, list[Chain]]]:
    """Yield the data sets that TensorFlow divides among the workers."""
    if subject.workers < 2:
        return
    for call, value, _ in _uses(subject):
        if subject.shared(call.receiver):
            result = chains(value)
            if result and all(chain.distributed is None for chain in result):
                yield call, result
    for call in subject.of(Kind.STRATEGY, "experimental_distribute_dataset"):
        result = chains(call.argument("dataset", 0))
        if result and call.receiver is not None and subject.is_multi(call.receiver):
            yield call, result


def _few_files(subject: Subject) -> Iterator[Violation]:
    """Check for MW302."""
    for call, result in _divided(subject):
        files = [chain.files for chain in result if chain.policy in ("AUTO", "FILE")]
        small = [number for number in files if number is not None and number < subject.workers]
        if len(small) != len(result):
            continue
        source = result[0].source
        sure = Severity.WARNING if source.name == TFDS else Severity.ERROR
        number = "one file" if small[0] == 1 else f"{small[0]} files"
        if subject.adapt and all(chain.policy == "AUTO" for chain in result):
            yield Violation(
                source.place,
                Severity.HINT,
                f"the data set is read from {number}, which {subject.workers} workers cannot divide",
                "`fleet` divides it by elements unless --no-adapt is given; TensorFlow alone fails",
                f"{_DATA}, and dataset.with_options(options); or at least {subject.workers} files of equal length",
            )
            continue
        yield Violation(
            source.place,
            severity(call, severity(source, sure)),
            f"the data set is read from {number}, and {subject.workers} workers divide it by files",
            "it fails: Could not apply FILE based sharding: the dataset only has "
            f"{small[0]} file(s), which is not enough for the required {subject.workers} shards/workers",
            f"{_DATA}, and dataset.with_options(options); or at least {subject.workers} files of equal length",
        )


def _no_files(subject: Subject) -> Iterator[Violation]:
    """Check for MW303."""
    for call, result in _divided(subject):
        chain = result[0]
        mapped = chain.step("interleave") or chain.step("flat_map")
        if any(item.policy != "FILE" or not (item.in_memory or item.generated) for item in result) or mapped:
            continue
        yield Violation(
            chain.source.place,
            severity(call, Severity.ERROR),
            f"the policy is FILE, and {chain.source.method} has no files to divide",
            "it fails: Violation an unshardable source dataset",
            _DATA,
        )


def _undivided(subject: Subject) -> Iterator[Violation]:
    """Check for MW304."""
    for call, result in _divided(subject):
        if all(chain.policy == "OFF" and chain.finite and not chain.sharded for chain in result):
            yield Violation(
                result[0].source.place,
                severity(call, Severity.WARNING),
                "the policy is OFF, and the script does not divide the data",
                "every worker reads all of it: with N workers an epoch takes N times as long, and data of unequal "
                "length fail",
                f"{_DATA}; or dataset.shard(number_of_workers, index) before shuffle",
            )


def _distributed(subject: Subject) -> Iterator[Violation]:
    """Check for MW305."""
    for call, value, steps in _uses(subject):
        if kind_of(value) is Kind.DISTRIBUTED and is_none(argument(call, steps)):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                f"{call.method} uses a data set that the strategy has distributed already, without {steps}",
                "it fails: ValueError: When providing a distributed dataset, you must specify the number of steps "
                "to run",
                f"{steps}=…; or give {call.method} the data set before its distribution",
            )


def _runs_out(subject: Subject) -> Iterator[Violation]:
    """Check for MW306."""
    for call in subject.of(Kind.MODEL, "fit"):
        epochs, steps = argument(call, "epochs"), argument(call, "steps_per_epoch")
        if call.starred or is_none(epochs) or _is_one(epochs) or steps is None or is_none(steps):
            continue
        if steps.marks & (Mark.UNKNOWN | Mark.REPLICAS):  # the number may be exact
            continue
        result = chains(argument(call, "x"))
        if result and all(chain.finite and chain.transparent and chain.step("repeat") is None for chain in result):
            yield Violation(
                call.place,
                severity(call, Severity.WARNING),
                "steps_per_epoch is given, and the data set is not repeated",
                "unless it is exactly the number of batches, all epochs share one pass through the data: at its end "
                "training stops with a warning and exit code 0",
                "write dataset.repeat() before batch, or remove steps_per_epoch",
            )


def _is_one(value: Value | None) -> bool:
    return isinstance(value, Const) and value.value == 1


def _batches(subject: Subject) -> Iterator[tuple[Call, Value]]:
    """Yield the sizes of batches for all workers together."""
    for _, result in _divided(subject):
        for chain in result:
            size = chain.batch()
            call = chain.step("batch") or chain.step("padded_batch")
            if size is not None and call is not None and not chain.sharded and chain.policy != "OFF":
                yield call, size
    for call in subject.trainings:
        size = argument(call, "batch_size")
        if size is not None and not is_none(size) and not call.starred and subject.workers > 1:
            yield call, size


def _batch(subject: Subject) -> Iterator[Violation]:
    """Check for MW307."""
    for call, size in _batches(subject):
        if any(option.marks & (Mark.UNKNOWN | Mark.REPLICAS) for option in options(size)):
            continue
        amount = f"{size.value} examples" if isinstance(size, Const) else "its examples"
        yield Violation(
            call.place,
            Severity.HINT,
            "the batch does not grow with the number of workers",
            f"all workers share {amount} in one step: more workers make each share smaller, but training is not "
            "faster",
            "write global_batch_size = per_worker_batch_size * strategy.num_replicas_in_sync",
        )


def _rate(subject: Subject) -> Iterator[Violation]:
    """Check for MW308."""
    if not subject.together or not any(size.marks & Mark.REPLICAS for _, size in _batches(subject)):
        return
    for call in subject.of(Kind.MODEL, "compile"):
        if not subject.shared(call.receiver):
            continue
        for made in subject.made_by(call.argument("optimizer", 0)):
            if keras_part(made.name).rpartition(".")[2] != "SGD" or made.starred:
                continue
            rate = made.argument("learning_rate", 0)
            if rate is None or (isinstance(rate, Const) and not rate.marks & Mark.REPLICAS):
                yield Violation(
                    made.place,
                    Severity.HINT,
                    "the batch grows with the number of workers, and the learning rate of SGD does not",
                    "an epoch then has fewer steps of the same size, and training needs more epochs",
                    "write learning_rate=base * strategy.num_replicas_in_sync, after a warm-up if necessary",
                )


def _shuffled(subject: Subject) -> Iterator[Violation]:
    """Check for MW309."""
    if subject.workers < 2 or _seeded(subject):
        return
    for call in subject.of(Kind.DATASET, "shard"):
        for chain in chains(call.receiver):
            mixed = chain.step("shuffle")
            listed = chain.source if chain.source.method == "list_files" else None
            first = next((item for item in (mixed, listed) if item is not None and _unseeded(item)), None)
            if first is not None:
                yield Violation(
                    call.place,
                    severity(call, Severity.WARNING),
                    f"shard comes after {first.method} ({first.place.seen_from(call.place)}), which has no seed",
                    "every worker has a different order: shares overlap, and some examples are in none",
                    "shard first, then shuffle; or use the same seed for all: shuffle(…, seed=1)",
                )


def _unseeded(call: Call) -> bool:
    if call.starred or not is_none(call.argument("seed", 1 if call.method == "shuffle" else 2)):
        return False
    if call.method == "list_files":
        given = call.argument("shuffle", 1)
        return given is None or (isinstance(given, Const) and given.value is not False)
    return True


def _seeded(subject: Subject) -> bool:
    return any(call.method in ("set_seed", "set_random_seed") for call in subject.trace.calls)


def _same_batches(subject: Subject) -> Iterator[Violation]:
    """Check for MW310."""
    if not subject.together:
        return
    for call in subject.of(Kind.STRATEGY, "run"):
        given = call.argument("args", 1)
        for value in inner(given) if isinstance(given, Items) else ():
            result = chains(iterated(value))
            if result and all(item.distributed is None and item.finite and not item.sharded for item in result):
                yield Violation(
                    call.place,
                    severity(call, Severity.WARNING),
                    "strategy.run uses batches of a data set that the strategy has not distributed",
                    "every worker reads all of the data instead of its share",
                    "iterate over strategy.experimental_distribute_dataset(dataset)",
                )
                break


def _servers(subject: Subject) -> Iterator[Violation]:
    """Check for MW311."""
    if not subject.parameter_server or subject.multi:
        return
    for call in subject.of(Kind.MODEL, "fit"):
        made = subject.made_by(call.receiver)
        scopes = [scope for entry in made for scope in entry.scopes]
        names = {item.call.method for item in scopes if isinstance(item, Made)}
        strategies = {entry.method for entry in subject.parameter_server}
        if names & strategies and not call.starred and is_none(argument(call, "steps_per_epoch")):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                "fit with parameter servers has no steps_per_epoch",
                "each worker draws batches independently: Keras cannot determine the end of an epoch, and raises "
                "an error",
                "set steps_per_epoch=…",
            )


RULES: dict[str, Callable[[Subject], Iterator[Violation]]] = {
    "MW301": _endless,
    "MW302": _few_files,
    "MW303": _no_files,
    "MW304": _undivided,
    "MW305": _distributed,
    "MW306": _runs_out,
    "MW307": _batch,
    "MW308": _rate,
    "MW309": _shuffled,
    "MW310": _same_batches,
    "MW311": _servers,
}
