"""Choose the version of Keras for a script before the launch, from its source and the versions on the hosts.

In TensorFlow 2.16 and later `tf.keras` is Keras 3. Its fit, evaluate, and predict fail under a strategy of two or
more workers (https://github.com/keras-team/keras/issues/20585), and it lacks names that older scripts use. Keras 2 is
available as the package tf-keras; TF_USE_LEGACY_KERAS=1 makes it `tf.keras`
(https://keras.io/getting_started/#tensorflow--keras-2-backwards-compatibility). All tasks of a job must use the same
version. TensorFlow 2.15 and earlier include Keras 2, and fail if the variable is set without tf-keras.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from train.agent.injected import adaptations
from train.agent.protocol.records import Prepared
from train.agent.protocol.wording import join_names
from train.errors import KerasError
from train.script import NEWEST_TF_KERAS, read_rows
from train.script.arguments import LAUNCHERS
from train.script.dotted import Use, uses
from train.script.source import Source

VARIABLE = "TF_USE_LEGACY_KERAS"
BACKEND = "KERAS_BACKEND"
FIRST_WITH_KERAS_3 = (2, 16)  # of TensorFlow
_TENSORFLOW = "tensorflow"
_INTERPRETER = "interpreter"
_TRUE = ("true", "True", "1")  # as TensorFlow reads the variable

_STRATEGIES = re.compile(r"MultiWorkerMirroredStrategy|CollectiveAllReduceStrategy|ParameterServerStrategy(?:V2)?")
_FIT = {"fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"}
_OTHER_FITS = ("sklearn", "scipy", "statsmodels", "xgboost", "lightgbm", "catboost")

# Parts of the package `keras` that work with models of tf-keras too.
_NEUTRAL = ("keras.datasets", "keras.utils", "keras.__version__")

OLD_NAMES = tuple(name for kind, name in read_rows("keras_names.txt") if kind == "old")
NEW_NAMES = tuple(name for kind, name in read_rows("keras_names.txt") if kind == "new")
# Packages that are written for Keras 3.
_NEW_PACKAGES = ("keras_hub", "keras_nlp", "keras_cv", "keras_rs", "jax", "torch")
OLD_METHODS = ("fit_generator", "evaluate_generator", "predict_generator", "reset_states")
# Arguments by callee: the start of a name after `tf.keras.`, or a method.
OLD_ARGUMENTS = {
    "optimizers": ("lr",),
    "layers": ("batch_input_shape", "dynamic", "time_major", "weights"),
    "callbacks.ModelCheckpoint": ("options", "period"),
    ".fit": ("max_queue_size", "use_multiprocessing", "workers"),
    ".evaluate": ("max_queue_size", "use_multiprocessing", "workers"),
    ".predict": ("max_queue_size", "use_multiprocessing", "workers"),
    ".compile": ("experimental_steps_per_execution", "sample_weight_mode"),
}


KERAS_3_HINT = (
    "use Keras 2: import keras from tensorflow (`from tensorflow import keras`), install tf-keras on all hosts, "
    "and do not set TF_USE_LEGACY_KERAS=0"
)


class Requirement(Enum):
    """The requirement of a script on Keras."""

    ANY = "any"  # does not depend on the version
    OLD_NAMES = "old_names"  # needs Keras 2 for names that only Keras 2 has
    FIT = "fit"  # needs Keras 2 with two or more workers
    KERAS_3_FIT = "keras_3_fit"  # not possible in Keras 3 with two or more workers
    DECIDED = "decided"  # the script sets the variable itself


@dataclass(frozen=True)
class Need:
    """The requirement of a script on Keras, with its location in the source.

    Attributes:
        requirement: The requirement.
        reason: What the script does at `file`, `line`: ``calls fit under MultiWorkerMirroredStrategy``.
        file: Path as given.
        line: Line number from 1; 0 without a line.
        tensorflow: True if it imports TensorFlow or Keras.
        value: Value of the variable if the script sets it to a constant.
        only_new: Name that it uses and that only Keras 3 has: ``keras.ops``; empty: none.
        only_keras: True if it imports Keras 3 and not TensorFlow, so that the backend of Keras decides.
        backends: Values that the script assigns to KERAS_BACKEND before it imports Keras; empty: not a constant.
        default_backend: Value that it assigns to KERAS_BACKEND if the variable is unset.
    """

    requirement: Requirement
    reason: str = ""
    file: str = ""
    line: int = 0
    tensorflow: bool = True
    value: str = ""
    only_new: str = ""
    only_keras: bool = False
    backends: tuple[str, ...] = ()
    default_backend: str = ""

    @property
    def legacy(self) -> bool:
        """True if the script needs Keras 2."""
        return self.requirement in (Requirement.OLD_NAMES, Requirement.FIT)

    @property
    def location(self) -> str:
        """``train.py:12``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Choice:
    """Variables that the launch adds to the environment of all tasks, and a note for the user; both may be empty."""

    env: dict[str, str] = field(default_factory=dict)
    note: str = ""


