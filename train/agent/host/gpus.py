"""Check that the GPUs of this host are usable, by its driver and by TensorFlow."""

from __future__ import annotations

import os
import re
import time
from typing import Dict, List, Sequence

from train.agent.host.facts import Interpreter, Probe
from train.agent.host.jobs import has_job
from train.agent.host.processes import boot_id
from train.agent.host.runner import Steps, run_quietly
from train.agent.injected import read_source
from train.agent.injected.probe import MARK
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import RESTARTING, Gpu, Refusal

DRIVER_DEADLINE_S = 600.0  # images install it at their first start
TENSORFLOW_DEADLINE_S = 180.0  # the first import from a cold disk takes a minute
RESTART_DEADLINE_S = 120.0
# The startup script of instances restarts the host if this file appears: provision/gce/api/startup.sh.
RESTART = "/run/fleet/again/restart"
_MISMATCH = "Driver/library version mismatch"
_REPLACED = "an upgrade replaced the NVIDIA driver of this host, but the kernel has the old one loaded"
_AGAIN_S = 2.0
# Of TensorFlow's own log, the time and place before each sentence; both forms are in use.
_PREFIX = re.compile(r"^(?:\d{4}-\d\d-\d\d [\d:.]+: [IWEF] |[IWEF]\d{4} [\d:.]+\s+\d+ )\S+\] ")
_REASON = re.compile(
    r"Could not load dynamic library|Cannot dlopen some GPU libraries|Could not find cuda drivers|"
    r"failed call to cuInit|does not match DSO version|driver version is insufficient|"
    r"Ignoring visible gpu device|not compatible with|no CUDA-capable device|No module named",
    re.IGNORECASE,
)
_MOST_REASONS = 3


def await_driver(probe: Probe, expected: int, steps: Steps) -> List[Gpu]:
    """Return the GPUs that nvidia-smi lists, as soon as it lists them.

    If an upgrade replaced the driver while the old one was loaded, this host is restarted once.

    Raises:
        RefusedError: fewer than `expected`, or none within ten minutes.
        ClientGoneError: the client is gone.
    """
    end = time.monotonic() + DRIVER_DEADLINE_S
    gpus = probe.gpus()
    if 0 < len(gpus) < expected:
        probe.forget("gpus")  # one may have come since
        gpus = probe.gpus()
    while not gpus:
        if _MISMATCH in probe.no_gpus_reason:
            _restart(probe, steps)
        if time.monotonic() > end:
            raise RefusedError(
                Refusal.GPU,
                f"the NVIDIA driver on this host did not come up within {DRIVER_DEADLINE_S / 60:.0f} min",
                "use an image with the NVIDIA driver, or install it: "
                "https://cloud.google.com/compute/docs/gpus/install-drivers-gpu",
                cause=probe.no_gpus_reason,
            )
        steps.report_step("waiting for the NVIDIA driver", probe.no_gpus_reason)
        steps.pause(_AGAIN_S)
        gpus = probe.gpus()
    if len(gpus) < expected:
        names = ", ".join(f"{gpu.number}: {gpu.name}" for gpu in gpus)
        raise RefusedError(
            Refusal.GPU,
            f"this host has {len(gpus)} of {expected} GPUs",
            "see nvidia-smi on the host, or start the fleet again: fleet down, then fleet up",
            cause=f"nvidia-smi lists {names}",
        )
    return gpus


def _restart(probe: Probe, steps: Steps) -> None:
    """Let root restart this host, which ends this process.

    Raises:
        RefusedError: it was restarted before without success, no startup script of fleet runs on it, or a restart
            would end a job.
        ClientGoneError: the client is gone.
    """
    restarted_in = probe.recall("restart", "")
    if has_job():
        raise RefusedError(
            Refusal.GPU,
            f"{_REPLACED}; a restart would end the job that runs on it",
            "wait for its end, or stop it; fleet up then restarts the host",
            cause=probe.no_gpus_reason,
            next_step="fleet logs -f\nfleet up",
        )
    if restarted_in in (None, boot_id()) and os.path.isdir(os.path.dirname(RESTART)):
        probe.keep("restart", "", boot_id())
        probe.save()
        with open(RESTART, "w", encoding="ascii"):
            pass
        end = time.monotonic() + RESTART_DEADLINE_S
        while time.monotonic() < end:
            steps.report_step(RESTARTING)
            steps.pause(_AGAIN_S)
    raise RefusedError(
        Refusal.GPU,
        _REPLACED,
        "restart the host: sudo reboot",
        cause=probe.no_gpus_reason,
        next_step="fleet up",
    )


def count_tensorflow_gpus(
    probe: Probe,
    interpreter: Interpreter,
    gpus: Sequence[Gpu],
    expected: int,
    environment: Dict[str, str],
    steps: Steps,
) -> int:
    """Return the number of GPUs that TensorFlow lists; cached until a package or the driver changes, or a reboot.

    Raises:
        RefusedError: fewer than `expected`.
        ClientGoneError: the client is gone.
    """
    name = f"seen by {interpreter.path}"
    key = [interpreter.stamps, [list(gpu) for gpu in gpus], boot_id()]
    cached = probe.recall(name, key)
    if isinstance(cached, int) and cached >= expected:
        return cached
    steps.report_step("checking the GPUs of TensorFlow")
    env = {**environment, "TF_CPP_MIN_LOG_LEVEL": "0", "PYTHONUNBUFFERED": "1"}
    command = [interpreter.path, "-c", read_source("probe"), "gpus"]
    end, lines = run_quietly(command, env, steps, TENSORFLOW_DEADLINE_S)
    if end is None:
        lines.append(f"it did not answer within {TENSORFLOW_DEADLINE_S:.0f} s")
    count = max((int(line[len(MARK) :]) for line in lines if line.startswith(MARK)), default=0)
    if count < expected:
        raise _gpu_error(interpreter, count, expected, lines)
    probe.keep(name, key, count)
    return count


def _gpu_error(interpreter: Interpreter, count: int, expected: int, lines: Sequence[str]) -> RefusedError:
    version = interpreter.versions.get("tensorflow", "")
    if version:
        reason = f"TensorFlow {version} on this host sees {count} of {expected} GPUs"
        hint = "install tensorflow[and-cuda] into its environment"
    else:
        reason = f"{interpreter.path} on this host has no TensorFlow that could use the GPUs"
        hint = "install tensorflow[and-cuda] there"
    return RefusedError(Refusal.GPU, reason, hint, cause=extract_reasons(lines))


def extract_reasons(lines: Sequence[str]) -> str:
    """Return why TensorFlow uses no GPU, in its own words."""
    messages = [_PREFIX.sub("", line).strip() for line in lines if line.strip() and not line.startswith(MARK)]
    causes = [message.partition(". ")[0].rstrip(".") for message in messages if _REASON.search(message)]
    if causes:
        return "; ".join(list(dict.fromkeys(causes))[:_MOST_REASONS])
    return messages[-1] if messages else ""
