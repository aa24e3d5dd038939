"""A stand-in for nvidia-smi: prints what driver 580 prints for the GPUs in the file next to it.

It supports the table, and queries in CSV with ``-l``; other arguments end with a usage error, so that a missing
feature is not mistaken for an empty answer.
"""

from __future__ import annotations

import json
import os
import sys
import time

DRIVER = "580.95.05"
CUDA = "13.0"
_LINE = "+-----------------------------------------+------------------------+----------------------+"
_WIDE = "+-----------------------------------------------------------------------------------------+"
_STATE = "/run/emulator/driver"
# Exit code and output if the driver does not work, by the content of the file.
_FAILURES = {
    "absent": (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "NVIDIA driver is installed and running.\n",
    ),
    "mismatch": (
        18,
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n",
    ),
}
_UNITS = {"memory": " MiB", "utilization": " %", "power": " W"}


def gpus() -> list[dict[str, str]]:
    """Return the fields of each GPU, as ``--query-gpu`` names them."""
    with open(os.path.realpath(__file__) + ".json", encoding="utf-8") as file:  # noqa: PTH123
        properties = json.load(file)
    return [_fields(properties, number) for number in range(properties["count"])]


def _fields(properties: dict[str, str], number: int) -> dict[str, str]:
    return {
        "index": str(number),
        "name": properties["name"],
        "gpu_name": properties["name"],
        "uuid": f"GPU-5f1c3a52-{number:04x}-4d0c-9f3b-7a2e66d1c0b4",
        "pci.bus_id": f"00000000:00:{4 + number:02X}.0",
        "driver_version": DRIVER,
        "count": str(properties["count"]),
        "memory.total": properties["memory_mib"],
        "memory.used": "0",
        "memory.free": properties["memory_mib"],
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "temperature.gpu": "38",
        "power.draw": "9.27",
        "power.limit": properties["power_w"],
        "compute_cap": properties["compute_cap"],
        "compute_mode": "Default",
    }


def query(names: list[str], options: list[str], listed: list[dict[str, str]]) -> str:
    """Return the lines of ``--query-gpu=NAMES --format=csv,OPTIONS``."""
    lines = [] if "noheader" in options else [", ".join(_heading(name, options) for name in names)]
    for gpu in listed:
        lines.append(", ".join(gpu[name] + ("" if "nounits" in options else _unit(name)) for name in names))
    return "".join(f"{line}\n" for line in lines)


def _unit(name: str) -> str:
    return _UNITS.get(name.partition(".")[0], "")


def _heading(name: str, options: list[str]) -> str:
    unit = _unit(name).strip()
    return f"{name} [{unit}]" if unit and "nounits" not in options else name


def table(listed: list[dict[str, str]]) -> str:
    """Return the output without arguments."""
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y       ", time.gmtime()),
        _WIDE,
        f"| NVIDIA-SMI {DRIVER:<22} Driver Version: {DRIVER:<14} CUDA Version: {CUDA:<9}|",
        _LINE,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]
    for gpu in listed:
        power = f"{float(gpu['power.draw']):.0f}W / {float(gpu['power.limit']):4.0f}W"
        memory = f"{gpu['memory.used']}MiB / {gpu['memory.total']:>6}MiB"
        lines += [
            f"| {gpu['index']:>3}  {gpu['name']:<30} Off |   {gpu['pci.bus_id']} Off |                    0 |",
            f"| N/A   {gpu['temperature.gpu']}C    P8{power:>24} | {memory:>22} |      0%      Default |",
            "|                                         |                        |                  N/A |",
            _LINE,
        ]
    processes = (
        "Processes:",
        " GPU   GI   CI              PID   Type   Process name                        GPU Memory",
        "       ID   ID                                                               Usage     ",
    )
    lines += ["", _WIDE, *[f"| {line:<88}|" for line in processes], f"|{'=' * 89}|"]
    lines += [f"| {' No running processes found':<88}|", _WIDE]
    return "".join(f"{line}\n" for line in lines)


def _read(words: list[str]) -> tuple[list[str], list[str], float]:
    """Names, options of the format, and seconds of the loop; 0: once.

    Raises:
        ValueError: it is asked what it does not know.
    """
    names: list[str] = []
    options: list[str] = []
    loop_s = 0.0
    waiting = iter(words)
    for word in waiting:
        key, _, value = word.partition("=")
        if key == "--query-gpu":
            names = value.split(",")
        elif key == "--format":
            options = value.split(",")
        elif word in ("-l", "--loop"):
            loop_s = float(next(waiting, "5"))
        elif key == "--loop":
            loop_s = float(value)
        else:
            raise ValueError(word)
    if bool(names) != bool(options) or (options and options[0] != "csv"):
        raise ValueError(" ".join(words))
    return names, options, loop_s


def main(words: list[str]) -> int:
    """Print what is asked."""
    if os.path.exists(_STATE):  # noqa: PTH110
        with open(_STATE, encoding="ascii") as file:  # noqa: PTH123
            code, text = _FAILURES[file.read().strip()]
        sys.stdout.write(text)
        return code
    listed = gpus()
    try:
        names, options, loop_s = _read(words)
        unknown = [name for name in names if name not in _fields({**_ANY}, 0)]
        if unknown:
            raise ValueError(unknown[0])
    except ValueError as error:
        sys.stdout.write(f"Invalid combination of input arguments: {error}. Please run 'nvidia-smi -h' for help.\n")
        return 6
    if not listed:
        sys.stdout.write("No devices were found\n")
        return 6
    while True:
        sys.stdout.write(query(names, options, listed) if names else table(listed))
        sys.stdout.flush()
        if not loop_s:
            return 0
        time.sleep(loop_s)
        if names:
            options = [*options, "noheader"]


_ANY = {"name": "", "count": "1", "memory_mib": "", "power_w": "", "compute_cap": ""}

if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except (BrokenPipeError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    raise SystemExit(code)
