"""Lets TensorFlow list the GPUs of the file that the variable EMULATED_GPUS names.

It plays the hardware and no more: devices that a script lists, shows, hides or lets grow, by the functions of
`tf.config` for physical devices. There is no logical device behind them, so strategies find none, and all that is
computed is computed by the CPU, by TensorFlow as it is. CUDA_VISIBLE_DEVICES hides them as it hides real ones.

A .pth file installs it at the start of each interpreter, where that variable is set.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_STATE = "/run/emulator/driver"  # exists if the driver does not work
_MODULE = "tensorflow.python.framework.config"


def visible(count: int, chosen: str | None) -> int:
    """Return the number of visible GPUs.

    Args:
        count: How many there are.
        chosen: CUDA_VISIBLE_DEVICES.
    """
    if chosen is None:
        return count
    seen = 0
    for word in chosen.split(","):
        # As CUDA does it: the first that is none ends the list.
        if not word.strip().isdigit() or int(word) >= count:
            break
        seen += 1
    return seen


class Gpus:
    """Emulated GPUs, and what a script has set of them.

    Args:
        config: TensorFlow's module of devices, as it is.
        count: How many can be seen.
        details: TensorFlow's details of each.
    """

    def __init__(self, config: ModuleType, count: int, details: dict[str, Any]) -> None:
        self._real: dict[str, Callable[..., Any]] = {name: getattr(config, name) for name in self.NAMES}
        device = config.context.PhysicalDevice
        self._all = [device(name=f"/physical_device:GPU:{n}", device_type="GPU") for n in range(count)]
        self._visible = list(self._all)
        self._growth = dict.fromkeys(self._all, False)
        self._logical: dict[Any, Any] = {}
        self._details = details

    NAMES = (
        "list_physical_devices",
        "get_visible_devices",
        "set_visible_devices",
        "get_memory_growth",
        "set_memory_growth",
        "get_device_details",
        "get_logical_device_configuration",
        "set_logical_device_configuration",
    )

    def list_physical_devices(self, device_type: str | None = None) -> list[Any]:
        return [*self._real["list_physical_devices"](device_type), *self._of(self._all, device_type)]

    def get_visible_devices(self, device_type: str | None = None) -> list[Any]:
        return [*self._real["get_visible_devices"](device_type), *self._of(self._visible, device_type)]

    def set_visible_devices(self, devices: Any, device_type: str | None = None) -> None:
        wanted = [devices] if hasattr(devices, "device_type") else list(devices)
        if device_type in (None, "GPU"):
            self._visible = [device for device in wanted if device in self._all]
        if device_type != "GPU" or any(device not in self._all for device in wanted):
            self._real["set_visible_devices"]([device for device in wanted if device not in self._all], device_type)

    def get_memory_growth(self, device: Any) -> Any:
        return self._growth[device] if device in self._all else self._real["get_memory_growth"](device)

    def set_memory_growth(self, device: Any, enable: bool) -> None:
        if device in self._all:
            self._growth[device] = enable
        else:
            self._real["set_memory_growth"](device, enable)

    def get_device_details(self, device: Any) -> Any:
        if device in self._all:
            return dict(self._details)
        return self._real["get_device_details"](device)

    def get_logical_device_configuration(self, device: Any) -> Any:
        if device in self._all:
            return self._logical.get(device)
        return self._real["get_logical_device_configuration"](device)

    def set_logical_device_configuration(self, device: Any, logical_devices: Any) -> None:
        if device in self._all:
            self._logical[device] = logical_devices
        else:
            self._real["set_logical_device_configuration"](device, logical_devices)

    @staticmethod
    def _of(devices: list[Any], device_type: str | None) -> list[Any]:
        return list(devices) if device_type in (None, "GPU") else []


class _Loader(importlib.abc.Loader):
    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        properties = json.loads(Path(os.environ["EMULATED_GPUS"]).read_text(encoding="utf-8"))
        details = {
            "device_name": properties["name"],
            "compute_capability": tuple(int(part) for part in properties["compute_cap"].split(".")),
        }
        count = 0 if Path(_STATE).exists() else properties["count"]
        gpus = Gpus(module, visible(count, os.environ.get("CUDA_VISIBLE_DEVICES")), details)
        for name in Gpus.NAMES:
            setattr(module, name, getattr(gpus, name))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Wait for TensorFlow to be imported."""
    sys.meta_path.insert(0, _Finder())
