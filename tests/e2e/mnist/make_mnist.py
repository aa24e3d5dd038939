"""MNIST-shaped data without a network: the digits of the examples, enlarged to 28 by 28 pixels, moved and with noise.

    python make_mnist.py OUT.npz [EXAMPLES]

The same arguments make the same arrays.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = 2_600
_DIGITS = Path(__file__).parents[3] / "train" / "examples" / "digits.npz"
_SCALE = np.kron(np.eye(8), np.ones((1, 3)))  # repeats each of 8 pixels three times


def write_mnist(path: Path, examples: int = EXAMPLES) -> None:
    """Write `examples` training pictures and a fifth as many test pictures, in the layout of mnist.npz.

    Args:
        path: File to write, ending in ``.npz``.
        examples: Number of training pictures.
    """
    with np.load(_DIGITS) as digits:
        images, labels = digits["images"], digits["labels"]
    large = np.einsum("ri,nrc,cj->nij", _SCALE, images * (255 / 16), _SCALE)  # 24 by 24
    random = np.random.default_rng(0)
    x_train, y_train = _pictures(large, labels, examples, random)
    x_test, y_test = _pictures(large, labels, max(examples // 5, 1), random)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _pictures(large: Any, labels: Any, count: int, random: np.random.Generator) -> tuple[Any, Any]:
    choice = random.integers(0, len(large), count)
    pictures = random.integers(0, 20, (count, 28, 28)).astype(np.uint8)
    for picture, index, (row, column) in zip(pictures, choice, random.integers(0, 5, (count, 2)), strict=True):
        window = picture[row : row + 24, column : column + 24]
        np.maximum(window, large[index].astype(np.uint8), out=window)
    return pictures, labels[choice].astype(np.uint8)


if __name__ == "__main__":
    write_mnist(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else EXAMPLES)
