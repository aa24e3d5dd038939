from __future__ import annotations

import pytest

from train.script.keras import Requirement
from train.script.r_script import needs_of_r

FIT = """library(tensorflow)
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
model %>% fit(x, y)
"""


def test_fit_across_workers_needs_legacy_keras() -> None:
    need = needs_of_r(FIT, "task.R")
    assert (need.requirement, need.location, need.legacy) == (Requirement.FIT, "task.R:3", True)
    assert need.reason == "calls fit under MultiWorkerMirroredStrategy, which Keras 3 cannot do with several workers"
    assert needs_of_r(FIT.replace("model %>% fit(", "model$fit("), "t").requirement is Requirement.FIT
    assert needs_of_r("library(keras3)\n" + FIT, "t").requirement is Requirement.KERAS_3_FIT


@pytest.mark.parametrize(
    "text",
    [
        FIT.replace("strategy", "# strategy"),
        FIT.replace("model %>%", "# model %>%"),
        FIT.replace("fit(x, y)", "predict_on_batch(x)"),
        FIT.replace("fit(", "refit("),
    ],
)
def test_a_script_without_version_specific_names_accepts_any_keras(text: str) -> None:
    need = needs_of_r(text, "task.R")
    assert (need.requirement, need.tensorflow) == (Requirement.ANY, True)


def test_comments_and_strings_are_distinguished() -> None:
    assert (
        needs_of_r(FIT.replace("library(tensorflow)", 'library(tensorflow); x <- "#"'), "t").requirement
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
