from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from train.errors import KerasError
from train.script.keras import (
    BACKEND,
    VARIABLE,
    Choice,
    Need,
    Requirement,
    choose,
    need_of,
    needs_of_r,
    with_adaptations,
)
from train.script.source import imports, source_of

TF = "import tensorflow as tf\n"
GANG = TF + "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
FIT = GANG + "with strategy.scope():\n    model = tf.keras.Sequential()\nmodel.fit(x, y)\n"
FITS_REASON = "calls fit under MultiWorkerMirroredStrategy, which Keras 3 cannot do with several workers"


def need_in(*texts: str | bytes) -> Need:
    """Return the requirement of a script, 0.py, and its modules."""
    contents = [text.encode() if isinstance(text, str) else text for text in texts]
    return need_of([source_of(f"{number}.py", content) for number, content in enumerate(contents)])


# --- the script ---------------------------------------------------------------------------------------------------


# A line ``=== fit`` begins a script, and names its requirement.
NEEDS = [
    case.partition("\n")[::2]
    for case in re.split(r"^=== ", Path(__file__).with_name("needs.txt").read_text(), flags=re.MULTILINE)[1:]
]


@pytest.mark.parametrize(("requirement", "source"), NEEDS)
def test_each_script_has_its_requirement(requirement: str, source: str) -> None:
    assert need_in(source).requirement.value == requirement


@pytest.mark.parametrize(
    ("texts", "location", "reason"),
    [
        ((FIT,), "0.py:5", FITS_REASON),
        ((TF + "tf.keras.optimizers.legacy.Adam()",), "0.py:2",
         "uses tf.keras.optimizers.legacy, which Keras 3 does not have"),
        ((TF + "tf.keras.optimizers.SGD(lr=1)",), "0.py:2", "uses SGD(lr=…), which Keras 3 does not have"),
        (("from tensorflow.distribute import MultiWorkerMirroredStrategy as S\nS()\n",
          "from tensorflow.keras import Sequential\n", "def run(model):\n    model.fit(1)\n"), "2.py:2", FITS_REASON),
        ((FIT, "x ="), "0.py:5", FITS_REASON),  # skipped
        (("# coding: latin-1\nname = 'é'\n" + FIT).encode("latin-1"), "0.py:7", FITS_REASON),
    ],
)  # fmt: skip
def test_the_place_and_the_reason_are_named(texts: tuple[str, ...] | bytes, location: str, reason: str) -> None:
    need = need_in(texts) if isinstance(texts, bytes) else need_in(*texts)
    assert (need.legacy, need.location, need.reason) == (True, location, reason)


@pytest.mark.parametrize("use", ["keras.ops.mean(x)", "keras.random.normal((1,))", "keras.layers.RMSNormalization()"])
def test_names_that_only_keras_3_has_are_found(use: str) -> None:
    need = need_in(f"import keras\n{GANG}{use}\nkeras.Sequential().fit(1)\n")
    assert need.requirement is Requirement.KERAS_3_FIT
    assert need.only_new
    assert use.startswith(need.only_new)


@pytest.mark.parametrize(
    ("script", "requirement"),
    [
        ("train/examples/keras_fit.py", Requirement.FIT),
        ("train/examples/generator.py", Requirement.FIT),
        ("train/examples/custom_loop.py", Requirement.ANY),
        ("tests/e2e/scripts/keras_tutorial/main.py", Requirement.FIT),
        ("tests/e2e/scripts/loop_tutorial/main.py", Requirement.OLD_NAMES),
    ],
)
def test_examples_and_tutorials(script: str, requirement: Requirement) -> None:
    path = Path(__file__).parents[4] / script
    need = need_of(imports(path, path.parent))
    assert (need.requirement, need.tensorflow) == (requirement, True)


# --- the hosts ----------------------------------------------------------------------------------------------------

Versions = Mapping[str, Mapping[str, str]]


def hosts(*tensorflow: str, tf_keras: bool = True, keras: str = "3.15.1") -> dict[str, dict[str, str]]:
    result = {}
    for index, version in enumerate(tensorflow):
        versions = {"python": "3.11.7", "tensorflow": version, "keras": keras}
        result[f"worker-{index}"] = {**versions, "tf_keras": version} if tf_keras else versions
    return result


