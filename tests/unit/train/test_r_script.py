from __future__ import annotations

import pytest

from train.keras import Verdict
from train.r_script import needs_of_r

FIT = """library(tensorflow)
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
model %>% fit(x, y)
"""


def test_fit_across_workers_needs_legacy_keras() -> None:
    need = needs_of_r(FIT, "task.R")
    assert (need.verdict, need.place, need.legacy) == (Verdict.FIT, "task.R:3", True)
    assert need.reason == "calls fit under MultiWorkerMirroredStrategy, which Keras 3 cannot do with several workers"
    assert needs_of_r(FIT.replace("model %>% fit(", "model$fit("), "t").verdict is Verdict.FIT
    assert needs_of_r("library(keras3)\n" + FIT, "t").verdict is Verdict.KERAS_3_FIT


@pytest.mark.parametrize(
    "text",
    [
        FIT.replace("strategy", "# strategy"),
        FIT.replace("model %>%", "# model %>%"),
        FIT.replace("fit(x, y)", "predict_on_batch(x)"),
        FIT.replace("fit(", "refit("),
    ],
)
def test_any_keras_will_do(text: str) -> None:
    need = needs_of_r(text, "task.R")
    assert (need.verdict, need.tensorflow) == (Verdict.ANY, True)


def test_comments_and_strings_are_told_apart() -> None:
    assert needs_of_r(FIT.replace("library(tensorflow)", 'library(tensorflow); x <- "#"'), "t").verdict is Verdict.FIT
    assert not needs_of_r("# library(tensorflow)\ncat('hello')\n", "t").tensorflow
