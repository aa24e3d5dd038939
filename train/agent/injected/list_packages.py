"""Print where an interpreter finds packages, and the versions of the packages in its arguments, as JSON."""

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version

if __name__ == "__main__":
    pins = []
    for name in sys.argv[1:]:
        try:
            pins.append(name + "==" + version(name))
        except PackageNotFoundError:
            continue
    parents = ("site-packages", "dist-packages")
    directories = [path for path in sys.path if os.path.basename(path) in parents and os.path.isdir(path)]
    real = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    print(json.dumps({"real": real, "directories": directories, "pins": pins}))  # noqa: T201