def refused(need: Need, versions: Versions, env: Mapping[str, str] | None = None) -> KerasError:
    with pytest.raises(KerasError) as caught:
        choose(need, versions, env or {})
    return caught.value


FITS = need_in(FIT)
OLD = need_in(TF + "tf.keras.optimizers.legacy.Adam()")
KERAS_3 = need_in("import keras\n" + GANG + "keras.Sequential().fit(x)")
DECIDED = need_in('import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"\n' + FIT)
NOTHING = need_in(TF)
WITHOUT = hosts("2.21.0", "2.21.0", tf_keras=False)


def test_legacy_keras_is_chosen_for_all_with_a_note() -> None:
    choice = choose(FITS, hosts("2.21.0", "2.21.0"), {})
    assert choice.env == {VARIABLE: "1"}
    assert choice.note.startswith("legacy Keras on all workers (TF_USE_LEGACY_KERAS=1): 0.py:5 calls fit under")
    assert choose(OLD, hosts("2.16.2"), {}).env == {VARIABLE: "1"}


@pytest.mark.parametrize(
    ("need", "versions", "env"),
    [
        (NOTHING, WITHOUT, {}),
        (FITS, hosts("2.15.1", "2.15.1", tf_keras=False, keras="2.15.0"), {}),
        (OLD, hosts("2.15.1", tf_keras=False, keras="2.15.0"), {}),
        (KERAS_3, hosts("2.15.1", "2.15.1", keras="2.15.0"), {}),
        (KERAS_3, hosts("2.21.0"), {}),
        (need_in("print()"), {"worker-0": {"python": "3.11.7"}, "worker-1": {"tensorflow": "2.15.0"}}, {}),
        (DECIDED, hosts("2.21.0", "2.21.0"), {}),
        (DECIDED, hosts("2.15.1", "2.15.1", tf_keras=False), {}),
        (NOTHING, hosts("2.21.0", "2.21.3", "2.21.0rc1"), {}),
        (FITS, {}, {}),
        # The choice of the user.
        (NOTHING, hosts("2.21.0"), {VARIABLE: "1"}),
        (FITS, WITHOUT, {VARIABLE: "0"}),
        (KERAS_3, WITHOUT, {VARIABLE: ""}),
    ],
)
def test_without_a_need_no_variable_is_added(need: Need, versions: Versions, env: dict[str, str]) -> None:
    assert choose(need, versions, env) == Choice()


def test_one_worker_runs_fit_without_tf_keras_with_a_note() -> None:
    choice = choose(FITS, hosts("2.21.0", tf_keras=False), {})
    assert choice.env == {}
    assert "pip install tf-keras~=2.21.0" in choice.note


INSTALL = "install it there: pip install"
BOTH = "tensorflow~=2.21.0 tf-keras~=2.21.0"
NONE = {"python": "3.11.7"}
SPACE, OWN = "/opt/my env/bin/python", "/home/u/fleet/venvs/1a/bin/python"


def interpreters(*pythons: str) -> dict[str, dict[str, str]]:
    return {f"worker-{index}": {"interpreter": python} for index, python in enumerate(pythons)}


