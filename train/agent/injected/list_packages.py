"""Print the packages that an interpreter finds as a JSON list of NAME==VERSION, the first of each name."""

import json
import re
import sys


def _list_packages():  # type: () -> list[str]
    from importlib.metadata import distributions

    packages = {}  # type: dict[str, str]
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(re.sub("[-_.]+", "-", name).lower(), "{}=={}".format(name, distribution.version))
    return [packages[name] for name in sorted(packages)]


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path]
    print(json.dumps(_list_packages()))
