"""Files to 8 hosts: new, unchanged, and large."""

from __future__ import annotations

import itertools
import shutil
import time
from functools import partial

from benchmarks.harness.hosts import joined
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import write_large, write_tree
from benchmarks.harness.session import Case, Session

TITLE = "Files to the hosts"
_SEEDS = itertools.count(int(time.time()))


def measure(session: Session) -> None:
    """Copy a directory to the hosts and run `true` there."""
    workers = session.pick(2, 8, 8)
    # First: on ext4 without a journal, files that were deleted in the last minutes slow the creation of others,
    # which only one of the programs does here.
    session.attempt("unchanged directory", partial(_unchanged, session, workers))
    for count in session.pick((2,), (8, 64), (8, 64)):
        session.attempt(f"new directory to {count} hosts", partial(_new, session, count))
    session.attempt("large file, new and unchanged", partial(_large, session, workers))


def _new(session: Session, workers: int) -> None:
    hosts, tree = session.local(workers), session.directory()
    pushed = hosts.copies / "pushed"

    def renew() -> None:
        hosts.clear_copies()
        shutil.rmtree(pushed, ignore_errors=True)
        write_tree(tree, next(_SEEDS), session.pick(20, 500, 500))

    cases: dict[str, Case] = {
        "fleet train": lambda: hosts.run_fleet("train", "--workdir", str(tree), "--", "true"),
        "rsync + pdsh": lambda: hosts.run(joined(hosts.rsync(tree, "new"), hosts.pdsh("true"))),
    }
    if workers > 8:
        goals = [Goal("client_cpu", "fleet train", "rsync + pdsh", 0.4), Goal("wall", "fleet train", "rsync + pdsh")]
    else:
        push = ["push", str(tree), "--to", str(pushed)]
        cases |= {
            "fleet push": lambda: hosts.run_fleet(*push),
            "rsync": lambda: hosts.run(hosts.rsync(tree, "only")),
        }
        goals = [
            Goal("wall", "fleet train", "rsync + pdsh", 0.9),
            Goal("wall", "fleet push", "rsync"),
            Goal("client_cpu", "fleet push", "rsync"),
        ]
    session.measure(
        f"new directory of 5 MB in 500 files to {workers} hosts, and `true`",
        cases,
        goals,
        runs=session.pick(1, 3 if workers > 8 else 5, 9),
        warmups=0 if workers > 8 else 1,
        before=renew,
    )
    if workers > 8:
        session.release(hosts)


def _unchanged(session: Session, workers: int) -> None:
    hosts, tree = session.local(workers), session.directory()
    write_tree(tree, next(_SEEDS), session.pick(20, 500, 500))
    hosts.run(hosts.rsync(tree, "same"))

    def warm() -> Sample:
        hosts.open_masters()
        try:
            return hosts.run(
                joined(hosts.rsync(tree, "same", warm=True), hosts.pdsh("true", warm=True)),
            )
        finally:
            hosts.close_masters()

    session.measure(
        f"unchanged directory of 5 MB in 500 files to {workers} hosts, and `true`",
        {
            "fleet train": lambda: hosts.run_fleet("train", "--workdir", str(tree), "--", "true"),
            "rsync + pdsh": lambda: hosts.run(joined(hosts.rsync(tree, "same"), hosts.pdsh("true"))),
            "rsync + pdsh over an open ControlMaster": warm,
        },
        [
            Goal("wall", "fleet train", "rsync + pdsh", 0.7),
            Goal("wall", "fleet train", "rsync + pdsh over an open ControlMaster", 1.5),
        ],
        runs=session.pick(1, 7, 15),
    )


def _large(session: Session, workers: int) -> None:
    hosts, directory = session.local(workers), session.directory()
    megabytes = session.pick(1, 500, 500)

    def fleet() -> Sample:
        return hosts.run_fleet("train", "--workdir", str(directory), "--", "true", timeout_s=280)

    def rsync() -> Sample:
        return hosts.run(joined(hosts.rsync(directory, "large"), hosts.pdsh("true")), timeout_s=280)

    def renew() -> None:
        hosts.clear_copies()
        write_large(directory, next(_SEEDS), megabytes)

    cases = {"fleet train": fleet, "rsync + pdsh": rsync}
    session.measure(
        f"new file of {megabytes} MB to {workers} hosts, and `true`",
        cases,
        [Goal("wall", "fleet train", "rsync + pdsh", 0.9), Goal("client_cpu", "fleet train", "rsync + pdsh")],
        runs=session.pick(1, 3, 5),
        warmups=0,
        before=renew,
    )
    session.measure(
        f"the same file of {megabytes} MB, unchanged, to {workers} hosts, and `true`",
        cases,
        [Goal("wall", "fleet train", "rsync + pdsh", 0.8), Goal("client_cpu", "fleet train", "rsync + pdsh")],
        runs=session.pick(1, 3, 5),
    )
    session.release(hosts)
