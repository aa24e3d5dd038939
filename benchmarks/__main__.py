"""`./scripts/bench [NAME...]`: measure fleet and its peers in one run."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.document import write_document
from benchmarks.groups import NAMES
from benchmarks.harness import peers
from benchmarks.harness.model import GroupResult, from_json, to_json, verdicts
from benchmarks.harness.session import FAILURES, SIZES, Session
from benchmarks.harness.text import limit, outcome, subject, value

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"


def main() -> int:
    """Run the groups; save and print their results."""
    options = _options()
    results = from_json(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}
    is_saved = options.size != "quick" and not options.only
    if options.names or not options.write:
        measured = {}
        session = (options.names or list(NAMES), options.size, options.only)
        for result in _measure(*session, install=options.install):
            measured[result.name] = results[result.name] = result
            if is_saved:  # after each group, because a later one may be interrupted
                RESULTS.write_text(json.dumps(to_json(results), indent=1) + "\n")
        print("\n".join(_summary(measured)))
        if not is_saved:
            return int(any(result.problem for result in measured.values()))
        print(f"saved to {RESULTS.relative_to(ROOT)}")
    if options.write:
        print("written: " + ", ".join(str(path.relative_to(ROOT)) for path in write_document(results, ROOT / "docs")))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure fleet and its peers in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"groups to run [default: all]: {', '.join(NAMES)}")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="make only measurements with this in their titles; saves nothing"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="smoke test; saves nothing")
    size.add_argument("--full", dest="size", action="store_const", const="full", help="more rounds and 1 GB of data")
    parser.add_argument(
        "--write", action="store_true", help="write docs/performance.md; without NAME, from the saved results"
    )
    parser.add_argument(
        "--no-install", dest="install", action="store_false", help="leave out peers that are not installed"
    )
    parser.set_defaults(size="default")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"unknown group {unknown[0]}; groups: {', '.join(NAMES)}")
    return options


def _measure(names: list[str], size: str, only: str, *, install: bool) -> Iterator[GroupResult]:
    """Run groups one after the other; a failed group does not end the run."""
    assert size in SIZES
    if install and size != "quick":
        for failure in peers.install():
            print(f"! {failure}", flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for commands in the background
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    commit = _commit()
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as name:
        root = Path(name).resolve()
        root.chmod(0o755)
        session = Session(root, size, only)
        try:
            for group in names:
                yield _run_group(session, group, commit)
        except KeyboardInterrupt:
            print("interrupted; deleting the hosts", flush=True)
            raise SystemExit(130) from None
        finally:
            session.close()


def _run_group(session: Session, name: str, commit: str) -> GroupResult:
    module = importlib.import_module(f"benchmarks.groups.{name}")
    print(f"{name}: {module.TITLE}", flush=True)
    session.begin()
    begin, problem = time.monotonic(), ""
    try:
        module.measure(session)
    except (peers.MissingError, *FAILURES) as error:
        problem = f"{type(error).__name__}: {error}"
        print(f"  ! {problem}", flush=True)
    finally:
        session.finish()
    return GroupResult(
        name=name,
        date=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        machine=_machine(),
        commit=commit,
        size=session.size,
        accounting=session.accounting,
        seconds=time.monotonic() - begin,
        scenes=tuple(session.scenes),
        problem=problem,
    )


def _machine() -> str:
    """Return cores, memory, system, interpreter, and the file system of the hosts' files."""
    import os

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "") if sys.platform == "linux" else ""
    ssh = subprocess.run(["ssh", "-V"], check=False, capture_output=True, text=True).stderr.split(",")[0]
    python = platform.python_version()
    kind = ["findmnt", "--noheadings", "--output=FSTYPE", f"--target={tempfile.gettempdir()}"]
    files = subprocess.run(kind, check=False, capture_output=True, text=True).stdout.strip()
    versions = f"{system}, Linux {platform.release()}, Python {python}, {ssh}"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {versions}, files on {files or 'an unknown file system'}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def _summary(results: dict[str, GroupResult]) -> list[str]:
    """Return a table of all goals."""
    rows = []
    for name, result in results.items():
        for scene in result.scenes:
            rows += [
                (name, scene.title, subject(verdict), value(verdict), limit(verdict), outcome(verdict))
                for verdict in verdicts(scene)
                if verdict.goal.limit is not None
            ]
            if not scene.series:
                rows.append((name, scene.title, "", "-", "", f"not measured: {scene.problems['all']}"))
        if result.accounting:
            rows.append((name, "", f"CPU of hosts: {result.accounting}", "", "", ""))
        if result.problem:
            rows.append((name, "", "", "-", "", f"failed: {result.problem}"))
    return ["", *("  ".join(cell for cell in row if cell) for row in rows)]


if __name__ == "__main__":
    sys.exit(main())
