"""Print the versions of an interpreter and of its packages as JSON. For Python 2.7 and later."""

import json
import os
import sys

TENSORFLOWS = (
    "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-rocm", "tensorflow-cpu-aws",
    "tensorflow-aarch64", "intel-tensorflow", "tf-nightly", "tf-nightly-cpu", "tf-nightly-gpu",
)  # fmt: skip
"""Names under which TensorFlow is installed."""
_PACKAGES = (
    ("tensorflow", TENSORFLOWS),
    ("keras", ("keras", "keras-nightly")),
    ("tf_keras", ("tf-keras", "tf-keras-nightly")),
)
_KINDS = ("dist-info", "egg-info", "egg")


def _read_version(path):  # type: (str) -> str
    """Return the version in the metadata of a package: a directory, or a file in the oldest format."""
    for name in ("/METADATA", "/PKG-INFO", ""):
        try:
            with open(path + name, "rb") as file:
                for line in file:
                    if line.lower().startswith(b"version:"):
                        return line.partition(b":")[2].strip().decode()
                    if not line.strip():  # the end of the header
                        break
        except (IOError, ValueError):  # in Python 2, open raises IOError, which is not an OSError
            continue
    return ""


def _find_versions(names):  # type: (list[str]) -> dict[str, str]
    """Return the versions of those packages of `names` that are installed.

    Like importlib.metadata, whose import takes five times as long as the start of the interpreter.
    """
    labels = {name.replace("-", "_"): name for name in names}
    versions = {}
    for directory in sys.path:
        try:
            entries = os.listdir(directory) if directory else []
        except OSError:
            continue
        for entry in entries:
            stem, _, kind = (os.path.basename(directory) if entry == "EGG-INFO" else entry).rpartition(".")
            name = labels.get(stem.partition("-")[0].lower().replace(".", "_"))
            if kind in _KINDS and name and name not in versions:
                version = _read_version(os.path.join(directory, entry))
                if version:
                    versions[name] = version
    return versions


def _main():  # type: () -> None
    installed = _find_versions([name for _, names in _PACKAGES for name in names])
    versions, pins = {"python": "%d.%d.%d" % sys.version_info[:3]}, {}
    for module, names in _PACKAGES:
        for name in names:
            if name in installed:
                versions[module], pins[module] = installed[name], name + "==" + installed[name]
                break
    answer = {
        "versions": versions,
        "pin": pins.get("tensorflow", ""),
        "base": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
        "directories": [path for path in sys.path if path],
        "hook": os.environ.get("FLEET_HOOK"),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
