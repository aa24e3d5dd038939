"""Connect to an agent that runs on this computer, without SSH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import ClientGoneError
from train.agent.protocol.records import Hello, MalformedRecordError, Record
from train.errors import LocalAgentError

START_S = 30.0
_END_S = 5.0
# A batch system sends its signals to all processes of a job; they must not end the agent, which stops the job.
_SHELL = """trap '' INT TERM HUP; exec "$@" """
_MAIN = "import sys; sys.path.append(sys.argv.pop(1)); from train.agent.requests.serve import main; main()"


class LocalAgent:
    """An agent that runs on this computer, started from the files of this program by the same interpreter.

    The agent ignores the signals that end a job: it waits for a Stop request.

    Args:
        root: Absolute path of its directory.
        digest: Hash of the agent, from `train.pack.build_agent`.
        env: Environment of the agent and of its tasks.

    Raises:
        LocalAgentError: the agent does not start.
    """

    def __init__(self, root: Path, digest: str, env: dict[str, str]) -> None:
        self._words = root / "agent.err"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = [sys.executable, "-I", "-S", "-c", _MAIN, str(Path(__file__).parents[2])]
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, "sh", *program, str(root), digest],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                env=env,
                cwd="/",
            )
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())
        try:
            hello, _ = self.receive(START_S, "starting")
            if not isinstance(hello, Hello):
                raise LocalAgentError("the agent sent something other than hello")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, record: Record) -> None:
        """Send a request.

        Raises:
            LocalAgentError: the agent has ended.
        """
        try:
            self._channel.send(record)
        except ClientGoneError as error:
            raise self._ended(str(error)) from error

    def receive(self, deadline_s: float, doing: str) -> tuple[Record, bytes]:
        """Return the next record, and the payload that follows it.

        Args:
            deadline_s: Longest time without data, in seconds.
            doing: The action of the agent, for the message of an error.

        Raises:
            LocalAgentError: no data arrived, or the agent has ended.
        """
        try:
            record = self._channel.receive(deadline_s)
            size = int(getattr(record, "payload", 0))
            return record, b"".join(self._channel.payload(size, deadline_s)) if size else b""
        except MalformedRecordError as error:
            raise LocalAgentError("the agent on this node sent something that cannot be read") from error
        except ClientGoneError as error:
            raise self._ended(doing, deadline_s) from error

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

    def _ended(self, doing: str, waited_s: float = 0.0) -> LocalAgentError:
        words = self._words.read_text("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(words) if line.strip()), "")
        code = self._process.poll()
        if code is None and waited_s:
            return LocalAgentError(f"waited {waited_s:g} s for the agent on this node ({doing})", cause=last)
        return LocalAgentError(f"the agent on this node has ended ({doing})", cause=last)
