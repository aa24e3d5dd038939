"""Lets TensorFlow list the GPUs of the file that the variable EMULATED_GPUS names.

It plays the hardware and no more: devices that a script lists, or lets grow. They have no logical devices, so
strategies find none, and all that is computed is computed by the CPU, by TensorFlow as it is. CUDA_VISIBLE_DEVICES
hides them as it hides real ones. A .pth file imports this module at the start of each interpreter if that variable is
set.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

_STATE = "/run/emulator/driver"  # exists if the driver does not work


def visible(count: int, chosen: str | None) -> int:
    """Return how many of `count` GPUs CUDA_VISIBLE_DEVICES shows: the first word that is not one ends the list."""
    words = map(str, range(count)) if chosen is None else chosen.split(",")
    return len(list(itertools.takewhile(lambda word: word.strip().isdigit() and int(word) < count, words)))


def add_gpus(config: ModuleType) -> None:
    """Let a module of TensorFlow list GPUs, and accept settings of their memory."""
    installed = json.loads(Path(os.environ["EMULATED_GPUS"]).read_text(encoding="utf-8"))["count"]
    count = visible(0 if Path(_STATE).exists() else installed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    list_devices, grow = config.list_physical_devices, config.set_memory_growth
    kind = config.context.PhysicalDevice
    gpus = [kind(name=f"/physical_device:GPU:{number}", device_type="GPU") for number in range(count)]

    def list_physical_devices(device_type: str | None = None) -> list[Any]:
        return [*list_devices(device_type), *(gpus if device_type in (None, "GPU") else ())]

    def set_memory_growth(device: Any, enable: bool) -> None:
        if device not in gpus:
            grow(device, enable)

    vars(config).update(list_physical_devices=list_physical_devices, set_memory_growth=set_memory_growth)


register_post_import_hook(add_gpus, "tensorflow.python.framework.config")
