"""Rules on the scope of the strategy and on replicas (MW2xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.lint.interpreter.api_names import Kind, keras_name, kind_of
from train.lint.interpreter.trace import apart
from train.lint.interpreter.values import Call, Made, Ref, Value, options, text
from train.lint.rule import ERROR, WARNING, Violation, rule, severity
from train.lint.subject import Subject, inner


@rule(
    "MW201",
    ERROR,
    reason="its variables belong to this worker alone: `fit` silently trains it separately, and objects that are "
    "created in the scope fail with it",
    fix="create it in the scope: with strategy.scope(): model = …",
)
def _model(subject: Subject) -> Iterator[Violation]:
    for call in subject.trace.calls if subject.multi else ():
        learns = call.method in ("fit", "fit_generator", "train_on_batch") or (
            call.method == "__call__" and call.replica
        )
        if not learns or kind_of(call.receiver) is not Kind.MODEL:
            continue
        made = subject.made_by(call.receiver)
        early = all(call.order < strategy.order for strategy in subject.multi)
        if made and not early and all(_outside(subject, item) for item in made):
            where = call.location.seen_from(made[0].location)
            message = f"the model that is trained in {where} is created outside of the strategy's scope"
            yield Violation(made[0], message, severity(call, ERROR))


def _outside(subject: Subject, call: Call) -> bool:
    """Return whether a call is in no scope of a strategy that is created under the same conditions."""
    return subject.outside(call) and any(not apart(call, strategy) for strategy in subject.multi)


@rule("MW202", ERROR)
def _optimizer(subject: Subject) -> Iterator[Violation]:
    for call in subject.of(Kind.OPTIMIZER, "apply_gradients") if subject.keras_3 is not False else ():
        for made in subject.made_by(call.receiver) if call.replica else ():
            if _outside(subject, made):
                yield Violation(
                    made,
                    "the optimizer is created outside of the strategy's scope",
                    ERROR if subject.keras_3 else WARNING,
                    "it fails with Keras 3, which TensorFlow 2.16 and later include: RuntimeError: Mixing different "
                    "tf.distribute.Strategy objects",
                    "create it in the scope, next to the model",
                )
    for call in subject.of(Kind.MODEL, "compile"):
        for value in inner(call.argument("metrics", 2)) if subject.shared(call.receiver) else ():
            if isinstance(value, Made) and kind_of(value) is Kind.METRIC and _outside(subject, value.call):
                yield Violation(
                    value.call,
                    "a metric is created outside of the strategy's scope, and the model inside",
                    reason="`compile` fails: the metric was created inside a different distribution strategy scope",
                    fix='make it in the scope, or give its name: metrics=["accuracy"]',
                )


@rule(
    "MW203",
    ERROR,
    reason="every worker has a separate variable with a different initial value, and trains it separately",
    fix="create it in the scope: with strategy.scope(): …",
)
def _variables(subject: Subject) -> Iterator[Violation]:
    for call in subject.calls("gradient", "minimize"):
        given = call.argument("sources" if call.method == "gradient" else "var_list", 1)
        for value in inner(given) if call.replica else ():
            made = value.call if isinstance(value, Made) else None
            if made is not None and made.name == "tensorflow.Variable" and subject.outside(made):
                yield Violation(made, "a trained variable is created outside of the strategy's scope")


@rule(
    "MW204",
    ERROR,
    reason="the optimizer belongs to the strategy, and only replicas may use it: the call fails",
    fix="move the step into a function and run strategy.run(step, args=(batch,))",
)
def _gradients(subject: Subject) -> Iterator[Violation]:
    for call in subject.of(Kind.OPTIMIZER, "apply_gradients", "minimize"):
        if not call.replica and subject.shared(call.receiver):
            yield Violation(call, f"{call.method} is called outside of strategy.run")


@rule(
    "MW205",
    WARNING,
    reason="with Keras 2 it fails with a ValueError; with Keras 3 and N workers every step is N times too large",
    fix='reduction="none", and tf.nn.compute_average_loss(losses, global_batch_size=…)',
)
def _reduction(subject: Subject) -> Iterator[Violation]:
    for call in subject.of(Kind.LOSS, "__call__") if subject.multi else ():
        made = subject.made_by(call.receiver) if call.replica else []
        if made and all(map(_reduces_by_mean, made)):
            message = f"{made[0].method} is the mean of one worker's batch, and the workers' gradients are added up"
            yield Violation(made[0].location, message)


def _reduces_by_mean(call: Call) -> bool:
    if call.starred or not keras_name(call.name).startswith("losses."):
        return False
    given = call.keywords.get("reduction")
    return given is None or all(map(_is_mean, options(given)))


def _is_mean(value: Value) -> bool:
    name = value.name.rpartition(".")[2].lower() if isinstance(value, Ref) else text(value)
    return name in ("auto", "sum_over_batch_size", "mean")
