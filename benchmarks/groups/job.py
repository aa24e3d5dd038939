"""A whole job: a new directory is copied, a script runs on every host, and the command waits for its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness.hosts import Hosts, joined
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.peers import MissingError
from benchmarks.harness.scripts import START, write_script, write_tree
from benchmarks.harness.session import Session

TITLE = "A whole job"
_GOALS = {
    2: (Goal("wall", "fleet train", "rsync + pdsh", 1.0),),
    8: (Goal("wall", "fleet train", "rsync + clush", 0.6), Goal("wall", "fleet train", "ansible", 0.1)),
    64: (Goal("wall", "fleet train", "rsync + pdsh", 0.8),),
}
_SEEDS = itertools.count(int(time.time()))


def measure(session: Session) -> None:
    """Copy 500 files of 10 KB and run a script that checks a file and ends."""
    for workers in session.pick((2,), (2, 8, 64), (2, 8, 64)):
        session.attempt(f"a job on {workers} hosts", partial(_jobs, session, workers))


def _jobs(session: Session, workers: int) -> None:
    hosts = session.local(workers)
    _whole(session, hosts, workers, is_new=True)
    _whole(session, hosts, workers, is_new=False)
    session.release(hosts)


def _whole(session: Session, hosts: Hosts, workers: int, *, is_new: bool) -> None:
    """Measure a job with files that the hosts do not have, or with other contents than those of the last job."""
    tree = session.directory()
    archive = tree.with_suffix(".tar.gz")

    def renew() -> None:
        seed = next(_SEEDS)
        write_tree(tree, seed, session.pick(20, 500, 500))
        write_script(tree, START + f"assert open('d00/f000.txt').read().startswith('#{seed} ')\n", "job.py")
        os.utime(tree / "job.py", (seed, seed))
        if is_new:
            hosts.clear_copies()
        hosts.close_masters()
        hosts.clear_marks()

    run = f"{sys.executable} job.py {hosts.marks}"
    at_host = hosts.at_host(f"sh -c 'cd job && exec {run}'")

    def started(command: Callable[[], Sample]) -> Sample:
        begin = time.time()
        sample = command()
        return {**sample, "started": hosts.starts()[-1] - begin}

    cases = {
        "fleet train": lambda: hosts.run_fleet("train", str(tree / "job.py"), "--", str(hosts.marks)),
        "rsync + pdsh": lambda: hosts.run(joined(hosts.rsync(tree, "job"), hosts.pdsh(_quoted(at_host)))),
    }
    if workers <= 8:
        cases["rsync + clush"] = lambda: hosts.run(joined(hosts.rsync(tree, "job"), hosts.clush(at_host)))
    if workers == 8 or session.is_quick:
        cases["ansible"] = lambda: _ansible(hosts, tree, archive, run)
    if not is_new:
        renew()
        with contextlib.suppress(MissingError):
            hosts.run(hosts.rsync(tree, "job"))
    session.measure(
        f"{'new' if is_new else 'changed'} directory of 5 MB in 500 files, and a script, on {workers} hosts",
        {name: partial(started, case) for name, case in cases.items()},
        _GOALS[workers],
        runs=session.pick(1, 3 if workers > 8 else 5, 9),
        warmups=0 if workers > 8 else 1,
        before=renew,
    )


def _quoted(command: str) -> str:
    """Return a command for pdsh, which replaces % itself."""
    return command.replace("%", "%%")


def _ansible(hosts: Hosts, tree: Path, archive: Path, command: str) -> Sample:
    subprocess.run(["tar", "-C", str(tree), "-czf", str(archive), "."], check=True)
    return hosts.run(hosts.ansible(archive, command))
