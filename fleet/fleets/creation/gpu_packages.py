"""Warn, before anything is paid for, of packages with which TensorFlow may not use the GPUs."""

from __future__ import annotations

from provision.model import FleetSpec
from train.agent.packages.venv import split_requirement

_TENSORFLOW = ("tensorflow", "tf-nightly")


def gpu_package_notes(spec: FleetSpec) -> tuple[str, ...]:
    """Return a sentence about the packages of instances with GPUs, if they are not the default ones.

    ``--package`` replaces the default packages, so that TensorFlow is missing, or is installed without NVIDIA's
    libraries. Source: https://www.tensorflow.org/install/pip.
    """
    if not spec.options.gpus or not spec.packages:
        return ()
    given = [(line, *split_requirement(line)) for line in spec.packages]
    if any(name in _TENSORFLOW and "and-cuda" in extras for _, name, extras in given):
        return ()
    for line, name, extras in given:
        if name in _TENSORFLOW:
            rest = line.partition("]")[2] if extras else line[len(name) :]
            complete = f"{name}[{','.join(['and-cuda', *filter(None, [extras[1:-1]])])}]{rest}"
            return (
                f"'{line}' has no libraries of NVIDIA, and TensorFlow may not find those of the image: "
                f"--package '{complete}' installs them",
            )
    if any("tensorflow" in line for line in spec.packages):
        return ()
    return ("--package replaces TensorFlow: fleet up does not check that another framework can use the GPUs",)
