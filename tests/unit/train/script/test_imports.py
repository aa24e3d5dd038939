from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.train.script.test_script import write
from train.script.entry import find_entry
from train.script.imports import Imports, advice, needed


def of_script(directory: Path, source: str, *pushed: str, python_path: str = "") -> Imports:
    write(directory, {"task.py": source})
    return needed(find_entry(str(directory / "task.py"), "", (), ""), pushed, python_path)


def test_the_immediate_imports_of_a_script_are_needed(tmp_path: Path) -> None:
    files = {
        "model.py": "import numpy\nfrom pandas import DataFrame\n",
        "later.py": "import never\n",
        "data/sets.py": "import pyarrow\n",  # a package without __init__.py
        "unused.py": "import unused_package\n",
    }
    write(tmp_path, files)
    source = (
        "import os, numpy as np\nfrom tensorflow.keras import layers\nimport model\nimport data.sets\n"
        "try:\n    import maybe\nexcept ImportError:\n    maybe = None\nif True:\n    import conditional\n"
        "with x:\n    import suppressed\ndef f():\n    import lazy\n    import later\n"
    )
    assert of_script(tmp_path, source).locations == {
        "os": "task.py:1", "numpy": "task.py:1", "tensorflow": "task.py:2", "pandas": "model.py:2",
        "pyarrow": "data/sets.py:1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "package", "place"),
    [
        (
            "import tensorflow as tf\ndef f():\n    tf.summary.scalar('loss', 1.0, step=1)\n",
            "tensorboard",
            "task.py:3",
        ),
        ("from tensorflow import summary\nsummary.histogram('w', [1.0], step=1)\n", "tensorboard", "task.py:2"),
        ("import tensorflow as tf\nf(x=[tf.keras.callbacks.TensorBoard('logs')])\n", "tensorboard", "task.py:2"),
        ("from keras.callbacks import TensorBoard\nTensorBoard('logs')\n", "tensorboard", "task.py:2"),
        ("from tensorboard.plugins.hparams import api\n", "tensorboard", "task.py:1"),
        ("from near import callback\n", "tensorboard", "near.py:2"),
        ("import tensorflow as tf\ntf.summary.create_file_writer('logs')\n", "tensorboard", None),
        ("import tensorflow.compat.v1 as tf\ntf.summary.scalar('loss', 1.0)\n", "tensorboard", None),
        ("import tensorflow as tf\ntf.compat.v1.summary.scalar('loss', 1.0)\n", "tensorboard", None),
        ("from torch.utils.tensorboard import SummaryWriter\n", "tensorboard", None),
        ("import wandb\nwandb.summary.scalar('loss')\n", "tensorboard", None),
        ("import tensorflow as tf\ntf.keras.preprocessing.image.ImageDataGenerator(1)\n", "scipy", "task.py:2"),
        ("from keras.preprocessing.image import ImageDataGenerator\nImageDataGenerator()\n", "scipy", "task.py:2"),
        ("import keras\nkeras.legacy.preprocessing.image.ImageDataGenerator()\n", "scipy", "task.py:2"),
        ("from keras_preprocessing.image import ImageDataGenerator\nImageDataGenerator()\n", "scipy", None),
        ("from keras.preprocessing.image import ImageDataGenerator, load_img\nload_img('a')\n", "scipy", None),
    ],
)
def test_calls_that_require_a_package(tmp_path: Path, source: str, package: str, place: str | None) -> None:
    write(tmp_path, {"near.py": "import tf_keras\ncallback = tf_keras.callbacks.TensorBoard()\n"})
    assert of_script(tmp_path, source).locations.get(package) == place


def test_the_immediate_imports_of_a_module_are_needed(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "import first\n",
        "pkg/task.py": "from . import near\nfrom .near import x\nimport sibling\n",
        "pkg/near.py": "import second\nfrom .. import outside\n",
        "pkg/sibling.py": "",
    }
    write(tmp_path, files)
    result = needed(find_entry("", "pkg.task", (), str(tmp_path))).locations
    assert result == {"sibling": "pkg/task.py:3", "first": "pkg/__init__.py:1", "second": "pkg/near.py:1"}