@pytest.mark.parametrize(
    ("need", "versions", "message", "hint"),
    [
        (FITS, {**hosts("2.21.0", "2.21.0"), "worker-1": hosts("2.21.0", tf_keras=False)["worker-0"]},
         "the script needs legacy Keras, and tf-keras is not installed on worker-1", f"{INSTALL} tf-keras~=2.21.0"),
        (OLD, hosts("2.21.0", tf_keras=False), "the script needs legacy Keras", f"{INSTALL} tf-keras~=2.21.0"),
        (KERAS_3, WITHOUT, "the script needs", f"{INSTALL} tf-keras~=2.21.0"),
        (NOTHING, hosts("2.21.0", "2.9.3", "2.21.1"),
         "the hosts have different versions of TensorFlow: 2.9 on worker-1; 2.21 on worker-0 and worker-2",
         f"make them equal: pip install {BOTH}"),
        (NOTHING, {**hosts("2.21.0"), "worker-1": NONE},
         "TensorFlow is not installed on worker-1", f"{INSTALL} {BOTH}"),
        (NOTHING, {**hosts("2.12.1"), "worker-1": NONE}, "TensorFlow is not", f"{INSTALL} tensorflow~=2.12.0"),
        (FITS, {"worker-0": {}}, "TensorFlow is not", f"{INSTALL} tensorflow tf-keras"),
        (NOTHING, interpreters(SPACE, SPACE), "TensorFlow is not",
         f"install it there: '{SPACE}' -m pip install tensorflow tf-keras"),
        (NOTHING, interpreters("/a/python", "/b/python"), "TensorFlow is not", f"{INSTALL} tensorflow tf-keras"),
        (NOTHING, interpreters(OWN, OWN), "TensorFlow is not", f"{INSTALL} tensorflow tf-keras"),
    ],
)  # fmt: skip
def test_missing_and_different_packages_are_rejected(need: Need, versions: Versions, message: str, hint: str) -> None:
    error = refused(need, versions)
    assert error.message.startswith(message)
    assert error.hint == hint
    assert error.cause


def test_import_keras_becomes_tf_keras_across_workers_unless_refused_or_impossible() -> None:
    choice = choose(KERAS_3, hosts("2.21.0", "2.21.0"), {})
    assert choice.env == {VARIABLE: "1", "FLEET_ADAPT": "keras"}
    assert "`import keras` imports tf-keras on all workers (--no-adapt turns this off): 0.py:4" in choice.note
    with pytest.raises(KerasError) as caught:
        choose(KERAS_3, hosts("2.21.0", "2.21.0"), {}, adapt=False)
    error = caught.value
    assert error.message.startswith("0.py:4 calls fit on a model of Keras 3 under MultiWorkerMirroredStrategy")
    assert "from tensorflow import keras" in error.hint
    older = refused(replace(KERAS_3, only_new="keras.ops"), hosts("2.15.1", "2.15.1", keras="3.0.0"))
    assert older.cause == "the script uses keras.ops, which only Keras 3 has"


SETS = "tf_config::task.py:3"


@pytest.mark.parametrize(
    ("chosen", "need", "tasks", "adapt", "tf_config", "expected"),
    [
        ("keras", KERAS_3, 2, True, "", "keras,shard"),
        ("", FITS, 1, True, "", ""),
        ("", FITS, 2, False, SETS, ""),
        ("", FITS, 2, True, SETS, f"shard,{SETS}"),
        ("", FITS, 1, True, SETS, SETS),
        ("", replace(FITS, tensorflow=False), 2, True, SETS, ""),
    ],
)
def test_few_files_are_divided_and_tf_config_restored_unless_turned_off_or_without_tensorflow(
    chosen: str, need: Need, tasks: int, adapt: bool, tf_config: str, expected: str
) -> None:
    choice = Choice({"FLEET_ADAPT": chosen} if chosen else {})
    result = with_adaptations(choice, need, tasks, adapt=adapt, tf_config=tf_config)
    assert result.env == ({"FLEET_ADAPT": expected} if expected else {})


@pytest.mark.parametrize("version", ["2.22.0rc0", "3.0.1"])
def test_a_tensorflow_without_tf_keras_gets_a_hint_with_releases_that_exist(version: str) -> None:
    newest = "pip install tensorflow~=2.21.0 tf-keras~=2.21.0"
    error = refused(FITS, hosts(version, version, tf_keras=False))
    assert error.hint.startswith(f"install it there: {newest}; ")
    assert error.hint.endswith("pip install --no-deps tf-keras==2.21.0")
    assert newest in choose(FITS, hosts(version, tf_keras=False), {}).note
    assert refused(FITS, hosts(version, "2.21.0")).hint == f"make them equal: {newest}"
    assert choose(FITS, hosts(version, version), {}).env == {VARIABLE: "1"}  # the forced tf-keras


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_a_choice_of_legacy_keras_needs_tf_keras(value: str) -> None:
    for version in ("2.21.0", "2.15.1"):
        error = refused(NOTHING, hosts(version, tf_keras=False), {VARIABLE: value})
        assert error.cause == f"the job's environment has TF_USE_LEGACY_KERAS={value}"
    assert refused(DECIDED, WITHOUT).cause == "0.py:2 sets TF_USE_LEGACY_KERAS itself"


