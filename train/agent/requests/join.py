"""The requests GetJoinInfo and FetchContents: a host of a running job sends what a replacement host needs."""

from __future__ import annotations

from train.agent.files.contents import BLOCK_BYTES, join_blocks, pack_block, read_contents
from train.agent.files.disk import read_json
from train.agent.files.journal import read_job
from train.agent.files.paths import HostPaths
from train.agent.host import control
from train.agent.host.jobs import find_task
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Chunk, Commit, Entry, FetchContents, GetJoinInfo, JoinInfo, Refusal, build

_ANSWER_DEADLINE_S = 5.0


def get_join_info(_: Channel, host: HostPaths, request: GetJoinInfo) -> JoinInfo:
    """Answer GetJoinInfo.

    Raises:
        RefusedError: the job does not run here.
    """
    paths = find_task(host, request.job, request.slot)
    job, bundle = read_job(paths) or {}, read_json(paths.bundle)
    connection = control.connect(paths.control)
    if connection is None or bundle is None:
        raise RefusedError(
            Refusal.REQUEST, f"job {request.job} does not run on this host any more", next_step="fleet status"
        )
    with connection:
        control.send_record(connection, request)
        records = control.receive_all(connection, _ANSWER_DEADLINE_S)
        record = next((record for record in records if isinstance(record, Commit)), None)
    if record is None:
        raise RefusedError(Refusal.REQUEST, f"job {request.job} has just ended", next_step="fleet status")
    python = str(job.get("python", ""))
    return JoinInfo(str(job.get("fleet", "")), [build(Entry, entry) for entry in bundle["entries"]], record, python)


def send_contents(channel: Channel, host: HostPaths, request: FetchContents) -> Chunk:
    """Answer FetchContents.

    Raises:
        RefusedError: the store does not have one of the contents.
    """
    for block in join_blocks(read_contents(host.store, request.objects, BLOCK_BYTES)):
        data, size = pack_block(block)
        channel.send(Chunk(len(data), size), data)
    return Chunk(0)
