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


def _read_version(name):  # type: (str) -> str
    """Return the version of a package; empty if it is not installed."""
    try:
        try:
            from importlib import metadata
        except ImportError:  # Python 3.7, in which TensorFlow brings this
            import importlib_metadata as metadata  # type: ignore
        return metadata.version(name) or ""
    except Exception:  # not installed; or what an interrupted pip has left
        return ""


def _main():  # type: () -> None
    versions, pins = {"python": "%d.%d.%d" % sys.version_info[:3]}, {}
    for module, names in _PACKAGES:
        for name in names:
            version = _read_version(name)
            if version:
                versions[module], pins[module] = version, name + "==" + version
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
