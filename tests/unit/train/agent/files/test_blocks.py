from __future__ import annotations

import os
import random
import zlib

import pytest

from train.agent.files.contents import BLOCK_BYTES, join_blocks, pack_block, unpack_block
from train.agent.protocol.errors import RefusedError


def test_blocks_hold_the_same_bytes_whatever_the_pieces() -> None:
    numbers = random.Random(7)
    sizes = [0, 1, BLOCK_BYTES, BLOCK_BYTES - 1, 3, 2 * BLOCK_BYTES + 5, BLOCK_BYTES]
    pieces = [numbers.randbytes(size) for size in sizes]
    blocks = list(join_blocks(pieces))
    assert b"".join(blocks) == b"".join(pieces)
    assert [len(block) for block in blocks[:-1]] == [BLOCK_BYTES] * (len(blocks) - 1)
    assert list(join_blocks([])) == []


@pytest.mark.parametrize("block", [b"a", b"ab" * 1000, b"text " * (BLOCK_BYTES // 5), os.urandom(BLOCK_BYTES)])
def test_a_packed_block_is_never_larger_and_returns_unchanged(block: bytes) -> None:
    data, size = pack_block(block)
    assert len(data) <= len(block)
    assert unpack_block(data, size) == block


PACKED = zlib.compress(b"0123456789" * 10)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (PACKED, 99),
        (PACKED, 101),
        (PACKED, -1),
        (PACKED[:-1], 100),
        (PACKED + b"more", 100),
        (b"x" + PACKED, 100),
        (zlib.compress(b"\0" * (64 << 20)), BLOCK_BYTES),
        (zlib.compress(b"\0" * (64 << 20)), 64 << 20),
    ],
)
def test_a_damaged_block_is_refused(data: bytes, size: int) -> None:
    with pytest.raises(RefusedError):
        unpack_block(data, size)
