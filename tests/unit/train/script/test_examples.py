from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.mnist.make_mnist import write_mnist
from train.script.source import check_script

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "train" / "examples"


@pytest.mark.parametrize("name", ["keras_fit.py", "custom_loop.py", "generator.py", "parameter_server.py"])
def test_an_example_compiles_is_self_contained_and_is_documented(name: str) -> None:
    script = check_script(EXAMPLES / name)
    assert f"`{name}`" in (EXAMPLES / "README.md").read_text()
    for option in ("--epochs", "--batch-size"):
        assert f'"{option}", type=int, default=' in script.read_text()


def test_the_digits_are_those_of_the_source() -> None:
    path = EXAMPLES / "digits.npz"
    assert path.stat().st_size < 200_000
    with np.load(path) as shipped:
        data = shipped["images"].tobytes() + shipped["labels"].tobytes()
        assert shipped["images"].shape == (1797, 8, 8)
    # Of scikit-learn's load_digits(), in 8 bits each.
    assert hashlib.sha256(data).hexdigest() == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_generated_mnist_has_the_layout_of_the_original(tmp_path: Path) -> None:
    write_mnist(tmp_path / "a.npz", 50)
    write_mnist(tmp_path / "b.npz", 50)
    with np.load(tmp_path / "a.npz") as made, np.load(tmp_path / "b.npz") as again:
        assert made["x_train"].shape == (50, 28, 28)
        assert made["x_test"].shape == (10, 28, 28)
        assert {str(made[name].dtype) for name in made.files} == {"uint8"}
        assert made["x_train"].max() > 200
        assert set(made["y_train"]) <= set(range(10))
        assert all(np.array_equal(made[name], again[name]) for name in made.files)
