from __future__ import annotations

import ast

import pytest

from train.script.dotted import uses


def names(source: str) -> list[str]:
    return [use.name for use in uses(ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import tensorflow as tf\ntf.keras.Model()", "tensorflow.keras.Model"),
        ("import tensorflow.compat.v2 as tf\ntf.keras.Model()", "tensorflow.keras.Model"),
        ("import tensorflow as tf\ntf.compat.v1.keras.Model()", "tensorflow.keras.Model"),
        ("import tensorflow.keras\ntensorflow.keras.Model()", "tensorflow.keras.Model"),
        ("from tensorflow import keras\nkeras.Model()", "tensorflow.keras.Model"),
        ("from tensorflow.keras import layers as l\nl.Dense", "tensorflow.keras.layers.Dense"),
        ("import tensorflow as tf\nK = tf.keras\nL = K.layers\nL.Dense", "tensorflow.keras.layers.Dense"),
        ("import tensorflow as tf\nm = tf.keras.Model()\nm.fit(1)", "tensorflow.keras.Model.fit"),
        ("from sklearn.svm import SVC\nSVC().fit(1)", "sklearn.svm.SVC.fit"),
        ("from tensorflow.keras.layers import *", "tensorflow.keras.layers.*"),
        ("try:\n  import tf_keras as k\nexcept ImportError:\n  import keras as k\nk.Model", "tf_keras.Model"),
        ("self.model.fit(1)", "?.model.fit"),
        ("from .net import model\nmodel.fit(1)", "?.fit"),
    ],
)
def test_names_are_followed_to_their_origin(source: str, name: str) -> None:
    assert name in names(source)


def test_a_use_knows_its_line_and_call() -> None:
    source = "import tensorflow as tf\nmodel = (tf\n  .keras\n  .Model(name='m'))\n"
    use = next(use for use in uses(ast.parse(source)) if use.name == "tensorflow.keras.Model")
    assert use.line == 4
    assert use.last == "Model"
    assert use.call is not None
    assert [keyword.arg for keyword in use.call.keywords] == ["name"]
    assert use.within("tensorflow.keras")
    assert not use.within("tensorflow.ker")


def test_variables_of_unknown_origin_are_not_uses() -> None:
    assert names("x = 1\nprint(x)\n") == []


def test_a_name_assigned_to_itself_gets_a_new_name() -> None:
    assert "?.a.a" in names("x = y\nx = x.a\nx = x.a\nx\n")
