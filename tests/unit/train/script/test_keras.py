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
    needs_legacy,
    needs_of_r,
    with_adaptations,
)
from train.script.source import imports

TF = "import tensorflow as tf\n"
GANG = TF + "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
MODEL = "with strategy.scope():\n    model = tf.keras.Sequential()\n"
FIT = GANG + MODEL + "model.fit(x, y)\n"
SETTING = 'import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"\n'


def need_of(source: str) -> Need:
    return needs_legacy({"task.py": source.encode()})


# --- the script ---------------------------------------------------------------------------------------------------


# A line ``=== fit`` begins a script, and names its requirement.
NEEDS = [
    case.partition("\n")[::2]
    for case in re.split(r"^=== ", Path(__file__).with_name("needs.txt").read_text(), flags=re.MULTILINE)[1:]
]


@pytest.mark.parametrize(("requirement", "source"), NEEDS)
def test_each_script_has_its_requirement(requirement: str, source: str) -> None:
    assert need_of(source).requirement.value == requirement


def test_the_place_and_the_reason_are_named() -> None:
    need = need_of(FIT)
    assert need.legacy
    assert need.location == "task.py:5"
    assert need.reason == "calls fit under MultiWorkerMirroredStrategy, which Keras 3 cannot do with several workers"
    old = need_of(TF + "tf.keras.optimizers.legacy.Adam()")
    assert old.legacy
    assert (old.line, old.reason) == (2, "uses tf.keras.optimizers.legacy, which Keras 3 does not have")
    assert need_of(TF + "tf.keras.optimizers.SGD(lr=1)").reason.startswith("uses SGD(lr=…), ")


def test_strategy_model_and_fit_may_be_in_different_modules() -> None:
    need = needs_legacy(
        {
            "main.py": b"import net, loop\nfrom tensorflow.distribute import MultiWorkerMirroredStrategy as S\nS()\n",
            "net.py": b"from tensorflow.keras import Sequential\n",
            "loop.py": b"def run(model):\n    model.fit(1)\n",
        }
    )
    assert (need.requirement, need.location) == (Requirement.FIT, "loop.py:2")


def test_a_module_that_does_not_compile_is_skipped() -> None:
    assert needs_legacy({"task.py": FIT.encode(), "other.py": b"x ="}).requirement is Requirement.FIT


def test_a_source_is_read_in_its_own_encoding() -> None:
    source = "# coding: latin-1\n" + FIT + "name = 'é'\n"
    assert needs_legacy({"task.py": source.encode("latin-1")}).requirement is Requirement.FIT


# --- the hosts ----------------------------------------------------------------------------------------------------


def hosts(*tensorflow: str, tf_keras: bool = True, keras: str = "3.15.1") -> dict[str, dict[str, str]]:
    result = {}
    for index, version in enumerate(tensorflow):
        versions = {"python": "3.11.7", "tensorflow": version, "keras": keras}
        result[f"worker-{index}"] = {**versions, "tf_keras": version} if tf_keras else versions
    return result


def refused(
    need: Need, versions: Mapping[str, Mapping[str, str]], env: Mapping[str, str] | None = None
) -> KerasError:
    with pytest.raises(KerasError) as caught:
        choose(need, versions, env or {})
    return caught.value


FITS = need_of(FIT)
OLD = need_of(TF + "tf.keras.optimizers.legacy.Adam()")
KERAS_3 = need_of("import keras\n" + GANG + "keras.Sequential().fit(x)")
DECIDED = need_of(SETTING + FIT)
NOTHING = need_of(TF)


def test_legacy_keras_is_chosen_for_all_with_a_note() -> None:
    choice = choose(FITS, hosts("2.21.0", "2.21.0"), {})
    assert choice.env == {VARIABLE: "1"}
    assert choice.note.startswith("legacy Keras on all workers (TF_USE_LEGACY_KERAS=1): task.py:5 calls fit under")
    assert choose(OLD, hosts("2.16.2"), {}).env == {VARIABLE: "1"}


@pytest.mark.parametrize(
    ("need", "versions"),
    [
        (NOTHING, hosts("2.21.0", "2.21.0", tf_keras=False)),
        (FITS, hosts("2.15.1", "2.15.1", tf_keras=False, keras="2.15.0")),
        (OLD, hosts("2.15.1", tf_keras=False, keras="2.15.0")),
        (KERAS_3, hosts("2.15.1", "2.15.1", keras="2.15.0")),
        (KERAS_3, hosts("2.21.0")),
        (need_of("print()"), {"worker-0": {"python": "3.11.7"}, "worker-1": {"tensorflow": "2.15.0"}}),
        (DECIDED, hosts("2.21.0", "2.21.0")),
        (DECIDED, hosts("2.15.1", "2.15.1", tf_keras=False)),
        (NOTHING, hosts("2.21.0", "2.21.3", "2.21.0rc1")),
        (FITS, {}),
    ],
)
def test_without_a_need_no_variable_is_added(need: Need, versions: Mapping[str, Mapping[str, str]]) -> None:
    assert choose(need, versions, {}) == Choice()


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
        (KERAS_3, hosts("2.21.0", "2.21.0", tf_keras=False), "the script needs", f"{INSTALL} tf-keras~=2.21.0"),
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
def test_missing_and_different_packages_are_rejected(
    need: Need, versions: Mapping[str, Mapping[str, str]], message: str, hint: str
) -> None:
    error = refused(need, versions)
    assert error.message.startswith(message)
    assert error.hint == hint
    assert error.cause


