"""Blocks of contents on their way to another computer: each is compressed by itself if that shrinks it. Pure."""

from __future__ import annotations

import zlib
from typing import Iterable, Iterator, Tuple

from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal

BLOCK_BYTES = 1 << 19
_SAMPLE_BYTES = 1 << 14
_LEVEL = 1
_WORTH = 0.9  # a larger part of the original size is not worth the time to decompress it


def join_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of `BLOCK_BYTES`; the last one may be shorter."""
    block = bytearray()
    for piece in pieces:
        block += piece
        while len(block) >= BLOCK_BYTES:
            yield bytes(block[:BLOCK_BYTES])
            del block[:BLOCK_BYTES]
    if block:
        yield bytes(block)


def pack_block(block: bytes) -> Tuple[bytes, int]:
    """Return a block as it is sent, and its size if that is compressed; 0: it is sent as it is.

    A sample from the middle decides whether it is compressed at all.
    """
    start = max(0, len(block) - _SAMPLE_BYTES) // 2
    sample = block[start : start + _SAMPLE_BYTES]
    if len(zlib.compress(sample, _LEVEL)) >= _WORTH * len(sample):
        return block, 0
    packed = zlib.compress(block, _LEVEL)
    return (packed, len(block)) if len(packed) < _WORTH * len(block) else (block, 0)


def unpack_block(data: bytes, size: int) -> bytes:
    """Return a block of which `pack_block` returned `data` and `size`.

    Raises:
        RefusedError: it is damaged, or larger than announced.
    """
    if not size:
        return data
    if not 0 < size <= BLOCK_BYTES:
        raise RefusedError(Refusal.BUNDLE, "a block of contents is too large")
    stream = zlib.decompressobj()
    try:
        block = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise RefusedError(Refusal.BUNDLE, f"the contents arrived damaged: {error}") from error
    if len(block) != size or not stream.eof or stream.unused_data:
        raise RefusedError(Refusal.BUNDLE, "the contents arrived damaged: a block has another size")
    return block
