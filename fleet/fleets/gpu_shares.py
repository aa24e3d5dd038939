"""Decide how the slots of a host share its GPUs, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fleet.errors import UsageError
from provision.names import index_of
from provision.quantities import counted
from train.agent.protocol.records import Gpu

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpu_share(gpus: Sequence[Gpu], slot: int, slots: int, given: Collection[str]) -> dict[str, str]:
    """Return the variable that limits a task to its share of the GPUs; empty if it can use all, or if there are none.

    Args:
        gpus: GPUs of the host.
        slot: Index of the task's slot on its host, from 0.
        slots: Number of tasks on the host.
        given: Names of variables that the user set, which take precedence.

    Raises:
        UsageError: the GPUs cannot be split evenly.
    """
    if slots == 1 or not gpus or GPU_VARIABLE in given:
        return {}
    if len(gpus) % slots:
        raise UsageError(
            f"{counted(len(gpus), 'GPU')} cannot be split evenly among {slots} tasks of a host",
            hint=f"choose another --tasks-per-host, or set {GPU_VARIABLE} for all tasks with --env",
        )
    each = len(gpus) // slots
    return {GPU_VARIABLE: ",".join(str(gpu.number) for gpu in gpus[slot * each : (slot + 1) * each])}


def moved_share(
    env: Mapping[str, str], gpus: Sequence[Gpu], slots: tuple[str, str], tasks_per_host: int
) -> dict[str, str]:
    """Return the variables of a task in another slot, with that slot's share of its host's GPUs.

    Args:
        env: Variables of the task from which the job's settings are taken.
        gpus: GPUs of the host that takes over a slot.
        slots: Names of the slot of that task, and of the slot that is taken over.
        tasks_per_host: Number of tasks on each host.
    """
    shares = [gpu_share(gpus, index_of(slot) % tasks_per_host, tasks_per_host, ()) for slot in slots]
    current = env.get(GPU_VARIABLE)
    return {**env, **shares[1]} if current is not None and current == shares[0].get(GPU_VARIABLE) else dict(env)
