"""From Enter to the first training step of an edited script."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial

from benchmarks.harness import by_hand, tensorflow
from benchmarks.harness.command import CommandError
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import write_script
from benchmarks.harness.session import Case, Session

TITLE = "From Enter to the first training step"
_WORKERS = 2
_PEER = "rsync + ssh by hand"


def measure(session: Session) -> None:
    """Edit a script and run it again; the first run of each program is not counted."""
    hosts = session.local(_WORKERS)
    text = tensorflow.script(is_standin=session.is_quick)
    script = write_script(session.directory(), text)
    edits = itertools.count()

    def edit() -> None:
        hosts.clear_marks()
        script.write_text(f"{text}# edit {next(edits)}\n")

    def stepped(start: Callable[[], Sample]) -> Sample:
        begin = time.time()
        sample = start()
        steps = tensorflow.read_marks(hosts.marks, "stepped", _WORKERS)
        return {**sample, "first_step": max(at for at, _ in steps) - begin}

    def fleet(*options: str) -> Sample:
        return hosts.run_fleet("train", *options, str(script), "--", str(hosts.marks), timeout_s=240)

    def hand() -> Sample:
        sample = dict(hosts.run(hosts.rsync(script.parent, "by-hand")))
        begin = time.monotonic()
        commands = by_hand.ssh_commands(hosts, "by-hand/task.py", hosts.marks)
        with by_hand.running(commands, [{}] * _WORKERS) as processes:
            if any(process.wait(tensorflow.DEADLINE_S) for process in processes):
                raise CommandError("a worker failed")
        sample["wall"] += time.monotonic() - begin
        return {"wall": sample["wall"]}

    cases: dict[str, Case] = {"fleet train": fleet, _PEER: hand}
    if session.supports("train", "--cold"):
        cases["fleet train --cold"] = partial(fleet, "--cold")
    session.measure(
        f"an edited script on {_WORKERS} hosts, the second run" + (" (stand-in)" if session.is_quick else ""),
        {name: partial(stepped, case) for name, case in cases.items()},
        [Goal("first_step", "fleet train", _PEER, 0.35), Goal("first_step", "fleet train --cold", _PEER)],
        metric="first_step",
        runs=session.pick(1, 5, 9),
        before=edit,
    )
