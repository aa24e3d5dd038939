"""Print which modules an interpreter cannot find, as JSON, without executing any.

The argument is a JSON list: names without dots, and directories that are searched after the interpreter's own.
"""

import json
import sys
from importlib.util import find_spec


def _is_missing(name: str) -> bool:
    try:
        return find_spec(name) is None
    except Exception:  # present, and broken
        return False


if __name__ == "__main__":
    names, directories = json.loads(sys.argv[1])
    sys.path[:] = [path for path in sys.path if path] + directories
    print(json.dumps([name for name in names if _is_missing(name)]))