# --- the script ---------------------------------------------------------------------------------------------------


def need_of(sources: Iterable[Source]) -> Need:
    """Return the requirement of a script on Keras.

    Only names are read: uses through `getattr` or in packages that are installed on the hosts are not found.

    Args:
        sources: The script and its modules; files that do not compile are skipped.
    """
    trees = {source.name: source.tree for source in sources if source.tree is not None}
    for file, line, value, _ in _settings(trees, VARIABLE):
        return Need(Requirement.DECIDED, f"sets {VARIABLE} itself", file, line, value=value)
    used = [use for file, tree in trees.items() for use in uses(tree, file)]
    if not any(use.within(top) for use in used for top in ("tensorflow", "tf_keras")):
        return _without_tensorflow(trees, used)
    old_keras = any(use.within("tensorflow.keras") for use in used)
    new_keras = any(use.within("keras") and not _neutral(use) for use in used)
    strategy = next((use.last for use in used if _STRATEGIES.fullmatch(use.last)), "")
    fit = next((use for use in used if _is_fit(use)), None) if strategy else None
    if fit and new_keras:
        reason = f"calls {fit.last} on a model of Keras 3 under {strategy}"
        only_new = next(filter(None, map(_new, used)), "")
        return Need(Requirement.KERAS_3_FIT, reason, fit.file, fit.line, only_new=only_new)
    for use in used if old_keras else ():
        old = _old(use)
        if old:
            return Need(Requirement.OLD_NAMES, f"uses {old}, which Keras 3 does not have", use.file, use.line)
    if fit and old_keras:
        reason = f"calls {fit.last} under {strategy}, which Keras 3 cannot do with several workers"
        return Need(Requirement.FIT, reason, fit.file, fit.line)
    return Need(Requirement.ANY)


def _without_tensorflow(trees: Mapping[str, ast.Module], used: Sequence[Use]) -> Need:
    """Return the requirement of a script that does not import TensorFlow."""
    if not any(use.within("keras") for use in used):
        return Need(Requirement.ANY, tensorflow=False)
    first = {use.file: use.line for use in reversed(used) if use.within("keras")}
    early = [item for item in _settings(trees, BACKEND) if item.line <= first.get(item.file, item.line)]
    assigned = tuple(item.value for item in early if not item.is_default)
    defaults = [item.value for item in early if item.is_default]
    return Need(Requirement.ANY, only_keras=True, backends=assigned, default_backend="".join(defaults[:1]))


def _neutral(use: Use) -> bool:
    return use.name == "keras" or any(use.within(name) for name in _NEUTRAL)


def _is_fit(use: Use) -> bool:
    return use.call is not None and use.last in _FIT and not any(use.within(name) for name in _OTHER_FITS)


def _new(use: Use) -> str:
    """Return the name in this use that only Keras 3 has; empty: none."""
    package = use.name.partition(".")[0]
    if package in _NEW_PACKAGES:
        return package
    return next((f"keras.{name}" for name in NEW_NAMES if use.within(f"keras.{name}")), "")


def _old(use: Use) -> str:
    """Return the name in this use that only Keras 2 has; empty: none."""
    for name in OLD_NAMES:
        if use.within(f"tensorflow.keras.{name}"):
            return f"tf.keras.{name}"
    if use.call is None:
        return ""
    if use.last in OLD_METHODS and not use.within("tensorflow.keras.layers"):  # these still have reset_states
        return f"{use.last}()"
    keywords = [keyword.arg for keyword in use.call.keywords]
    for callee, arguments in OLD_ARGUMENTS.items():
        if f".{use.last}" == callee or (use.last[:1].isupper() and use.within(f"tensorflow.keras.{callee}")):
            for argument in arguments:
                if argument in keywords:
                    return f"{use.last}({argument}=…)"
    return ""


