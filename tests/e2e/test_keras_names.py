from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from train.script.keras import NEW_NAMES, OLD_NAMES, VARIABLE

PROBE = """
import json, sys
import tensorflow as tf
import tf_keras
def has(root, name):
    for part in name.split("."):
        try:
            root = getattr(root, part)
        except AttributeError:
            return False
    return True
names = json.loads(sys.argv[1])
print(json.dumps([[has(tf_keras, name), has(tf.keras, name)] for name in names]))
"""


@pytest.mark.e2e
@pytest.mark.slow
def test_old_names_are_in_tf_keras_and_not_in_keras_3() -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", VARIABLE: "0"}
    probe = [sys.executable, "-c", PROBE, json.dumps([*OLD_NAMES, *NEW_NAMES])]
    answer = subprocess.run(probe, env=environment, capture_output=True, text=True, check=True, timeout=120)
    by_name = dict(zip([*OLD_NAMES, *NEW_NAMES], json.loads(answer.stdout), strict=True))
    assert {name for name in NEW_NAMES if by_name.pop(name)[0]} == set()
    by_name.pop("optimizers.legacy")  # there too, to raise an error
    assert {name for name, result in by_name.items() if result != [True, False]} == set()
