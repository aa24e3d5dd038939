"""Decide how the GPUs of a host are shared by its slots; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fleet.errors import UsageError
from provision.names import index_of
from provision.quantities import counted
from train.agent.protocol.records import Gpu

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpu_share(gpus: Sequence[Gpu], slot: int, slots: int, given: Collection[str]) -> dict[str, str]:
    """The variable by which a task sees its part of its host's GPUs; empty where it sees all, or there are none.

    Args:
        gpus: Of the host.
        slot: Of the task on its host, from 0.
        slots: Tasks on the host.
        given: Names of variables that the user set, which win.

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
    """The variables of a task, for one that takes a place elsewhere: of its host's GPUs it gets its own part.

    Args:
        env: Variables of the task that tells of the job.
        gpus: Of the host that takes a place.
        slots: Names of the place of that task, and of the one that is taken.
        tasks_per_host: Tasks on each host.
    """
    shares = [gpu_share(gpus, index_of(slot) % tasks_per_host, tasks_per_host, ()) for slot in slots]
    told = env.get(GPU_VARIABLE)
    return {**env, **shares[1]} if told is not None and told == shares[0].get(GPU_VARIABLE) else dict(env)
