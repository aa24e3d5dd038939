"""A stand-in for the Python package index: TensorFlow and all that it requires, as wheels of a few hundred bytes.

`pip install 'tensorflow[and-cuda]'` fetches 2.5 GB. Here pip is the real one, and so are names, versions and
requirements, those of the TensorFlow in this program's environment; but each wheel contains only the path of a
directory of links to what is installed here. So a guest imports what it has installed, and nothing else; and what it
imports is the real thing. What is not installed here, NVIDIA's libraries as a rule, is an empty wheel of the lowest
version that is good enough.

TensorFlow's wheel has a module besides, `emulated_gpus`, which plays the GPUs of a guest.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.process.train.agent.wheels import wheel

_WANTED = ("tensorflow[and-cuda]", "tf-keras", "tensorboard", "scipy>=1.13")
_GPUS = Path(__file__).with_name("images") / "emulated_gpus.py"


def build(directory: Path) -> None:
    """Make the wheels in `directory`, emptied first, and the directories of links below it, for everyone to read."""
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    for name, match in sorted(_distributions().items()):
        if isinstance(match, str):
            wheel(directory, name, match, {})
            continue
        view = directory / "installed" / name
        for place, target in _links(match):
            (view / place).parent.mkdir(parents=True, exist_ok=True)
            (view / place).symlink_to(target)
        files = {f"{name}.pth": f"{view}\n"}
        if name == "tensorflow":
            files[_GPUS.name] = _GPUS.read_text(encoding="utf-8")
            # Last in the order of names, because it imports wrapt.
            files["zz_gpus.pth"] = f'import os; "EMULATED_GPUS" in os.environ and __import__("{_GPUS.stem}")\n'
        extras = match.metadata.get_all("Provides-Extra") or ()
        wheel(directory, name, match.version, files, requires=match.requires or (), extras=extras)


def _distributions() -> dict[str, importlib.metadata.Distribution | str]:
    """Return TensorFlow with its GPU libraries, tf-keras, tensorboard, and all that these require, by name.

    Of those that are not installed here, only the lowest version that is good enough.
    """
    result: dict[str, importlib.metadata.Distribution | str] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in _WANTED]
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in asked:
            continue
        asked.add((name, extras))
        try:
            result[name] = distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            lowest = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
            if requirement.specifier:
                result.setdefault(name, next(iter(lowest), "0"))
        else:
            waiting.extend(_active(distribution.requires or (), extras))
    return result


def _active(requires: Iterable[str], extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements that hold on this computer, with these extras."""
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def _links(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Return the top-level modules of a distribution; for a directory shared by several, its content."""
    # Not its `files`: an object for each of TensorFlow's twelve thousand takes a second.
    record = [line.split(",")[0].split("/") for line in (distribution.read_text("RECORD") or "").splitlines()]
    for first in sorted({parts[0] for parts in record if _is_content(parts)}):
        place = Path(str(distribution.locate_file(first)))
        if place.is_dir() and not (place / "__init__.py").exists() and not first.endswith(".libs"):
            for second in sorted({parts[1] for parts in record if parts[0] == first}):
                yield f"{first}/{second}", place / second
        else:
            yield first, place


def _is_content(parts: Sequence[str]) -> bool:
    return parts[0] not in ("..", "__pycache__") and not parts[0].endswith((".dist-info", ".pth"))
