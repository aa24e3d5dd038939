from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import BACKUP, DATA, FIT, GANG, MODEL, READY, TF, check, findings

MODERN = {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}
WITHOUT = {"tensorflow": "2.21.0", "keras": "3.15.1"}
OLD = {"tensorflow": "2.15.1", "keras": "2.15.0"}
KERAS_3 = "import keras\n" + GANG + DATA + MODEL.replace("tf.keras", "keras") + BACKUP + FIT


def given(source: str, versions: dict[str, str] | None, workers: int = 2) -> list[str]:
    result = check(source, versions=versions, workers=workers)
    return [f"{item.rule} {item.severity.value} {item.line}" for item in result]


# --- MW601: which Keras -------------------------------------------------------------------------------------------


def test_models_of_keras_3_are_reported() -> None:
    assert given(KERAS_3, None) == ["MW601 hint 11"]
    assert given(KERAS_3, MODERN) == []
    only = KERAS_3 + "keras.ops.mean([1.0])\n"
    assert given(only, None) == ["MW601 warning 11"]
    assert given(only, MODERN) == ["MW601 error 11"]
    assert [item.severity.value for item in check(KERAS_3, adapt=False) if item.rule == "MW601"] == ["warning"]
    assert given(KERAS_3, OLD) == []
    assert given(KERAS_3, None, workers=1) == []
    assert given(KERAS_3, MODERN, workers=1) == []


def test_missing_legacy_keras_is_rejected() -> None:
    source = READY + FIT
    assert given(source, WITHOUT) == ["MW601 error 12"]
    assert "pip install tf-keras~=2.21.0" in check(source, versions=WITHOUT)[0].fix
    assert given(source, MODERN) == []
    assert given(source, OLD) == []
    assert given(source, None) == []
    assert given(TF + "tf.keras.metrics.Mean().reset_states()\n", WITHOUT) == ["MW601 error 3"]


# --- MW602: the variable ------------------------------------------------------------------------------------------

SET = "os.environ['TF_USE_LEGACY_KERAS'] = '{}'\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\n" + SET.format(1) + READY + FIT, []),
        (READY.replace("import tensorflow", SET.format(1) + "import tensorflow") + FIT, []),
        ("from tensorflow.keras import layers\n" + "import os\n" + SET.format(1) + READY + FIT, ["MW602 error 3"]),
        ("import os\nimport tensorflow.keras.models\nos.environ.update(TF_USE_LEGACY_KERAS=1)\n", []),
        ("import os\n" + SET.format(0) + READY + FIT, ["MW602 warning 2"]),
        ("import os\nos.environ.setdefault('TF_USE_LEGACY_KERAS', '0')\n" + READY + FIT, ["MW602 warning 2"]),
        ("import os\n" + SET.format(0) + GANG + "strategy.run(step)\n", []),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = chosen()\n" + READY + FIT, []),
    ],
)  # fmt: skip
def test_a_late_keras_variable_is_reported(source: str, expected: list[str]) -> None:
    assert findings(source) == expected


def test_the_keras_variable_is_checked_against_known_versions() -> None:
    source = "import os\n" + SET.format(0) + READY + FIT
    assert given(source, MODERN) == ["MW602 error 2"]
    assert given(source, OLD) == []
    assert given(source, None, workers=1) == []


# --- MW603: Estimators --------------------------------------------------------------------------------------------

ESTIMATOR = TF + "e = tf.estimator.DNNClassifier([1], [])\ntf.estimator.train_and_evaluate(e, t, v)\n"


def test_estimators_are_reported() -> None:
    assert given(ESTIMATOR, None) == ["MW603 warning 3"]
    assert given(ESTIMATOR, MODERN) == ["MW603 error 3"]
    assert given(ESTIMATOR, OLD) == []
    assert given(ESTIMATOR.replace("tf.estimator", "tf.compat.v1.estimator"), None) == ["MW603 warning 3"]
    assert given(TF + "from sklearn import estimator\nestimator.DNN()\n", None) == []


# --- MW604: TensorFlow 1 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tensorflow as tf\ntf.contrib.layers.fully_connected(x, 3)\n", ["MW604 error 2"]),
        ("import tensorflow\ntensorflow.train.GradientDescentOptimizer(0.1)\n", ["MW604 error 2"]),
        ("from tensorflow.contrib import learn\n", ["MW604 error 1"]),
        ("from tensorflow import contrib\n", ["MW604 error 1"]),
        ("import tensorflow as tf\ntf.estimator.Estimator(f)\ntf.app.run()\n", ["MW604 error 3"]),  # and no MW603
        ("import tensorflow.compat.v1 as tf\nwith tf.Session() as s:\n    tf.train.Saver()\n", []),
        ("import tensorflow as tf\ntf.train.Checkpoint()\ntf.compat.v1.Session()\ntf.keras.layers.Dense(1)\n", []),
        (
            "try:\n    import tensorflow.compat.v1 as tf\nexcept E:\n    import tensorflow as tf\ntf.app.run()\n",
            [],
        ),
    ],
)
def test_scripts_for_tensorflow_1_are_reported(source: str, expected: list[str]) -> None:
    assert given(source, MODERN) == expected
    for item in check(source, versions=MODERN):
        assert "2.15" not in item.fix