class _Setting(NamedTuple):
    """A statement that assigns to an environment variable; its value is empty if it is not a constant."""

    file: str
    line: int
    value: str
    is_default: bool


def _settings(trees: Mapping[str, ast.Module], variable: str) -> Iterator[_Setting]:
    """Yield the statements that set a variable: by assignment, setdefault, update, or putenv."""
    pattern = re.compile(
        rf"(?:\['{variable}'\] = |(setdefault|putenv)\('{variable}', |(?:update\(|\|= ).*\b{variable}(?:=|': ))"
        r"(?:(?:'([^']*)'|(\d+))(?=[)},]|$))?"
    )
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr) and _mentions(node, variable):
                for match in pattern.finditer(ast.unparse(node)):
                    yield _Setting(file, node.lineno, match[2] or match[3] or "", match[1] == "setdefault")


def _mentions(node: ast.AST, variable: str) -> bool:
    inner = [item for item in ast.walk(node) if isinstance(item, ast.Constant | ast.keyword)]
    return any(variable in (getattr(item, "value", ""), getattr(item, "arg", "")) for item in inner)


# --- R scripts: R's packages keras and reticulate use the same library ---------------------------------------------

_R_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|#[^\n]*""")
_R_STRATEGY = re.compile(r"MultiWorkerMirroredStrategy|multi_worker_mirrored_strategy|ParameterServerStrategy")
_R_FIT = re.compile(r"(?:\bfit|\bfit_generator|\$fit|\bevaluate|\$evaluate)\s*\(")
_R_KERAS_3 = re.compile(r"\b(?:library|require|requireNamespace)\s*\(\s*[\"']?keras3\b|\bkeras3::")
_R_ITSELF = re.compile(r"\b(?:library|require|requireNamespace)\s*\(\s*[\"']?tensorflow\b|\btensorflow::|\btf\$")
_R_BACKEND = re.compile(
    r"""\b(?:use_backend\s*\(\s*(?:backend\s*=\s*)?|KERAS_BACKEND\s*=\s*)(?:["'](\w*)["']|[^)\s])"""
)
"""The choice of a backend of Keras 3 in R: https://keras3.posit.co/reference/use_backend.html."""
_R_SETS = re.compile(r"Sys\.setenv\s*\((?:[^()]|\([^()]*\))*?\bTF_CONFIG[\"'`]?\s*=|environ\S*\bTF_CONFIG\S*\s*<-")
_R_READS = re.compile(rf"Sys\.getenv\s*\(\s*[\"'](?:TF_CONFIG|FLEET_\w+|{LAUNCHERS})\b")
_R_TENSORFLOW = re.compile(r"\btensorflow\b|\bkeras3?\b|\btf\$")


def needs_of_r(text: str, name: str) -> Need:
    """Return the requirement of the R script `name` on Keras, with the backends that it chooses."""
    code = _R_COMMENT.sub(lambda item: item[1] or "", text)
    if not _R_TENSORFLOW.search(code):
        return Need(Requirement.ANY, tensorflow=False)
    backends = tuple(item[1] or "" for item in _R_BACKEND.finditer(code))
    strategy, fit = _R_STRATEGY.search(code), _R_FIT.search(code)
    if _R_KERAS_3.search(code) and strategy is None and not _R_ITSELF.search(code):
        return Need(Requirement.ANY, only_keras=True, backends=backends)
    if strategy is None or fit is None:
        return Need(Requirement.ANY)
    line = code.count("\n", 0, fit.start()) + 1
    if _R_KERAS_3.search(code):
        reason = f"calls fit on a model of Keras 3 under {strategy[0]}"
        return Need(Requirement.KERAS_3_FIT, reason, name, line, only_new="the package keras3")
    reason = f"calls fit under {strategy[0]}, which Keras 3 cannot do with several workers"
    return Need(Requirement.FIT, reason, name, line)


def tf_config_of_r(text: str, name: str) -> str:
    """Return the name of the adaptation to an R script that sets TF_CONFIG; empty: it does not, or uses the job's."""
    code = _R_COMMENT.sub(lambda item: item[1] or "", text)
    setting = _R_SETS.search(code)
    if setting is None or _R_READS.search(code, 0, setting.start()):
        return ""
    return f"{adaptations.TF_CONFIG}::{name}:{code.count(chr(10), 0, setting.start()) + 1}"


