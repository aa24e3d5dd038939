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
    ("tf_keras", ("tf-keras", "tf_keras", "tf-keras-nightly")),
)

if __name__ == "__main__":
    versions = {"python": "%d.%d.%d" % sys.version_info[:3]}
    for module, packages in _PACKAGES:
        for package in packages:
            try:
                from importlib.metadata import version

                versions[module] = version(package)
                break
            except Exception:  # noqa: BLE001, S112 - not installed, or a Python without importlib.metadata
                continue
    directories = [path for path in sys.path if path]
    print(json.dumps({"versions": versions, "directories": directories, "hook": os.environ.get("FLEET_HOOK")}))  # noqa: T201
