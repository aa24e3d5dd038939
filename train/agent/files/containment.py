"""Check that a path or link stays inside its directory. Pure."""

import os
import posixpath


def is_inner_path(path: str) -> bool:
    """Return True if a relative path with forward slashes stays inside its directory."""
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def is_inner_link(path: str, target: str) -> bool:
    """Return True if a link at `path` points inside the directory, through no other link.

    Args:
        path: Of the link, relative to the directory.
        target: What it leads to.
    """
    steps = target.split("/")
    inner = [step for step in steps if step != ".."]
    goes_back = ".." in steps[steps.index(inner[0]) :] if inner else False
    ends = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return bool(target) and "\0" not in target and not goes_back and not ends.startswith(("/", ".."))


def inner_target(directory: str, path: str, target: str) -> str:
    """Return what a link at `path` leads to as a relative target below `directory`; empty if it leads elsewhere.

    Args:
        directory: Absolute.
        path: Of the link, relative to it.
        target: What it leads to, relative or absolute.
    """
    if target.startswith("/"):
        inside = os.path.relpath(os.path.normpath(target), os.path.normpath(directory))
        if not is_inner_path(inside):
            return ""
        target = os.path.relpath(inside, os.path.dirname(path) or ".")
    return target if is_inner_link(path, target) else ""


def contains(directory: str, path: str) -> bool:
    """Return True if a path is `directory` or below it; both are absolute and have no trailing slash."""
    return (path + "/").startswith(directory.rstrip("/") + "/")
