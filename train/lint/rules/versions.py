"""Rules on versions of TensorFlow and Keras (MW6xx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.errors import KerasError
from train.lint.interpreter.names import Kind
from train.lint.interpreter.values import Call, Place, Table, text
from train.lint.model import Severity
from train.lint.subject import Subject, Violation, severity
from train.script.keras import FIRST_WITH_KERAS_3, VARIABLE, Verdict, choose

_ESTIMATORS = ("tensorflow.estimator", "tensorflow_estimator")


def _keras_3(subject: Subject) -> Iterator[Violation]:
    """Check for MW601."""
    need = subject.need
    place = Place(need.file, need.line, 1)
    if subject.tensorflow and subject.versions is not None:
        tasks = {f"worker-{index}": subject.versions for index in range(subject.workers)}
        try:
            choose(need, tasks, {}, adapt=subject.adapt)
        except KerasError as error:
            yield Violation(place, Severity.ERROR, error.message, error.cause, error.hint or error.next_step)
    elif need.verdict is Verdict.KERAS_3_FIT and subject.workers > 1:
        if subject.adapt and not need.only_new:
            yield Violation(
                place,
                Severity.HINT,
                f"the script {need.reason}, which works with one worker only",
                "`fleet` makes `import keras` import tf-keras unless --no-adapt is given",
                "replace `import keras` with `from tensorflow import keras` in all modules",
            )
            return
        yield Violation(
            place,
            Severity.WARNING,
            f"the script {need.reason}",
            "with TensorFlow 2.16 and later `import keras` is Keras 3, whose fit, evaluate, and predict work "
            "with one worker only: with more they fail with an error about PerReplica",
            "replace `import keras` with `from tensorflow import keras` in all modules, which then use legacy "
            "Keras; or write a custom training loop",
        )


def _variable(subject: Subject) -> Iterator[Violation]:
    """Check for MW602."""
    loaded = next((item for item in subject.trace.imports if _loads_keras(item.name)), None)
    fits = [call for call in subject.of(Kind.MODEL, "fit", "evaluate", "predict") if subject.multi]
    for call, value in _settings(subject):
        wanted = value in ("1", "true", "True")
        if wanted and loaded is not None and loaded.order < call.order:
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                f"{VARIABLE} is set after Keras was imported ({loaded.place.seen_from(call.place)})",
                "TensorFlow reads it when it loads Keras: earlier imports use Keras 3, and the two versions are "
                "incompatible",
                "set it before all imports, or remove it: `fleet` sets it for scripts that need it",
            )
        elif not wanted and fits and subject.workers > 1 and _modern(subject):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR if subject.tensorflow else Severity.WARNING),
                f"the script chooses Keras 3 ({VARIABLE}={value!r}) and calls {fits[0].method} across workers",
                "the fit, evaluate and predict of Keras 3 work with one worker only",
                "do not set the variable: `fleet` chooses legacy Keras if it is needed",
            )


def _loads_keras(name: str) -> bool:
    """Return whether an import makes TensorFlow load Keras immediately."""
    return name.startswith("tensorflow.keras.")


def _modern(subject: Subject) -> bool:
    return not subject.tensorflow or subject.tensorflow >= FIRST_WITH_KERAS_3


def _settings(subject: Subject) -> Iterator[tuple[Call, str]]:
    for call in subject.trace.calls:
        value = None
        if call.name in ("os.environ.__setitem__", "os.environ.setdefault", "os.putenv") and len(call.args) == 2:
            value = text(call.args[1]) if text(call.args[0]) == VARIABLE else None
        elif call.name == "os.environ.update":
            tables = [item.items for item in call.args if isinstance(item, Table)]
            value = next((text(items[VARIABLE]) for items in [call.keywords, *tables] if VARIABLE in items), None)
        if value is not None:
            yield call, value


def _estimators(subject: Subject) -> Iterator[Violation]:
    """Check for MW603."""
    removed = subject.tensorflow >= FIRST_WITH_KERAS_3 if subject.tensorflow else None
    if removed is False:
        return
    for call in subject.trace.calls if not subject.tf1 else ():  # MW604 gives better advice
        if call.name.startswith(_ESTIMATORS) and call.receiver is None:
            yield Violation(
                call.place,
                severity(call, Severity.ERROR if removed else Severity.WARNING),
                f"the script uses an Estimator ({call.method})",
                "TensorFlow 2.16 and later do not have Estimators",
                "use a Keras model in the scope of MultiWorkerMirroredStrategy, or tensorflow~=2.15.0 on all hosts",
            )
            return


def _tensorflow_1(subject: Subject) -> Iterator[Violation]:
    """Check for MW604."""
    if subject.tensorflow and subject.tensorflow < (2,):
        return
    for place, name in subject.tf1[:1]:
        more = len(subject.tf1) - 1
        yield Violation(
            place,
            Severity.ERROR if subject.tensorflow else Severity.WARNING,
            f"the script is written for TensorFlow 1 ({name}{f', and {more} more' if more else ''})",
            "it fails: no version of TensorFlow 2 has this name",
            "convert it with TensorFlow's tf_upgrade_v2 --infile task.py --outfile task2.py, then use "
            "MultiWorkerMirroredStrategy; an older TensorFlow 2 does not help",
        )


RULES: dict[str, Callable[[Subject], Iterator[Violation]]] = {
    "MW601": _keras_3,
    "MW602": _variable,
    "MW603": _estimators,
    "MW604": _tensorflow_1,
}