# --- other backends of Keras 3 ------------------------------------------------------------------------------------

KERAS = "import keras\nkeras.Sequential().fit(x)\n"
JAX = 'import os\nos.environ["KERAS_BACKEND"] = "jax"\n'
DEFAULT = "import os\nos.environ.setdefault('KERAS_BACKEND', 'jax')\n"


@pytest.mark.parametrize(
    ("source", "env", "host", "is_refused"),
    [
        (KERAS, "", "", True),
        (KERAS, "", "tensorflow", True),
        (KERAS, "", "jax", False),
        (KERAS, "torch", "", False),
        (KERAS, "tensorflow", "jax", True),
        (JAX + KERAS, "", "", False),
        (JAX + KERAS, "tensorflow", "", False),
        (JAX.replace("jax", "tensorflow") + KERAS, "", "jax", True),
        (JAX.replace('"jax"', "choice") + KERAS, "", "", False),
        (KERAS + JAX, "", "", True),  # too late
        (DEFAULT + KERAS, "", "", False),
        (DEFAULT + KERAS, "tensorflow", "", True),
        (JAX + TF + KERAS, "", "jax", True),
        (JAX + "from keras import layers\nlayers.Dense(1)\n", "", "", False),
        ("import jax\n", "", "", False),
    ],
)
def test_tensorflow_is_required_only_by_its_import_or_as_the_backend(
    source: str, env: str, host: str, is_refused: bool
) -> None:
    versions = {f"worker-{n}": {"python": "3.12.3", "keras": "3.15.1", BACKEND: host} for n in range(2)}
    variables = {BACKEND: env} if env else {}
    if is_refused:
        message = refused(need_in(source), versions, variables).message
        assert message == "TensorFlow is not installed on worker-0 and worker-1"
    else:
        assert choose(need_in(source), versions, variables) == Choice()


# --- R scripts ----------------------------------------------------------------------------------------------------

R_FIT = """library(tensorflow)
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
model %>% fit(x, y)
"""


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        (R_FIT, Requirement.FIT),
        (R_FIT.replace("model %>% fit(", "model$fit("), Requirement.FIT),
        (R_FIT.replace("library(tensorflow)", 'library(tensorflow); x <- "#"'), Requirement.FIT),
        ("library(keras3)\n" + R_FIT, Requirement.KERAS_3_FIT),
        (R_FIT.replace("strategy", "# strategy"), Requirement.ANY),
        (R_FIT.replace("fit(x, y)", "predict_on_batch(x)"), Requirement.ANY),
        (R_FIT.replace("fit(", "refit("), Requirement.ANY),
    ],
)
def test_the_requirement_of_an_r_script(text: str, requirement: Requirement) -> None:
    need = needs_of_r(text, "task.R")
    assert (need.requirement, need.tensorflow) == (requirement, True)
    if text == R_FIT:
        assert (need.location, need.reason) == ("task.R:3", FITS_REASON)
    assert not needs_of_r("# library(tensorflow)\ncat('hello')\n", "t").tensorflow


@pytest.mark.parametrize(
    ("text", "backends"),
    [
        ('library(keras3)\nuse_backend("jax")\n', ("jax",)),
        ("keras3::use_backend( backend = 'torch' )\n", ("torch",)),
        ('Sys.setenv(KERAS_BACKEND = "jax")\nlibrary(keras3)\n', ("jax",)),
        ("library(keras3)\nuse_backend(chosen)\n", ("",)),
        ("library(keras3)\n# use_backend('jax')\n", ()),
    ],
)
def test_the_backend_of_keras_3_decides_whether_tensorflow_is_needed(text: str, backends: tuple[str, ...]) -> None:
    need = needs_of_r(text, "task.R")
    assert (need.only_keras, need.backends) == (True, backends)
    for used in ("library(tensorflow)", "x <- tensorflow::tf", "tf$constant(1)"):
        assert not needs_of_r(f"{text}{used}\n", "t").only_keras