def test_import_keras_becomes_tf_keras_across_workers() -> None:
    choice = choose(KERAS_3, hosts("2.21.0", "2.21.0"), {})
    assert choice.env == {VARIABLE: "1", "FLEET_ADAPT": "keras"}
    assert "`import keras` imports tf-keras on all workers (--no-adapt turns this off): task.py:4" in choice.note


def test_keras_3_across_workers_is_rejected_without_adaptations_or_with_names_of_keras_3() -> None:
    with pytest.raises(KerasError) as caught:
        choose(KERAS_3, hosts("2.21.0", "2.21.0"), {}, adapt=False)
    error = caught.value
    assert error.message.startswith("task.py:4 calls fit on a model of Keras 3 under MultiWorkerMirroredStrategy")
    assert "from tensorflow import keras" in error.hint
    new = replace(KERAS_3, only_new="keras.ops")
    older = refused(new, hosts("2.15.1", "2.15.1", keras="3.0.0"))
    assert older.cause == "the script uses keras.ops, which only Keras 3 has"


@pytest.mark.parametrize("use", ["keras.ops.mean(x)", "keras.random.normal((1,))", "keras.layers.RMSNormalization()"])
def test_names_that_only_keras_3_has_are_found(use: str) -> None:
    source = f"import keras\nimport tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n{use}\n"
    need = needs_legacy({"task.py": (source + "keras.Sequential().fit(1)\n").encode()})
    assert need.requirement is Requirement.KERAS_3_FIT
    assert use.startswith(need.only_new)
    assert need.only_new


SETTING_TF_CONFIG = "tf_config::task.py:3"
WITHOUT_TENSORFLOW = replace(FITS, tensorflow=False)


@pytest.mark.parametrize(
    ("chosen", "need", "tasks", "adapt", "tf_config", "expected"),
    [
        ("", FITS, 2, True, "", "shard"),
        ("keras", KERAS_3, 2, True, "", "keras,shard"),
        ("", FITS, 1, True, "", ""),
        ("", FITS, 2, False, SETTING_TF_CONFIG, ""),
        ("", FITS, 2, True, SETTING_TF_CONFIG, f"shard,{SETTING_TF_CONFIG}"),
        ("", FITS, 1, True, SETTING_TF_CONFIG, SETTING_TF_CONFIG),
        ("", WITHOUT_TENSORFLOW, 2, True, SETTING_TF_CONFIG, ""),
    ],
)
def test_few_files_are_divided_and_tf_config_restored_unless_turned_off_or_without_tensorflow(
    chosen: str, need: Need, tasks: int, adapt: bool, tf_config: str, expected: str
) -> None:
    choice = Choice({"FLEET_ADAPT": chosen} if chosen else {})
    result = with_adaptations(choice, need, tasks, adapt=adapt, tf_config=tf_config)
    assert result.env == ({"FLEET_ADAPT": expected} if expected else {})


@pytest.mark.parametrize("version", ["2.22.0rc0", "2.22.0", "3.0.1"])
def test_a_tensorflow_without_tf_keras_gets_a_hint_with_releases_that_exist(version: str) -> None:
    newest = "pip install tensorflow~=2.21.0 tf-keras~=2.21.0"
    forced = "pip install --no-deps tf-keras==2.21.0"
    error = refused(FITS, hosts(version, version, tf_keras=False))
    assert error.hint.startswith(f"install it there: {newest}; ")
    assert error.hint.endswith(forced)
    assert newest in choose(FITS, hosts(version, tf_keras=False), {}).note
    assert refused(FITS, hosts(version, "2.21.0")).hint == f"make them equal: {newest}"
    assert choose(FITS, hosts(version, version), {}).env == {VARIABLE: "1"}  # the forced tf-keras


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_the_choice_of_the_user_is_kept_and_needs_tf_keras(value: str) -> None:
    assert choose(NOTHING, hosts("2.21.0"), {VARIABLE: value}) == Choice()
    for version in ("2.21.0", "2.15.1"):
        error = refused(NOTHING, hosts(version, tf_keras=False), {VARIABLE: value})
        assert error.cause == f"the job's environment has TF_USE_LEGACY_KERAS={value}"


