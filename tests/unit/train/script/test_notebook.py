"""The files that a notebook writes with %%writefile, and the script among them that it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train.errors import ScriptError
from train.script.notebook import read_notebook

MAIN = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"


def notebook(directory: Path, *cells: str) -> Path:
    path = directory / "tutorial.ipynb"
    values = [{"cell_type": "markdown", "source": ["# %%writefile no.py\n"]}]
    values += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    path.write_text(json.dumps({"cells": values, "nbformat": 4}))
    return path


def refused(path: Path) -> ScriptError:
    with pytest.raises(ScriptError) as raised:
        read_notebook(path)
    assert "\n" not in raised.value.message
    return raised.value


def test_all_files_are_read_and_the_later_cell_replaces_or_appends(tmp_path: Path) -> None:
    cells = [
        "%%writefile setup.py\nx = 1",
        "import setup\n",
        "%%writefile main.py\nold",
        f"%%writefile main.py\n{MAIN}",
    ]
    result = read_notebook(notebook(tmp_path, *cells, "%%file -a 'main.py'\nprint(2)\n", "!python main.py &> log\n"))
    assert result.files == {"setup.py": "x = 1\n", "main.py": MAIN + "print(2)\n"}
    assert result.main == "main.py"


@pytest.mark.parametrize(
    ("run", "main"),
    [
        ("!python a.py --epochs 3", "a.py"),
        ("%%bash\n# all processes\npython ./a.py &> job_0.log", "a.py"),
        ("import os\n!TF_CONFIG='{}' python3 -u a.py", "a.py"),
        ("%run a.py", "a.py"),
        ("print('python a.py')", "z.py"),
        ("!python unknown.py", "z.py"),
    ],
)
def test_the_script_that_a_cell_runs_is_the_main_one(tmp_path: Path, run: str, main: str) -> None:
    path = notebook(tmp_path, f"%%writefile a.py\n{MAIN}", f"%%writefile z.py\n{MAIN}", run)
    assert read_notebook(path).main == main


@pytest.mark.parametrize(
    ("runs", "arguments"),
    [
        (["!python a.py --epochs 3 --name 'my model' # once"], ("--epochs", "3", "--name", "my model")),
        (["%%bash\npython ./a.py --epochs 3 \\\n  --lr 0.1 2> log &"], ("--epochs", "3", "--lr", "0.1")),
        (["%run a.py --epochs=3; ls"], ("--epochs=3",)),
        (["!python a.py --epochs 3", "!python a.py --epochs 3 &> log"], ("--epochs", "3")),
        (["!python a.py --epochs 3", "!python a.py --epochs 4"], ()),
        (["!python a.py --epochs {epochs}"], ()),
        (["!python a.py --epochs $epochs"], ()),
        (["!python a.py --task_index=0 --epochs 3"], ()),
        (["!python a.py 'open"], ()),
        (["!python b.py --epochs 3"], ()),
    ],
)
def test_the_arguments_of_the_main_script_are_read(tmp_path: Path, runs: list[str], arguments: tuple[str]) -> None:
    path = notebook(tmp_path, f"%%writefile a.py\n{MAIN}", *runs)
    assert read_notebook(path).arguments == arguments


@pytest.mark.parametrize(
    "run", ["!python -m src.main --epochs 3", "!cd src && python main.py", "%%sh\ncd src && python3 main.py"]
)
def test_a_module_and_a_script_of_another_directory_are_the_main_one(tmp_path: Path, run: str) -> None:
    path = notebook(tmp_path, "%%writefile src/main.py\nimport model\n", "%%writefile src/model.py\n", run)
    assert read_notebook(path).main == "src/main.py"


def test_a_package_file_is_not_the_main_script(tmp_path: Path) -> None:
    path = notebook(tmp_path, "%%writefile src/main.py\nimport model\n", "%%writefile src/__init__.py\n")
    assert read_notebook(path).main == "src/main.py"


@pytest.mark.parametrize(
    "cell", ["%%time\n%%writefile a.py\nx = 1", "\n  \n%%writefile a.py\nx = 1", "%%writefile a.py\r\nx = 1"]
)
def test_other_magics_blank_lines_and_line_ends_of_windows_may_precede_the_text(tmp_path: Path, cell: str) -> None:
    assert read_notebook(notebook(tmp_path, cell)).files == {"a.py": "x = 1\n"}


def test_of_several_scripts_the_one_with_a_strategy_is_the_main_one(tmp_path: Path) -> None:
    path = notebook(tmp_path, f"%%writefile train.py\n{MAIN}", "%%writefile evaluate.py\nx = 1\n")
    assert read_notebook(path).main == "train.py"
    path = notebook(
        tmp_path, f"%%writefile train.py\n{MAIN}", "%%writefile show.py\n", "!python train.py\n!python show.py"
    )
    assert read_notebook(path).main == "train.py"


def test_a_notebook_that_writes_no_script_is_refused_with_the_conversion_command(tmp_path: Path) -> None:
    for cells in ((), ("x = 1\n",), ("%%writefile data.csv\n1,2\n",)):
        error = refused(notebook(tmp_path, *cells))
        assert error.next_steps == (("jupyter", "nbconvert", "--to", "script", str(tmp_path / "tutorial.ipynb")),)


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "~/evil.py", "a/../../evil.py", ".", "'a\tb.py'"])
def test_a_file_outside_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    assert "is not a file below its directory" in refused(notebook(tmp_path, f"%%writefile {name}\nx = 1\n")).message


def test_a_file_that_is_a_directory_too_is_refused(tmp_path: Path) -> None:
    path = notebook(tmp_path, "%%writefile a\nx\n", "%%writefile a/b.py\nx = 1\n")
    assert "writes a as a file and as a directory" in refused(path).message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe\x00", b'{"cells": 1}', b'{"cells": [1]}', b'{"cells": [{"cell_type": "code"}]}'],
)
def test_a_damaged_notebook_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tutorial.ipynb"
    path.write_bytes(content)
    assert "is a damaged notebook" in refused(path).message


def test_a_notebook_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tutorial.ipynb"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    assert "is too large" in refused(path).message