@pytest.mark.parametrize("line", ["sys.path.insert(0, 'lib')", "sys.path += ['lib']", "from sys import path"])
def test_modules_that_are_not_uploaded_are_checked_after_a_change_of_the_path(tmp_path: Path, line: str) -> None:
    source = f"import sys\n{line}\nimport far, near.sub, deep\n"
    result = of_script(tmp_path, source, "task.py", "lib/near/sub.py", "x/y/deep.py")
    assert result.locations == {"sys": "task.py:1", "far": "task.py:3"}
    unchecked = "not checked whether these can be imported: near (task.py:3), deep (task.py:3)"
    assert result.note == f"{unchecked}; task.py:2 changes sys.path"


def test_python_path_counts_as_a_change_and_its_directories_are_searched(tmp_path: Path) -> None:
    source = "import far\nimport near\n"
    result = of_script(tmp_path, source, "task.py", "lib/near.py", python_path="lib:/opt/lib")
    assert (result.locations, result.directories) == ({"far": "task.py:1"}, ("/opt/lib",))
    assert result.note.endswith("near (task.py:2); PYTHONPATH is set")
    assert not of_script(tmp_path, source, "task.py", python_path="lib").note  # nothing is omitted


@pytest.mark.parametrize("line", ["sys.meta_path.append(f)", "sys.path_hooks.clear()", "sys.modules[name] = made"])
def test_nothing_is_checked_after_a_change_of_the_import_hooks(tmp_path: Path, line: str) -> None:
    result = of_script(tmp_path, f"import sys\n{line}\nimport far\n")
    assert result.locations == {}
    unchecked = "not checked whether these can be imported: far (task.py:3)"
    assert result.note.startswith(f"{unchecked}; task.py:2 changes sys.")


def test_modules_that_the_script_creates_are_not_missing(tmp_path: Path) -> None:
    result = of_script(tmp_path, "import sys\nsys.modules['made'] = sys.modules[__name__]\nimport made, far\n")
    assert (list(result.locations), result.note) == (["sys", "far"], "")


def test_only_known_packages_are_suggested(tmp_path: Path) -> None:
    write(tmp_path, {"lib/nets.py": "", "lib/deep/task.py": ""})
    files = "pyproject.toml or requirements.txt next to the script"
    assert advice("sklearn") == f"add scikit-learn to {files}"
    assert advice("tensorflow_datasets") == f"add tensorflow-datasets to {files}"
    assert "create tf.distribute.MultiWorkerMirroredStrategy() instead" in advice("horovod")
    entry, lib = find_entry(str(tmp_path / "lib" / "deep" / "task.py"), "", (), ""), tmp_path / "lib"
    assert advice("resnet", entry).startswith("push it with the script if it is yours (--workdir)")
    assert advice("nets", entry) == f"it is in {lib}: run the script from there, --workdir {lib} -m deep.task"


def test_modules_next_to_the_directory_of_a_script_are_not_found_by_python(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/task.py": "import pkg.model\nimport near\n", "pkg/near.py": "", "pkg/model.py": ""})
    entry = find_entry(str(tmp_path / "pkg" / "task.py"), "", (), str(tmp_path))
    assert needed(entry).locations == {"pkg": "pkg/task.py:1"}
    module = find_entry("", "pkg.task", (), str(tmp_path))
    assert needed(module).locations == {"near": "pkg/task.py:2"}


@pytest.mark.parametrize(
    ("command", "is_known"),
    [
        ("python task.py", True), ("python3 -u -X dev task.py --epochs 3", True), ("python -m task", True),
        ("python -m pkg", True), ("python -c import", False), ("python -I task.py", False), ("python none.py", False),
        ("bash task.py", False),
    ],
)  # fmt: skip
def test_a_python_command_needs_the_imports_of_its_script(tmp_path: Path, command: str, is_known: bool) -> None:
    source = "import pandas\nimport tensorflow as tf\ntf.keras.callbacks.TensorBoard('logs')\n"
    write(tmp_path, {"task.py": source, "pkg/__init__.py": "", "pkg/__main__.py": source})
    result = needed(find_entry("", "", tuple(command.split()), str(tmp_path))).locations
    assert result.keys() == ({"pandas", "tensorflow", "tensorboard"} if is_known else set())
