"""Rules on versions of TensorFlow and Keras (MW6xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.errors import KerasError
from train.lint.interpreter.api_names import Kind
from train.lint.interpreter.values import Location, text
from train.lint.rule import ERROR, HINT, WARNING, Violation, rule
from train.lint.subject import Subject
from train.script.keras import FIRST_WITH_KERAS_3, VARIABLE, Requirement, choose

_ESTIMATORS = ("tensorflow.estimator", "tensorflow_estimator")


@rule("MW601", ERROR)
def _keras_3(subject: Subject) -> Iterator[Violation]:
    need = subject.need
    location = Location(need.file, need.line, 1)
    if subject.tensorflow and subject.versions is not None:
        tasks = {f"worker-{index}": subject.versions for index in range(subject.workers)}
        try:
            choose(need, tasks, {}, adapt=subject.adapt)
        except KerasError as error:
            yield Violation(location, error.message, ERROR, error.cause, error.hint)
    elif need.requirement is Requirement.KERAS_3_FIT and subject.workers > 1:
        if subject.adapt and not need.only_new:
            yield Violation(
                location,
                f"the script {need.reason}, which works with one worker only",
                HINT,
                "`fleet` makes `import keras` import tf-keras unless --no-adapt is given",
                "replace `import keras` with `from tensorflow import keras` in all modules",
            )
        else:
            yield Violation(
                location,
                f"the script {need.reason}",
                WARNING,
                "with TensorFlow 2.16 and later `import keras` is Keras 3, whose fit, evaluate, and predict work "
                "with one worker only: with more they fail with an error about PerReplica",
                "replace `import keras` with `from tensorflow import keras` in all modules, which then use legacy "
                "Keras; or write a custom training loop",
            )


@rule("MW602", ERROR)
def _variable(subject: Subject) -> Iterator[Violation]:
    # These imports make TensorFlow load Keras immediately.
    loaded = next((item for item in subject.trace.imports if item.name.startswith("tensorflow.keras.")), None)
    fits = [call for call in subject.of(Kind.MODEL, "fit", "evaluate", "predict") if subject.multi]
    modern = not subject.tensorflow or subject.tensorflow >= FIRST_WITH_KERAS_3
    for item in subject.settings():
        value = text(item.value) if item.name == VARIABLE else None
        if value in ("1", "true", "True") and loaded is not None and loaded.order < item.call.order:
            yield Violation(
                item.call,
                f"{VARIABLE} is set after Keras was imported ({loaded.location.seen_from(item.call.location)})",
                ERROR,
                "TensorFlow reads it when it loads Keras: earlier imports use Keras 3, and the two versions are "
                "incompatible",
                "set it before all imports, or remove it: `fleet` sets it for scripts that need it",
            )
        elif value not in (None, "1", "true", "True") and fits and subject.workers > 1 and modern:
            yield Violation(
                item.call,
                f"the script chooses Keras 3 ({VARIABLE}={value!r}) and calls {fits[0].method} across workers",
                ERROR if subject.tensorflow else WARNING,
                "the fit, evaluate and predict of Keras 3 work with one worker only",
                "do not set the variable: `fleet` chooses legacy Keras if it is needed",
            )


@rule(
    "MW603",
    ERROR,
    reason="TensorFlow 2.16 and later do not have Estimators",
    fix="use a Keras model in the scope of MultiWorkerMirroredStrategy, or tensorflow~=2.15.0 on all hosts",
)
def _estimators(subject: Subject) -> Iterator[Violation]:
    if subject.tf1 or (subject.tensorflow and subject.tensorflow < FIRST_WITH_KERAS_3):
        return  # MW604 gives better advice
    used = (call for call in subject.calls() if call.name.startswith(_ESTIMATORS) and call.receiver is None)
    for call in list(used)[:1]:
        level = ERROR if subject.tensorflow else WARNING
        yield Violation(call, f"the script uses an Estimator ({call.method})", level)


@rule(
    "MW604",
    ERROR,
    reason="it fails: no version of TensorFlow 2 has this name",
    fix="convert it with TensorFlow's tf_upgrade_v2 --infile task.py --outfile task2.py, then use "
    "MultiWorkerMirroredStrategy; an older TensorFlow 2 does not help",
)
def _tensorflow_1(subject: Subject) -> Iterator[Violation]:
    if subject.tensorflow and subject.tensorflow < (2,):
        return
    for location, name in subject.tf1[:1]:
        more = f", and {len(subject.tf1) - 1} more" if len(subject.tf1) > 1 else ""
        message = f"the script is written for TensorFlow 1 ({name}{more})"
        yield Violation(location, message, ERROR if subject.tensorflow else WARNING)
