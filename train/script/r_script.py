"""Find the requirement of an R script on Keras; R's packages keras and reticulate use the same library."""

from __future__ import annotations

import re

from train.agent.injected.adaptations import TF_CONFIG
from train.script.keras import Need, Requirement
from train.script.launchers import LAUNCHERS

_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|#[^\n]*""")
_STRATEGY = re.compile(r"MultiWorkerMirroredStrategy|multi_worker_mirrored_strategy|ParameterServerStrategy")
_FIT = re.compile(r"(?:\bfit|\bfit_generator|\$fit|\bevaluate|\$evaluate)\s*\(")
_KERAS_3 = re.compile(r"\b(?:library|require|requireNamespace)\s*\(\s*[\"']?keras3\b|\bkeras3::")
_ITSELF = re.compile(r"\b(?:library|require|requireNamespace)\s*\(\s*[\"']?tensorflow\b|\btensorflow::|\btf\$")
_BACKEND = re.compile(
    r"""\b(?:use_backend\s*\(\s*(?:backend\s*=\s*)?|KERAS_BACKEND\s*=\s*)(?:["'](\w*)["']|[^)\s])"""
)
"""The choice of a backend of Keras 3 in R: https://keras3.posit.co/reference/use_backend.html."""
_SETS = re.compile(r"Sys\.setenv\s*\((?:[^()]|\([^()]*\))*?\bTF_CONFIG[\"'`]?\s*=|environ\S*\bTF_CONFIG\S*\s*<-")
_READS = re.compile(rf"Sys\.getenv\s*\(\s*[\"'](?:TF_CONFIG|FLEET_\w+|{LAUNCHERS})\b")
_TENSORFLOW = re.compile(r"\btensorflow\b|\bkeras3?\b|\btf\$")


def needs_of_r(text: str, name: str) -> Need:
    """Return the requirement of the R script `name` on Keras, with the backends that it chooses."""
    code = _COMMENT.sub(lambda item: item[1] or "", text)
    if not _TENSORFLOW.search(code):
        return Need(Requirement.ANY, tensorflow=False)
    backends = tuple(item[1] or "" for item in _BACKEND.finditer(code))
    strategy, fit = _STRATEGY.search(code), _FIT.search(code)
    if _KERAS_3.search(code) and strategy is None and not _ITSELF.search(code):
        return Need(Requirement.ANY, only_keras=True, backends=backends)
    if strategy is None or fit is None:
        return Need(Requirement.ANY)
    line = code.count("\n", 0, fit.start()) + 1
    if _KERAS_3.search(code):
        reason = f"calls fit on a model of Keras 3 under {strategy[0]}"
        return Need(Requirement.KERAS_3_FIT, reason, name, line, only_new="the package keras3")
    reason = f"calls fit under {strategy[0]}, which Keras 3 cannot do with several workers"
    return Need(Requirement.FIT, reason, name, line)


def tf_config_of_r(text: str, name: str) -> str:
    """Return the name of the adaptation to an R script that sets TF_CONFIG; empty: it does not, or uses the job's."""
    code = _COMMENT.sub(lambda item: item[1] or "", text)
    setting = _SETS.search(code)
    if setting is None or _READS.search(code, 0, setting.start()):
        return ""
    return f"{TF_CONFIG}::{name}:{code.count(chr(10), 0, setting.start()) + 1}"