def test_the_refusal_of_the_user_is_kept_and_the_choice_of_the_script_needs_tf_keras() -> None:
    versions = hosts("2.21.0", "2.21.0", tf_keras=False)
    assert choose(FITS, versions, {VARIABLE: "0"}) == Choice()
    assert choose(KERAS_3, versions, {VARIABLE: ""}) == Choice()
    assert refused(DECIDED, versions).cause == "task.py:2 sets TF_USE_LEGACY_KERAS itself"


# --- the shipped scripts, the installed packages --------------------------------------------------------------------

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "train" / "examples"
TUTORIALS = ROOT / "tests" / "e2e" / "scripts"


@pytest.mark.parametrize(
    ("script", "requirement"),
    [
        (EXAMPLES / "keras_fit.py", Requirement.FIT),
        (EXAMPLES / "generator.py", Requirement.FIT),
        (EXAMPLES / "custom_loop.py", Requirement.ANY),
        (TUTORIALS / "keras_tutorial" / "main.py", Requirement.FIT),
        (TUTORIALS / "loop_tutorial" / "main.py", Requirement.OLD_NAMES),
    ],
)
def test_shipped_scripts_give_no_finding(script: Path, requirement: Requirement) -> None:
    need = needs_legacy({path.name: path.read_bytes() for path in imports(script, script.parent)})
    assert need.requirement is requirement
    assert need.tensorflow


# --- other backends of Keras 3 ------------------------------------------------------------------------------------

KERAS = "import keras\nkeras.Sequential().fit(x)\n"
JAX = 'import os\nos.environ["KERAS_BACKEND"] = "jax"\n'


@pytest.mark.parametrize(
    ("source", "env", "host", "refused"),
    [
        (KERAS, {}, "", True),
        (KERAS, {}, "tensorflow", True),
        (KERAS, {}, "jax", False),
        (KERAS, {"KERAS_BACKEND": "torch"}, "", False),
        (KERAS, {"KERAS_BACKEND": "tensorflow"}, "jax", True),
        (JAX + KERAS, {}, "", False),
        (JAX + KERAS, {"KERAS_BACKEND": "tensorflow"}, "", False),
        (JAX.replace("jax", "tensorflow") + KERAS, {}, "jax", True),
        (JAX.replace('"jax"', "choice") + KERAS, {}, "", False),
        (KERAS + JAX, {}, "", True),  # too late
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'jax')\n" + KERAS, {}, "", False),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'jax')\n" + KERAS, {BACKEND: "tensorflow"}, "", True),
        (JAX + TF + KERAS, {}, "jax", True),
        (JAX + "from keras import layers\nlayers.Dense(1)\n", {}, "", False),
        ("import jax\n", {}, "", False),
    ],
)
def test_tensorflow_is_required_only_by_its_import_or_as_the_backend(
    source: str, env: dict[str, str], host: str, refused: bool
) -> None:
    versions = {f"worker-{n}": {"python": "3.12.3", "keras": "3.15.1", BACKEND: host} for n in range(2)}
    if refused:
        with pytest.raises(KerasError, match="TensorFlow is not installed on worker-0 and worker-1"):
            choose(need_of(source), versions, env)
    else:
        assert choose(need_of(source), versions, env) == Choice()


# --- R scripts ----------------------------------------------------------------------------------------------------

R_FIT = """library(tensorflow)
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
model %>% fit(x, y)
"""


def test_fit_across_workers_needs_legacy_keras() -> None:
    need = needs_of_r(R_FIT, "task.R")
    assert (need.requirement, need.location, need.legacy) == (Requirement.FIT, "task.R:3", True)
    assert need.reason == "calls fit under MultiWorkerMirroredStrategy, which Keras 3 cannot do with several workers"
    assert needs_of_r(R_FIT.replace("model %>% fit(", "model$fit("), "t").requirement is Requirement.FIT
    assert needs_of_r("library(keras3)\n" + R_FIT, "t").requirement is Requirement.KERAS_3_FIT


@pytest.mark.parametrize(
    "text",
    [
        R_FIT.replace("strategy", "# strategy"),
        R_FIT.replace("model %>%", "# model %>%"),
        R_FIT.replace("fit(x, y)", "predict_on_batch(x)"),
        R_FIT.replace("fit(", "refit("),
    ],
)
def test_a_script_without_version_specific_names_accepts_any_keras(text: str) -> None:
    need = needs_of_r(text, "task.R")
    assert (need.requirement, need.tensorflow) == (Requirement.ANY, True)


def test_comments_and_strings_are_distinguished() -> None:
    assert (
        needs_of_r(R_FIT.replace("library(tensorflow)", 'library(tensorflow); x <- "#"'), "t").requirement
        is Requirement.FIT
    )
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
