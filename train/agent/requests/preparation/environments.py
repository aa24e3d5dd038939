"""Copy virtual environments between hosts: serve one to other hosts, and fetch one from another host."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, List, Optional, Sequence, Tuple

from train.agent.files.contents import Receiver, hash_file
from train.agent.files.disk import DISK_RESERVE, free_space, make_directory, readable_size, write_atomic
from train.agent.files.paths import HostPaths, VenvPaths
from train.agent.host.ports import listen_for_links
from train.agent.host.runner import Steps
from train.agent.packages.portability import (
    LONGEST_LISTING,
    Item,
    complete,
    contents_of,
    decode_items,
    encode_items,
    list_items,
    read_listing,
)
from train.agent.packages.venv import mark_used
from train.agent.peers.relay import HeldContents, RelayServer, fetch
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import (
    EntryKind,
    EnvironmentShared,
    EnvironmentSource,
    Refusal,
    Relay,
    ShareEnvironment,
)

SLOWEST = 1 << 20  # bytes a second
PERIOD_S = 60.0
_IDLE_S = 3600.0  # for the next request, while other hosts fetch the environment


class NotCopiedError(Exception):
    """An environment could not be copied from another host."""


class Pace:
    """Detect that contents arrive so slowly that pip is probably faster. Pure."""

    def __init__(self) -> None:
        self._since: Optional[float] = None
        self._before = 0

    def is_kept(self, received: int, now: float) -> bool:
        """Return False if a period of `PERIOD_S` is over in which less than `SLOWEST` bytes a second arrived.

        Args:
            received: All bytes so far.
            now: Seconds of a clock.
        """
        if self._since is None:
            self._since = now
        elapsed = now - self._since
        if elapsed < PERIOD_S:
            return True
        is_kept = received - self._before >= SLOWEST * elapsed
        self._since, self._before = now, received
        return is_kept


def share_environment(channel: Channel, host: HostPaths, request: ShareEnvironment) -> None:
    """Answer ShareEnvironment; until the client's next request, send the environment to other hosts.

    Raises:
        RefusedError: it is not an environment of this fleet, or it cannot be copied.
        ClientGoneError: the client disconnected.
        OSError: it cannot be read.
    """
    paths = VenvPaths(os.path.dirname(os.path.dirname(request.python)))
    if os.path.dirname(paths.directory) != host.venvs or not mark_used(paths):
        raise RefusedError(Refusal.REQUEST, f"{request.python} is not an interpreter of this fleet's environments")
    steps = Steps(channel)
    steps.report_step("reading the packages")
    items = list_items(paths, read_listing(paths), lambda count: steps.report_step("reading the packages", "", count))
    write_atomic(paths.listing, encode_items(items))
    digest, size = hash_file(paths.listing)
    files = {
        item.entry.sha256: (os.path.join(paths.directory, item.entry.path), item.entry.size)
        for item in contents_of(items).values()
    }
    with contextlib.ExitStack() as stack:
        listing, contents = (RelayServer(listen_for_links(request.address)) for _ in range(2))
        stack.callback(listing.close)
        stack.callback(contents.close)
        listing.start(request.secret, HeldContents({digest: (paths.listing, size)}))
        contents.start(request.secret, HeldContents(files))
        channel.send(EnvironmentShared(digest, size, listing.port, contents.port))
        channel.await_request(_IDLE_S)


def copy_environment(source: EnvironmentSource, paths: VenvPaths, steps: Steps) -> None:
    """Fetch an environment from another host into an empty environment of this host.

    Raises:
        NotCopiedError: it did not arrive completely, or is damaged.
        ClientGoneError: the client disconnected.
    """
    step = f"copying packages from {source.host}"
    steps.report_step(step)
    if not 0 < source.size <= LONGEST_LISTING:
        raise NotCopiedError("the list of its files has an invalid size")
    try:
        make_directory(paths.scratch)
        relay = Relay(source.secret, source.address, source.listing_port)
        _fetch(relay, [(source.sha256, source.size)], paths, lambda _: paths.listing, lambda _: steps.tick())
        with open(paths.listing, "rb") as file:
            items = decode_items(file.read())
        _check_disk(items, paths, source.host)
        files = {
            digest: (os.path.join(paths.directory, item.entry.path), item.entry.size)
            for digest, item in contents_of(items).items()
        }
        whole = sum(size for _, size in files.values())
        pace = Pace()

        def report(count: int) -> None:
            steps.report_step(step, "", count, whole)
            if not pace.is_kept(count, time.monotonic()):
                raise NotCopiedError(f"{source.host} sends less than {readable_size(SLOWEST)} a second")

        _fetch(
            relay._replace(port=source.port),
            [(digest, size) for digest, (_, size) in files.items()],
            paths,
            lambda digest: files[digest][0],
            report,
        )
        complete(paths.directory, items, steps.tick)
    except RefusedError as error:
        raise NotCopiedError(error.record.reason) from error
    except OSError as error:
        raise NotCopiedError(str(error)) from error


def _check_disk(items: Sequence[Item], paths: VenvPaths, sender: str) -> None:
    """Raise NotCopiedError if the disk has no room for all items, which would also harm the jobs of this host."""
    needed = sum(item.entry.size for item in items if item.entry.kind is EntryKind.FILE)
    free, _ = free_space(paths.directory)
    if needed + DISK_RESERVE > free:
        sizes = (readable_size(count) for count in (needed, free))
        raise NotCopiedError("the packages of {} need {}, and this host has {} free".format(sender, *sizes))


def _fetch(
    relay: Relay,
    contents: List[Tuple[str, int]],
    paths: VenvPaths,
    path_of: Callable[[str], str],
    report: Callable[[int], None],
) -> None:
    """Fetch contents from another host.

    Args:
        relay: The host.
        contents: Hash and size of each.
        paths: Paths of the environment, on whose file system the files are.
        path_of: Returns the path of a content, given its hash.
        report: Called with the number of bytes that have arrived.

    Raises:
        NotCopiedError: they did not all arrive, or are damaged.
        OSError: they cannot be written.
    """
    receiver = Receiver(paths.scratch, contents, path_of=path_of)
    try:
        if not fetch(relay, receiver, lambda: report(receiver.received)):
            whole = sum(size for _, size in contents)
            raise NotCopiedError(
                "they arrived damaged"
                if receiver.is_broken
                else f"{receiver.received} of {whole} bytes arrived from {relay.address}"
            )
        receiver.finish()
    finally:
        receiver.close()
