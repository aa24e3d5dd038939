"""Fleets on this computer, created and deleted."""

from __future__ import annotations

import shlex
from pathlib import Path

from benchmarks.harness.command import environment, run
from benchmarks.harness.hosts import FLEET, local_arguments
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.peers import MissingError
from benchmarks.harness.session import Session
from provision.local import login, sshd

TITLE = "Fleets on this computer"
_NAME = "bench-local"
# For each host: a host key and an sshd; then wait until all answer. Deleted: killed, and the files removed.
_UP = """
set -e
mkdir -p {root}; cd {root}
n=0
while [ $n -lt {workers} ]; do
    ( mkdir $n; ssh-keygen -q -t ed25519 -N '' -f $n/host_key; touch $n/authorized_keys
      sed "s|DIRECTORY|{root}/$n|g; s|ADDRESS|127.78.0.$((n + 1))|" {config} > $n/sshd_config
      {sshd} -D -e -f {root}/$n/sshd_config 2> $n/log < /dev/null > /dev/null & echo $! > $n/pid ) &
    n=$((n + 1))
done
wait
n=0
while [ $n -lt {workers} ]; do
    until grep -q 'Server listening' $n/log; do sleep 0.01; done
    n=$((n + 1))
done
"""
_DOWN = """
cd {root}
pids=$(cat */pid)
kill $pids
for pid in $pids; do while [ -e /proc/$pid ]; do sleep 0.01; done; done
cd /; rm -r {root}
"""


def measure(session: Session) -> None:
    """Compare `fleet up` and `fleet down` with sshds that a shell script starts and ends."""
    workers = session.pick(2, 64, 64)
    arguments = local_arguments(workers)
    program = sshd.find()
    if program is None:
        raise MissingError("sshd is not installed")
    root = session.directory()
    root.mkdir()
    state, bare = root / "state", root / "bare"
    config = root / "sshd_config"
    config.write_text(sshd.configuration(Path("DIRECTORY"), "ADDRESS", 10_022, login.check_login()))
    sshd.make_separation_directory()
    words = {"root": bare, "workers": workers, "config": config, "sshd": program}
    env = environment(FLEET_STATE_DIR=str(state))
    up, down = ([*_shell(text, words)] for text in (_UP, _DOWN))
    fleet = [FLEET, "up", "--fleet", _NAME, *arguments], [FLEET, "down", "--fleet", _NAME, "--yes"]

    def pair(begin: list[str], finish: list[str]) -> tuple[Sample, Sample]:
        try:
            created = run(begin, env=env)
        finally:
            deleted = run(finish, env=env, codes=(0, 102))
        return created, deleted

    downs: dict[str, list[Sample]] = {"fleet": [], "sshd by hand": []}

    def keep(name: str, samples: tuple[Sample, Sample]) -> Sample:
        downs[name].append(samples[1])
        return samples[0]

    runs = session.pick(1, 5, 9)
    session.measure(
        f"create {workers} local hosts",
        {
            "fleet up": lambda: keep("fleet", pair(*fleet)),
            "sshd by hand": lambda: keep("sshd by hand", pair(up, down)),
        },
        [Goal("wall", "fleet up", "sshd by hand", 3.0)],
        runs=runs,
    )
    deleted = {"fleet down": downs["fleet"][-runs:], "sshd by hand": downs["sshd by hand"][-runs:]}
    session.keep_scene(f"delete {workers} local hosts", deleted, [Goal("wall", "fleet down", "sshd by hand", 2.0)])


def _shell(text: str, words: dict[str, object]) -> list[str]:
    quoted = {key: shlex.quote(str(value)) for key, value in words.items()}
    return ["/bin/sh", "-c", text.format(**quoted)]
