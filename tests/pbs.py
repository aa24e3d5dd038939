"""A STAND-IN for PBS, not PBS itself: `qsub` and `pbsdsh` that run on this machine what PBS runs on its nodes.

As in OpenPBS, the script starts in the login directory on the first node, pbsdsh starts its command once for
each slot, also in the login directory, and the node file exists only on the first node.
"""

from __future__ import annotations

import stat
import sys
from dataclasses import dataclass
from pathlib import Path

_QSUB = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
# A stand-in for qsub of PBS: runs the script here and now.
import os, subprocess, sys
home, nodes = {home!r}, {nodes!r}
env = dict(os.environ, PBS_JOBID="7.stand-in", PBS_NODEFILE=nodes, PBS_NODENUM="0", PBS_TASKNUM="1",
           PBS_ENVIRONMENT="PBS_BATCH", PBS_O_WORKDIR=os.getcwd(), HOME=home)
sys.exit(subprocess.call(["/bin/sh", os.path.abspath(sys.argv[1])], env=env, cwd=home))
"""
_PBSDSH = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
# A stand-in for pbsdsh of PBS: starts the command for each line of the node file.
import os, subprocess, sys
command = sys.argv[2:] if sys.argv[1] == "--" else sys.argv[1:]
names = open(os.environ["PBS_NODEFILE"]).read().split()
hosts = list(dict.fromkeys(names))
started = []
for number, name in enumerate(names):
    env = dict(os.environ, PBS_NODENUM=str(hosts.index(name)), PBS_TASKNUM=str(2 + number))
    if name != names[0]:
        del env["PBS_NODEFILE"]
    started.append(subprocess.Popen(command, env=env, cwd=env["HOME"]))
codes = [one.wait() for one in started]
sys.exit(max(codes))
"""


@dataclass(frozen=True)
class StandIn:
    """The directory of both programs, to be put first on PATH."""

    programs: Path

    @classmethod
    def make(cls, directory: Path, nodes: str) -> StandIn:
        """Return a stand-in in a subdirectory of `directory`; `nodes` is the content of the node file."""
        programs, home = directory / "programs", directory / "home"
        for path in (programs, home):
            path.mkdir(parents=True)
        node_file = directory / "nodes"
        node_file.write_text(nodes)
        for name, text in (("qsub", _QSUB), ("pbsdsh", _PBSDSH)):
            program = programs / name
            program.write_text(text.format(python=sys.executable, home=str(home), nodes=str(node_file)))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return cls(programs)
