"""Large files through a slow uplink: the client is in a network namespace whose way out is limited."""

from __future__ import annotations

import itertools
import shutil
import time
from functools import partial

from benchmarks.harness.machines import Machines
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.namespace import limited
from benchmarks.harness.peers import MissingError
from benchmarks.harness.scripts import write_large
from benchmarks.harness.session import Session

TITLE = "Files through an uplink of 200 Mbit/s"
_COPIES = 4  # of each host: stored, of the job, of rsync, and a reserve
_SEEDS = itertools.count(int(time.time()))


def measure(session: Session) -> None:
    """Copy random data to hosts."""
    session.attempt("uplink of 200 Mbit/s", partial(_uplink, session))


def _uplink(session: Session) -> None:
    workers = session.pick(2, 8, 8)
    link = session.enter(limited(workers, "200mbit"))
    hosts = Machines(session, link.addresses).fleet("bench-uplink", prefix=link.prefix)
    directory = session.directory()
    for megabytes in session.pick((1,), (24, 250), (24, 1000)):
        needed = _COPIES * workers * megabytes * 1_000_000
        if shutil.disk_usage(session.root).free < needed:
            raise MissingError(f"{megabytes} MB to {workers} hosts need {needed / 1e9:.0f} GB of disk space")
        limit_s = 30 + 2 * workers * megabytes * 8 / 200

        def renew(size: int = megabytes) -> None:
            hosts.clear_copies()
            write_large(directory, next(_SEEDS), size, is_random=True)

        def fleet(timeout_s: float = limit_s) -> Sample:
            return hosts.run_fleet("train", "--workdir", str(directory), "--", "true", timeout_s=timeout_s)

        def rsync(timeout_s: float = limit_s) -> Sample:
            return hosts.run(hosts.rsync(directory, "large"), timeout_s=timeout_s)

        session.measure(
            f"{megabytes} MB of random data to {workers} hosts",
            {"fleet train": fleet, "rsync": rsync},
            [Goal("wall", "fleet train", "rsync", 0.25)],
            runs=session.pick(1, 3, 3) if megabytes < 100 else 1,
            warmups=0,
            before=renew,
        )
