"""A process that forks others compiles everything first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import train

CHECK = """
import sys
sys.path.append(sys.argv[1])
from train.agent.gang.states import DesiredState, compile_messages
from train.agent.protocol import classes, records
from train.agent.protocol.records import Member, Policy, compile_readers
compile_readers()
compile_messages()
classes.compile_constructors()
assert {Member, Policy, DesiredState} <= records._READERS.keys()
assert not [kind for kind in classes._KINDS if kind.__new__ is classes._create]
line = records.encode(records.Committed(7))
assert records.decode(line) == records.Committed(7)
"""


def test_readers_and_constructors_are_compiled_before_their_first_use() -> None:
    root = str(Path(train.__file__).parents[1])
    subprocess.run([sys.executable, "-I", "-S", "-c", CHECK, root], check=True)
