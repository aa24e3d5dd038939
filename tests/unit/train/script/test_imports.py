from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.train.script.test_script import write
from train.script.entry import find_entry
from train.script.imports import advice, needed


def test_the_immediate_imports_of_a_script_are_needed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "task.py": "import os, numpy as np\nfrom tensorflow.keras import layers\nimport model\nimport data.sets\n"
            "try:\n    import maybe\nexcept ImportError:\n    maybe = None\nif True:\n    import conditional\n"
            "with x:\n    import suppressed\ndef f():\n    import lazy\n    import later\n",
            "model.py": "import numpy\nfrom pandas import DataFrame\n",
            "later.py": "import never\n",
            "data/sets.py": "import pyarrow\n",  # a package without __init__.py
            "unused.py": "import unused_package\n",
        },
    )
    assert needed(find_entry(str(tmp_path / "task.py"), "", (), "")).locations == {
        "os": "task.py:1",
        "numpy": "task.py:1",
        "tensorflow": "task.py:2",
        "pandas": "model.py:2",
        "pyarrow": "data/sets.py:1",
    }


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import tensorflow as tf\ndef f():\n    tf.summary.scalar('loss', 1.0, step=1)\n", "task.py:3"),
        ("from tensorflow import summary\nsummary.histogram('w', [1.0], step=1)\n", "task.py:2"),
        ("import tensorflow as tf\nfit(callbacks=[tf.keras.callbacks.TensorBoard('logs')])\n", "task.py:2"),
        ("from keras.callbacks import TensorBoard\nTensorBoard('logs')\n", "task.py:2"),
        ("from tensorboard.plugins.hparams import api\n", "task.py:1"),
        ("from near import callback\n", "near.py:2"),
        ("import tensorflow as tf\ntf.summary.create_file_writer('logs')\ntf.summary.write('a', 1, step=1)\n", None),
        ("import tensorflow.compat.v1 as tf\ntf.summary.scalar('loss', 1.0)\n", None),
        ("import tensorflow as tf\ntf.compat.v1.summary.scalar('loss', 1.0)\n", None),
        ("from torch.utils.tensorboard import SummaryWriter\n", None),
        ("import wandb\nwandb.summary.scalar('loss')\n", None),
    ],
)
def test_calls_that_require_tensorboard(tmp_path: Path, source: str, place: str | None) -> None:
    near = "import tf_keras\ncallback = tf_keras.callbacks.TensorBoard()\n"
    write(tmp_path, {"task.py": source, "near.py": near})
    assert needed(find_entry(str(tmp_path / "task.py"), "", (), "")).locations.get("tensorboard") == place


@pytest.mark.parametrize(
    ("source", "is_required"),
    [
        ("import tensorflow as tf\nflow = tf.keras.preprocessing.image.ImageDataGenerator(rescale=1 / 255)\n", True),
        ("from keras.preprocessing.image import ImageDataGenerator\nImageDataGenerator()\n", True),
        ("import keras\nkeras.legacy.preprocessing.image.ImageDataGenerator()\n", True),
        ("from keras_preprocessing.image import ImageDataGenerator\nImageDataGenerator()\n", False),
        ("from keras.preprocessing.image import ImageDataGenerator, load_img\nload_img('a')\n", False),
    ],
)
def test_image_data_generators_require_scipy(tmp_path: Path, source: str, is_required: bool) -> None:
    write(tmp_path, {"task.py": source})
    locations = needed(find_entry(str(tmp_path / "task.py"), "", (), "")).locations
    assert locations.get("scipy") == ("task.py:2" if is_required else None)


def test_the_immediate_imports_of_a_module_are_needed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pkg/__init__.py": "import first\n",
            "pkg/task.py": "from . import near\nfrom .near import x\nimport sibling\n",
            "pkg/near.py": "import second\nfrom .. import outside\n",
            "pkg/sibling.py": "",
        },
    )
    result = needed(find_entry("", "pkg.task", (), str(tmp_path))).locations
    assert result == {"sibling": "pkg/task.py:3", "first": "pkg/__init__.py:1", "second": "pkg/near.py:1"}


@pytest.mark.parametrize("line", ["sys.path.insert(0, 'lib')", "sys.path += ['lib']", "from sys import path"])
def test_modules_that_are_not_uploaded_are_checked_after_a_change_of_the_path(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"task.py": f"import sys\n{line}\nimport far, near.sub, deep\n"})
    result = needed(find_entry(str(tmp_path / "task.py"), "", (), ""), ["task.py", "lib/near/sub.py", "x/y/deep.py"])
    assert result.locations == {"sys": "task.py:1", "far": "task.py:3"}
    assert result.note == (
        "not checked whether these can be imported: near (task.py:3), deep (task.py:3); task.py:2 changes sys.path"
    )


