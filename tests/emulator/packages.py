"""A stand-in for the Python package index: TensorFlow and all that it requires, as wheels of a few hundred bytes.

`pip install 'tensorflow[and-cuda]'` fetches 2.5 GB. Here pip is the real one, and so are names, versions and
requirements, those of the TensorFlow in this program's environment; but each wheel contains only the path of a
directory of links to what is installed here. So a guest imports what it has installed, and nothing else; and what it
imports is the real thing. What is not installed here, NVIDIA's libraries as a rule, is an empty wheel of the lowest
version that is good enough.

TensorFlow's wheel has a module besides, `emulated_gpus`, which plays the GPUs of a guest.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_WANTED = ("tensorflow[and-cuda]", "tf-keras", "tensorboard", "scipy>=1.13")
_GPUS = Path(__file__).with_name("images") / "emulated_gpus.py"
_CALM_DATE = (2026, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Package:
    """The content of a wheel.

    Attributes:
        name: As pip compares it.
        version: Its version.
        requires: Its requirements, in pip's words, with those of its extras.
        extras: The extras that it has.
        links: Its content: paths in a directory of packages, and the corresponding paths on this machine.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    links: tuple[tuple[str, Path], ...]


def build(directory: Path) -> None:
    """Make the wheels in `directory`, emptied first, and the directories of links below it, for everyone to read."""
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    for package in packages():
        lines = []
        if package.links:
            view = directory / "installed" / package.name
            _link(view, package.links)
            lines.append(str(view))
        files = {}
        if package.name == "tensorflow":
            files[_GPUS.name] = _GPUS.read_text(encoding="utf-8")
            lines.append(f'import os; "EMULATED_GPUS" in os.environ and __import__("{_GPUS.stem}").install()')
        if lines:
            files[f"{package.name}.pth"] = "".join(f"{line}\n" for line in lines)
        _write_wheel(directory, package, files)


def packages() -> list[Package]:
    """TensorFlow with its GPU libraries, tf-keras, tensorboard, and all that these require, in the order of names.

    Nothing where TensorFlow is not installed here.
    """
    packages_by_name: dict[str, Package] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    open_ones = [Requirement(text) for text in _WANTED]
    while open_ones:
        requirement = open_ones.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in asked:
            continue
        asked.add((name, extras))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if requirement.specifier:
                packages_by_name.setdefault(name, Package(name, _lowest(requirement), (), (), ()))
            continue
        package = _package(name, distribution)
        packages_by_name[name] = package
        open_ones.extend(_active(package.requires, extras))
    return [packages_by_name[name] for name in sorted(packages_by_name)]


def _package(name: str, distribution: importlib.metadata.Distribution) -> Package:
    return Package(
        name,
        distribution.version,
        tuple(distribution.requires or ()),
        tuple(distribution.metadata.get_all("Provides-Extra") or ()),
        tuple(_links(distribution)),
    )


def _active(requires: Iterable[str], extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements that hold on this computer, with these extras."""
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def _lowest(requirement: Requirement) -> str:
    return next(
        (specifier.version for specifier in requirement.specifier if specifier.operator in (">=", "==", "~=")), "0"
    )


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


def _link(view: Path, links: Iterable[tuple[str, Path]]) -> None:
    for place, target in links:
        link = view / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _write_wheel(directory: Path, package: Package, files: dict[str, str]) -> None:
    """Write a wheel as https://packaging.python.org/en/latest/specifications/binary-distribution-format/ has it."""
    stem = f"{package.name.replace('-', '_')}-{package.version}"
    info = f"{stem}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {package.name}", f"Version: {package.version}"]
    metadata += [f"Requires-Dist: {text}" for text in package.requires]
    metadata += [f"Provides-Extra: {text}" for text in package.extras]
    wheel = ["Wheel-Version: 1.0", "Generator: emulator", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    contents = {
        **files,
        f"{info}/METADATA": "".join(f"{line}\n" for line in metadata),
        f"{info}/WHEEL": "".join(f"{line}\n" for line in wheel),
    }
    record = [f"{name},{_hash(text)},{len(text.encode())}\n" for name, text in contents.items()]
    contents[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"])
    with zipfile.ZipFile(directory / f"{stem}-py3-none-any.whl", "w") as archive:
        for name, text in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _CALM_DATE), text)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")