# --- the hosts ----------------------------------------------------------------------------------------------------

Versions = Mapping[str, Mapping[str, str]]
"""Installed versions by task, ``{"tensorflow": "2.21.0", "tf_keras": "2.21.0"}``, and KERAS_BACKEND of the host."""


def versions_of(prepared: Prepared) -> dict[str, str]:
    """Return the versions of a host that `choose` needs."""
    return {**prepared.versions, BACKEND: prepared.keras_backend, _INTERPRETER: prepared.python}


def choose(need: Need, versions_by_task: Versions, user_env: Mapping[str, str], *, adapt: bool = True) -> Choice:
    """Return the Keras of a job: the same for all its tasks.

    Args:
        need: The requirement of the script.
        versions_by_task: Installed versions of each task's interpreter.
        user_env: Environment given by the user; TF_USE_LEGACY_KERAS in it takes precedence.
        adapt: True to allow that `import keras` imports tf-keras.

    Raises:
        KerasError: TensorFlow is missing or differs between hosts, tf-keras is required and missing, or no version of
            Keras supports the script.
    """
    if not versions_by_task or not _needs_tensorflow(need, versions_by_task, user_env):
        return Choice()
    tensorflow = _tensorflow(versions_by_task)
    modern = _minor(tensorflow) >= FIRST_WITH_KERAS_3
    decided = _decision(need, user_env, modern)
    if decided is not None:
        if decided:
            _require_tf_keras(versions_by_task, tensorflow, decided)
        return Choice()
    if need.requirement is Requirement.KERAS_3_FIT:
        return _keras_3_fit(need, versions_by_task, tensorflow, adapt)
    if not need.legacy or not modern:
        return Choice()
    if need.requirement is Requirement.FIT and len(versions_by_task) == 1 and _without(versions_by_task, "tf_keras"):
        return Choice(note=f"with one worker Keras 3 will do; for more: {_pip_tf_keras(tensorflow)}")
    _require_tf_keras(versions_by_task, tensorflow, f"{need.location} {need.reason}")
    where = "on all workers" if len(versions_by_task) > 1 else "on the worker"
    return Choice({VARIABLE: "1"}, f"legacy Keras {where} ({VARIABLE}=1): {need.location} {need.reason}")


def _needs_tensorflow(need: Need, versions_by_task: Versions, user_env: Mapping[str, str]) -> bool:
    """Return whether a script fails without TensorFlow: it imports it, or Keras with this backend.

    The script's setting takes precedence over the job's environment, which takes precedence over the hosts'.
    """
    if not need.only_keras:
        return need.tensorflow
    if need.backends:
        return all(backend == _TENSORFLOW for backend in need.backends)
    given = user_env.get(BACKEND) or need.default_backend
    if given:
        return given == _TENSORFLOW
    return any((versions.get(BACKEND) or _TENSORFLOW) == _TENSORFLOW for versions in versions_by_task.values())


def _decision(need: Need, user_env: Mapping[str, str], modern: bool) -> str | None:
    """Return the reason if legacy Keras is already chosen; empty: Keras 3 is chosen; None: no choice."""
    if need.requirement is Requirement.DECIDED:
        # With an older TensorFlow the script may not reach that line.
        return f"{need.location} {need.reason}" if need.value in _TRUE and modern else ""
    if VARIABLE in user_env:
        value = user_env[VARIABLE]
        return f"the job's environment has {VARIABLE}={value}" if value in _TRUE else ""
    return None


def _tensorflow(versions_by_task: Versions) -> str:
    """Return the version of TensorFlow on the hosts, the newest patch if they differ."""
    missing = _without(versions_by_task, "tensorflow")
    present = {task: v["tensorflow"] for task, v in versions_by_task.items() if task not in missing}
    by_minor: dict[tuple[int, ...], list[str]] = {}
    for task, version in present.items():
        by_minor.setdefault(_minor(version), []).append(task)
    if missing:
        pins = {_pip_tensorflow(version) for version in present.values()}
        pip = pins.pop() if len(pins) == 1 else "pip install tensorflow tf-keras"
        message = f"TensorFlow is not installed on {join_names(missing)}"
        raise KerasError(message, cause="the script imports it", hint=_installation(pip, versions_by_task))
    newest = max(present.values(), key=_minor)
    if len(by_minor) > 1:
        groups = (f"{'.'.join(map(str, minor))} on {join_names(tasks)}" for minor, tasks in sorted(by_minor.items()))
        raise KerasError(
            f"the hosts have different versions of TensorFlow: {'; '.join(groups)}",
            cause="workers of different versions fail together, or disagree in silence",
            hint=f"make them equal: {_pip_tensorflow(newest)}",
        )
    return newest


