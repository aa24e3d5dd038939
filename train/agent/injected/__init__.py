"""Code that the agent runs in other interpreters of a host: a task's, or one that it inspects.

Each module is read as text, and runs without the agent on every version of Python that a host may have; see its
docstring. It does nothing if it is imported.
"""

import os


def read_source(name: str) -> str:
    """Return the source of a module of this package, from a directory or from the agent's archive."""
    path = os.path.join(os.path.dirname(__file__), name + ".py")
    return __spec__.loader.get_data(path).decode()  # type: ignore[union-attr, no-any-return]
