"""A stand-in for nvidia-smi: prints what driver 580 prints for the GPUs in the file next to it.

It supports queries in CSV with ``-l``; without arguments, it prints a list as ``-L`` does. Other arguments end with a
usage error, so that a missing feature is not mistaken for an empty answer.
"""

from __future__ import annotations

import json
import os
import sys
import time

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
    return [
        {
            "index": str(number),
            "name": properties["name"],
            "uuid": f"GPU-5f1c3a52-{number:04x}-4d0c-9f3b-7a2e66d1c0b4",
            "driver_version": "580.95.05",
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
        }
        for number in range(properties["count"])
    ]


def report(words: list[str], listed: list[dict[str, str]]) -> tuple[str, str, float]:
    """Return the header and the lines of what the arguments ask, and the seconds of the loop; 0: once.

    Raises:
        ValueError: a feature is missing.
    """
    if not words:
        return "", "".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n" for gpu in listed), 0.0
    given = dict(word.split("=", 1) for word in words if word.startswith("--"))
    names, options = given.pop("--query-gpu").split(","), given.pop("--format").split(",")
    loop = words[words.index("-l") :][:2] if "-l" in words else []
    if given or len(words) != 2 + len(loop) or not set(names) <= set(listed[0]):
        raise ValueError(" ".join(words))
    units = {name: "" if "nounits" in options else _UNITS.get(name.partition(".")[0], "") for name in names}
    header = "" if "noheader" in options else f"{', '.join(names)}\n"
    lines = "".join(", ".join(gpu[name] + unit for name, unit in units.items()) + "\n" for gpu in listed)
    return header, lines, float(loop[1]) if loop else 0.0


def main(words: list[str]) -> int:
    """Print what is asked."""
    if os.path.exists(_STATE):  # noqa: PTH110
        with open(_STATE, encoding="ascii") as file:  # noqa: PTH123
            code, text = _FAILURES[file.read().strip()]
        sys.stdout.write(text)
        return code
    listed = gpus()
    if not listed:
        sys.stdout.write("No devices were found\n")
        return 6
    try:
        header, lines, loop_s = report(words, listed)
    except (LookupError, ValueError) as error:
        sys.stdout.write(f"Invalid combination of input arguments: {error}. Please run 'nvidia-smi -h' for help.\n")
        return 6
    sys.stdout.write(header)
    while True:
        sys.stdout.write(lines)
        sys.stdout.flush()
        if not loop_s:
            return 0
        time.sleep(loop_s)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except (BrokenPipeError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    raise SystemExit(code)
