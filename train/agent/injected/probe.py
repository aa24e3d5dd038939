"""Print what an interpreter finds as JSON, in the last line. For Python 2.7 and later, as far as versions go.

The arguments are a question and its argument:

- ``versions``: of the interpreter, and of TensorFlow and Keras.
- ``missing``: the modules that cannot be found, without executing any. The argument is a JSON list: names without
  dots, and directories that are searched after the interpreter's own.
- ``packages``: a list of NAME==VERSION, the first of each name.
- ``gpus``: the number of GPUs that TensorFlow lists, after `MARK`.
"""

import json
import os
import re
import sys

TENSORFLOWS = (
    "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-rocm", "tensorflow-cpu-aws",
    "tensorflow-aarch64", "intel-tensorflow", "tf-nightly", "tf-nightly-cpu", "tf-nightly-gpu",
)  # fmt: skip
"""Names under which TensorFlow is installed."""
MARK = "fleet-gpus "
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


def _read_versions():  # type: () -> dict[str, object]
    versions, pins = {"python": "%d.%d.%d" % sys.version_info[:3]}, {}
    for module, names in _PACKAGES:
        for name in names:
            version = _read_version(name)
            if version:
                versions[module], pins[module] = version, name + "==" + version
                break
    return {
        "versions": versions,
        "pin": pins.get("tensorflow", ""),
        "base": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
        "directories": [path for path in sys.path if path],
        "hook": os.environ.get("FLEET_HOOK"),
    }


def _is_missing(name):  # type: (str) -> bool
    from importlib.util import find_spec

    try:
        return find_spec(name) is None
    except Exception:  # present, and broken
        return False


def _list_packages():  # type: () -> list[str]
    from importlib.metadata import distributions

    packages = {}  # type: dict[str, str]
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(re.sub("[-_.]+", "-", name).lower(), "{}=={}".format(name, distribution.version))
    return [packages[name] for name in sorted(packages)]


if __name__ == "__main__":
    question = sys.argv[1]
    sys.path[:] = [path for path in sys.path if path]
    if question == "versions":
        print(json.dumps(_read_versions()))
    elif question == "missing":
        names, directories = json.loads(sys.argv[2])
        sys.path += directories
        print(json.dumps([name for name in names if _is_missing(name)]))
    elif question == "packages":
        print(json.dumps(_list_packages()))
    else:
        import tensorflow

        print("\n" + MARK + "%d" % len(tensorflow.config.list_physical_devices("GPU")))
