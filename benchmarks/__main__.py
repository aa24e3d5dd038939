"""`./scripts/bench [ROW...]`: compare fleet with what a user would do instead."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.command import ROOT, MeasureError, install_peers
from benchmarks.rows import ROWS, Bench, Line

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def main() -> int:
    """Measure the rows, and print the table; return the exit code."""
    options = _options()
    if options.install:
        install_peers()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for commands in the background
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin, lines = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as name:
        root = Path(name).resolve()
        root.chmod(0o755)
        bench = Bench(root, is_quick=options.quick)
        for row in options.rows or ROWS:
            print(f"measuring: {row}", flush=True)
            try:
                lines += list(ROWS[row](bench))
            except (MeasureError, OSError) as error:
                bench.problems.append(f"{row}: {error}")
    page = render(lines, bench.problems, time.monotonic() - begin)
    print(page)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{page}\n{END}{rest.partition(END)[2]}")
    return int(bool(bench.problems))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"rows to measure [default: all]: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="a smoke test: small, and without TensorFlow")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument(
        "--no-install", dest="install", action="store_false", help="leave out programs that are not installed"
    )
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"unknown row {unknown[0]}; rows: {', '.join(ROWS)}")
    if options.write and (options.rows or options.quick):
        parser.error("--write requires a run of all rows")
    return options


def render(lines: list[Line], problems: list[str], seconds: float) -> str:
    """Return the table as Markdown, with what was not measured, and how the run was made."""
    table = ["| work | fleet | instead | ratio or value | goal | |", "|---|---|---|---|---|---|"]
    for line in lines:
        unit = "" if line.is_ratio else line.unit
        peer = line.instead if line.peer is None else f"{line.instead}: {_number(line.peer)} {line.unit}"
        goal = f"{'≥' if line.at_least else '≤'} {line.goal:g} {unit}".rstrip()
        verdict = {True: "reached", False: "**missed**", None: "not measured"}[line.is_reached]
        value = "-" if line.value is None else f"{_number(line.value)} {unit}".rstrip()
        fleet = "-" if line.fleet is None else f"{_number(line.fleet)} {line.unit}"
        table.append(f"| {line.work} | {fleet} | {peer} | {value} | {goal} | {verdict} |")
    notes = [f"- Not measured: {problem}" for problem in problems]
    made = f"{time.strftime('%Y-%m-%d', time.gmtime())}, commit {_commit()}, {seconds:.0f} s, {_machine()}."
    return "\n".join([*table, "", *notes, *([""] if notes else []), made])


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _machine() -> str:
    """Return cores, memory, system, and interpreter."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "") if sys.platform == "linux" else ""
    ssh = subprocess.run(["ssh", "-V"], check=False, capture_output=True, text=True).stderr.split(",")[0]
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {system}, Python {platform.python_version()}, {ssh}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