def test_python_path_counts_as_a_change_and_its_directories_are_searched(tmp_path: Path) -> None:
    write(tmp_path, {"task.py": "import far\nimport near\n"})
    entry = find_entry(str(tmp_path / "task.py"), "", (), "")
    result = needed(entry, ["task.py", "lib/near.py"], python_path="lib:/opt/lib")
    assert (result.locations, result.directories) == ({"far": "task.py:1"}, ("/opt/lib",))
    assert result.note.endswith("near (task.py:2); PYTHONPATH is set")
    assert not needed(entry, ["task.py"], python_path="lib").note  # nothing is omitted


@pytest.mark.parametrize("line", ["sys.meta_path.append(f)", "sys.path_hooks.clear()", "sys.modules[name] = made"])
def test_nothing_is_checked_after_a_change_of_the_import_hooks(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"task.py": f"import sys\n{line}\nimport far\n"})
    result = needed(find_entry(str(tmp_path / "task.py"), "", (), ""))
    assert result.locations == {}
    assert result.note.startswith(
        "not checked whether these can be imported: far (task.py:3); task.py:2 changes sys."
    )


def test_modules_that_the_script_creates_are_not_missing(tmp_path: Path) -> None:
    write(tmp_path, {"task.py": "import sys\nsys.modules['made'] = sys.modules[__name__]\nimport made, far\n"})
    result = needed(find_entry(str(tmp_path / "task.py"), "", (), ""))
    assert (list(result.locations), result.note) == (["sys", "far"], "")


def test_only_known_packages_are_suggested(tmp_path: Path) -> None:
    write(tmp_path, {"lib/nets.py": "", "lib/deep/task.py": ""})
    assert advice("sklearn") == "add scikit-learn to pyproject.toml or requirements.txt next to the script"
    assert (
        advice("tensorflow_datasets")
        == "add tensorflow-datasets to pyproject.toml or requirements.txt next to the script"
    )
    assert "create tf.distribute.MultiWorkerMirroredStrategy() instead" in advice("horovod")
    entry = find_entry(str(tmp_path / "lib" / "deep" / "task.py"), "", (), "")
    assert advice("resnet", entry).startswith("push it with the script if it is yours (--workdir)")
    assert advice("nets", entry) == (
        f"it is in {tmp_path / 'lib'}: run the script from there, --workdir {tmp_path / 'lib'} -m deep.task"
    )


def test_modules_next_to_the_directory_of_a_script_are_not_found_by_python(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/task.py": "import pkg.model\nimport near\n", "pkg/near.py": "", "model.py": ""})
    write(tmp_path, {"pkg/model.py": ""})
    entry = find_entry(str(tmp_path / "pkg" / "task.py"), "", (), str(tmp_path))
    assert needed(entry).locations == {"pkg": "pkg/task.py:1"}
    module = find_entry("", "pkg.task", (), str(tmp_path))
    assert needed(module).locations == {"near": "pkg/task.py:2"}


def test_other_programs_have_no_known_needs(tmp_path: Path) -> None:
    write(tmp_path, {"task.R": "library(keras)\n", "task.py": "import x\n"})
    assert needed(find_entry(str(tmp_path / "task.R"), "", (), "")).locations == {}
    assert needed(find_entry("", "", ("bash", "-c", "python task.py"), str(tmp_path))).locations == {}


@pytest.mark.parametrize(
    "words",
    [
        ("python", "task.py"),
        ("python3", "-u", "-X", "dev", "task.py", "--epochs", "3"),
        ("python", "-m", "task"),
        ("python", "-m", "pkg"),
    ],
)
def test_a_python_command_needs_the_imports_of_its_script(tmp_path: Path, words: tuple[str, ...]) -> None:
    source = "import pandas\nimport tensorflow as tf\ntf.keras.callbacks.TensorBoard('logs')\n"
    write(tmp_path, {"task.py": source, "pkg/__init__.py": "", "pkg/__main__.py": source})
    result = needed(find_entry("", "", words, str(tmp_path))).locations
    assert {"pandas", "tensorflow", "tensorboard"} <= result.keys()


@pytest.mark.parametrize("words", [("python", "-c", "import x"), ("python", "-I", "task.py"), ("python", "none.py")])
def test_a_python_command_without_a_known_script_has_no_known_needs(tmp_path: Path, words: tuple[str, ...]) -> None:
    write(tmp_path, {"task.py": "import pandas\n"})
    assert needed(find_entry("", "", words, str(tmp_path))).locations == {}
