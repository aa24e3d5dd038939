"""Rules on the scope of the strategy and on replicas (MW2xx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.lint.interpreter.names import Kind, keras_part, kind_of
from train.lint.interpreter.trace import apart
from train.lint.interpreter.values import Call, Made, Ref, Value, is_none, options, text
from train.lint.model import Severity
from train.lint.subject import Subject, Violation, inner, severity


def _model(subject: Subject) -> Iterator[Violation]:
    """Check for MW201."""
    if not subject.multi:
        return
    for call in subject.trace.calls:
        learns = call.method in ("fit", "fit_generator", "train_on_batch") or (
            call.method == "__call__" and call.replica
        )
        if not learns or kind_of(call.receiver) is not Kind.MODEL:
            continue
        made = subject.made_by(call.receiver)
        early = all(call.order < strategy.order for strategy in subject.multi)
        if early or not made or not all(subject.outside(item) and _related(subject, item) for item in made):
            continue
        first = made[0]
        where = call.place.seen_from(first.place)
        yield Violation(
            first.place,
            severity(call, severity(first, Severity.ERROR)),
            f"the model that is trained in {where} is created outside of the strategy's scope",
            "its variables belong to this worker alone: `fit` silently trains it separately, and objects that are "
            "created in the scope fail with it",
            "create it in the scope: with strategy.scope(): model = …",
        )


def _related(subject: Subject, call: Call) -> bool:
    """Return whether a strategy for several workers is created under the same conditions as this call."""
    return any(not apart(call, strategy) for strategy in subject.multi)


def _optimizer(subject: Subject) -> Iterator[Violation]:
    """Check for MW202."""
    for call in subject.calls("apply_gradients"):
        if not call.replica or kind_of(call.receiver) is not Kind.OPTIMIZER or subject.keras_3 is False:
            continue
        for made in subject.made_by(call.receiver):
            if subject.outside(made) and _related(subject, made):
                level = Severity.ERROR if subject.keras_3 else Severity.WARNING
                yield Violation(
                    made.place,
                    severity(made, level),
                    "the optimizer is created outside of the strategy's scope",
                    "it fails with Keras 3, which TensorFlow 2.16 and later include: RuntimeError: Mixing different "
                    "tf.distribute.Strategy objects",
                    "create it in the scope, next to the model",
                )
    yield from _metrics(subject)


def _metrics(subject: Subject) -> Iterator[Violation]:
    for call in subject.of(Kind.MODEL, "compile"):
        if not subject.shared(call.receiver):
            continue
        for value in inner(call.argument("metrics", 2)):
            if kind_of(value) is not Kind.METRIC or not isinstance(value, Made):
                continue
            if subject.outside(value.call) and _related(subject, value.call):
                yield Violation(
                    value.call.place,
                    severity(value.call, Severity.ERROR),
                    "a metric is created outside of the strategy's scope, and the model inside",
                    "`compile` fails: the metric was created inside a different distribution strategy scope",
                    'make it in the scope, or give its name: metrics=["accuracy"]',
                )


def _variables(subject: Subject) -> Iterator[Violation]:
    """Check for MW203."""
    for call in subject.calls("gradient", "minimize"):
        if not call.replica:
            continue
        given = call.argument("sources", 1) if call.method == "gradient" else call.argument("var_list", 1)
        for value in inner(given):
            made = value.call if isinstance(value, Made) else None
            if made is not None and made.name == "tensorflow.Variable" and subject.outside(made):
                yield Violation(
                    made.place,
                    severity(made, Severity.ERROR),
                    "a trained variable is created outside of the strategy's scope",
                    "every worker has a separate variable with a different initial value, and trains it separately",
                    "create it in the scope: with strategy.scope(): …",
                )


def _gradients(subject: Subject) -> Iterator[Violation]:
    """Check for MW204."""
    for call in subject.of(Kind.OPTIMIZER, "apply_gradients", "minimize"):
        made = subject.made_by(call.receiver)
        if not call.replica and made and all(map(subject.inside, made)):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                f"{call.method} is called outside of strategy.run",
                "the optimizer belongs to the strategy, and only replicas may use it: the call fails",
                "move the step into a function and run strategy.run(step, args=(batch,))",
            )


def _reduction(subject: Subject) -> Iterator[Violation]:
    """Check for MW205."""
    for call in subject.of(Kind.LOSS, "__call__"):
        if not call.replica or not subject.multi:
            continue
        made = subject.made_by(call.receiver)
        if made and all(map(_reduces_by_mean, made)):
            yield Violation(
                made[0].place,
                severity(call, Severity.WARNING),
                f"{made[0].method} is the mean of one worker's batch, and the workers' gradients are added up",
                "with Keras 2 it fails with a ValueError; with Keras 3 and N workers every step is N times too large",
                'reduction="none", and tf.nn.compute_average_loss(losses, global_batch_size=…)',
            )


def _reduces_by_mean(call: Call) -> bool:
    if call.starred or not keras_part(call.name).startswith("losses."):
        return False
    given = call.keywords.get("reduction")
    return is_none(given) if given is None else all(map(_is_mean, options(given)))


def _is_mean(value: Value) -> bool:
    name = value.name.rpartition(".")[2].lower() if isinstance(value, Ref) else text(value)
    return name in ("auto", "sum_over_batch_size", "mean")


RULES: dict[str, Callable[[Subject], Iterator[Violation]]] = {
    "MW201": _model,
    "MW202": _optimizer,
    "MW203": _variables,
    "MW204": _gradients,
    "MW205": _reduction,
}