def _require_tf_keras(versions_by_task: Versions, tensorflow: str, cause: str) -> None:
    missing = _without(versions_by_task, "tf_keras")
    if missing:
        raise KerasError(
            f"the script needs legacy Keras, and tf-keras is not installed on {join_names(missing)}",
            cause=cause,
            hint=_installation(_pip_tf_keras(tensorflow), versions_by_task),
        )


def _keras_3_fit(need: Need, versions_by_task: Versions, tensorflow: str, adapt: bool) -> Choice:
    """Return the choice for a script that calls fit on models of `import keras`.

    Raises:
        KerasError: Keras 3 would run on several workers, and tf-keras cannot replace it.
    """
    installed = [versions.get("keras", "") for versions in versions_by_task.values()]
    modern = _minor(tensorflow) >= FIRST_WITH_KERAS_3 or any(_minor(version) >= (3,) for version in installed)
    if not modern or len(versions_by_task) < 2:
        return Choice()
    problem = f"{need.location} {need.reason}, which works with one worker only"
    if not adapt or need.only_new:
        only = f"the script uses {need.only_new}, which only Keras 3 has" if need.only_new else ""
        cause = only or "`import keras` brings Keras 3; its fit, evaluate and predict fail across workers"
        raise KerasError(problem, cause=cause, hint=KERAS_3_HINT)
    _require_tf_keras(versions_by_task, tensorflow, problem)
    note = f"`import keras` imports tf-keras on all workers (--no-adapt turns this off): {problem}"
    return Choice({VARIABLE: "1", adaptations.VARIABLE: adaptations.KERAS}, note)


def with_adaptations(choice: Choice, need: Need, tasks: int, *, adapt: bool, tf_config: str = "") -> Choice:
    """Return a choice of Keras with all other adaptations of a job's interpreters.

    Args:
        choice: The choice of Keras.
        need: The requirement of the script.
        tasks: Number of tasks.
        adapt: True to allow adaptations.
        tf_config: Name of the adaptation to a script that sets TF_CONFIG; empty: it does not.
    """
    shard = adaptations.SHARD if tasks > 1 else ""
    given = (choice.env.get(adaptations.VARIABLE), *((shard, tf_config) if adapt and need.tensorflow else ()))
    names = ",".join(filter(None, given))
    return replace(choice, env={**choice.env, adaptations.VARIABLE: names}) if names else choice


def _without(versions_by_task: Versions, package: str) -> list[str]:
    return [task for task, versions in versions_by_task.items() if not versions.get(package)]


def _minor(version: str) -> tuple[int, ...]:
    """Return ``(2, 21)`` for ``2.21.0rc1``; empty without a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _release(version: str) -> str:
    """Return the first release of a minor version, or of the newest one that has a tf-keras."""
    return ".".join(map(str, min(_minor(version), _minor(NEWEST_TF_KERAS)))) + ".0"


def _installation(pip: str, versions_by_task: Versions) -> str:
    """Return the hint to install packages, for the interpreter of all hosts if they have the same one."""
    pythons = {versions.get(_INTERPRETER, "") for versions in versions_by_task.values()}
    (python, *others) = pythons
    if others or not python or "/venvs/" in python:  # an environment of `fleet`, which changes with the requirements
        return f"install it there: {pip}"
    return f"install it there: {pip.replace('pip install', f'{shlex.quote(python)} -m pip install')}"


def _pip_tensorflow(version: str) -> str:
    tf_keras = f" tf-keras~={_release(version)}" if _minor(version) >= FIRST_WITH_KERAS_3 else ""
    return f"pip install tensorflow~={_release(version)}{tf_keras}"


def _pip_tf_keras(tensorflow: str) -> str:
    if _minor(tensorflow) <= _minor(NEWEST_TF_KERAS):
        return f"pip install tf-keras~={_release(tensorflow)}"
    return (
        f"{_pip_tensorflow(tensorflow)}; or keep TensorFlow {tensorflow} and try the newest tf-keras: "
        f"pip install --no-deps tf-keras=={NEWEST_TF_KERAS}"
    )
