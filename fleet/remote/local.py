"""Start an agent on this computer, and exchange records with it without SSH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.remote.client import ANSWER_S, AgentClient
from fleet.remote.quoting import last_line
from provision.model import Host
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import ClientGoneError
from train.agent.protocol.records import Hello, MalformedRecordError, Record

_START_S = 30.0
_END_S = 5.0
# A batch system sends its signals to all processes of a job; they must not end the agent, which stops the job.
_SHELL = """trap '' INT TERM HUP; exec "$@" """
_MAIN = "import sys; sys.path.append(sys.argv.pop(1)); from train.agent.requests.serve import main; main()"


def open_local_agent(node: str, root: Path, digest: str, env: dict[str, str]) -> AgentClient:
    """Start an agent on this computer, from the files of this program and with its interpreter.

    The agent ignores the signals that end a job: it waits for a Stop request.

    Args:
        node: Name of this computer, for messages.
        root: Absolute path of the agent's directory.
        digest: Hash of the agent, from `train.pack.build_agent`.
        env: Environment of the agent and of its tasks.

    Raises:
        NotReadyError: the agent does not start.
    """
    transport = LocalTransport(root, digest, env)
    try:
        hello, _ = transport.receive(_START_S, "starting")
        if not isinstance(hello, Hello):
            raise NotReadyError("the agent on this node sent something other than hello")
    except BaseException:
        transport.close()
        raise
    host = Host(node, address="", port=0, user="", host_key="", key_alias="", private_address="")
    return AgentClient(transport, host, hello)


class LocalTransport:
    """Carry records over the pipes of an agent process; `open_local_agent` starts one.

    Args:
        root: Absolute path of the agent's directory.
        digest: Hash of the agent.
        env: Environment of the agent.
    """

    has_input = False  # an agent on this computer requests no contents, so that no answer arrives while sending

    def __init__(self, root: Path, digest: str, env: dict[str, str]) -> None:
        self.received = 0
        self._stderr = root / "agent.err"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = [sys.executable, "-I", "-S", "-c", _MAIN, str(Path(__file__).parents[2])]
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, "sh", *program, str(root), digest],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=env,
                cwd="/",
            )
        assert self._process.stdin is not None  # both are pipes
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())

    def send(self, record: Record, payload: bytes = b"", *, doing: str, deadline_s: float = ANSWER_S) -> None:  # noqa: ARG002 - the agent reads at once
        """Send a record, and the payload that it announces."""
        try:
            self._channel.send(record, payload)
        except ClientGoneError as error:
            raise self._ended(doing) from error

    def receive(self, deadline_s: float, waiting_for: str, *, long: bool = False) -> tuple[Record, bytes]:  # noqa: ARG002 - trusted
        """Return the next record, and the payload that follows it; `deadline_s` is the longest time without data."""
        try:
            record = self._channel.receive(deadline_s)
            size = int(getattr(record, "payload", 0))
            payload = b"".join(self._channel.payload(size, deadline_s)) if size else b""
        except MalformedRecordError as error:
            raise NotReadyError("the agent on this node sent something that cannot be read") from error
        except ClientGoneError as error:
            raise self._ended(waiting_for, deadline_s) from error
        self.received += size
        return record, payload

    def sever(self) -> None:
        """End pending calls with an error."""
        self._process.kill()

    def close(self) -> None:
        """Close the connection; tasks that the agent supervises keep running."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self, doing: str, waited_s: float = 0.0) -> NotReadyError:
        is_silent = self._process.poll() is None and waited_s
        how = f"did not answer within {waited_s:g} s" if is_silent else "ended"
        cause = last_line(self._stderr.read_text("utf-8", "replace"))
        return NotReadyError(f"the agent on this node {how} while {doing}", cause=cause)
