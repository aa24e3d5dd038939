"""A notebook whose cells write the script: its files are uploaded, and its main script runs on all hosts."""

from __future__ import annotations

import json

import pytest

from tests.program import Program, lines_of

pytestmark = pytest.mark.wire

CELLS = [
    "%pip install tensorflow\n",
    "%%writefile setup_data.py\nimport helper\n\ndef load():\n    return helper.SIZE\n",
    "%%writefile main.py\nimport json\nimport os\nimport sys\n\nimport setup_data\n",
    "%%writefile -a main.py\n\nindex = json.loads(os.environ['TF_CONFIG'])['task']['index']\n",
    "%%writefile -a main.py\nprint(setup_data.load(), index, sys.argv[1:])\n",
    "%%bash\npython main.py --epochs 3 &> job_0.log\n",
]


def test_the_script_of_a_notebook_runs_and_no_file_of_the_user_is_changed(pair: Program) -> None:
    cells = [{"cell_type": "code", "source": cell} for cell in CELLS]
    pair.script("tutorial.ipynb", json.dumps({"cells": cells, "nbformat": 4}))
    pair.script("helper.py", "SIZE = 42\n")
    pair.script("main.py", "print('a file of the user')\n")
    ran = pair.run("train", "tutorial.ipynb")
    assert (
        "tutorial.ipynb writes setup_data.py, main.py: running main.py --epochs 3 in a directory of its own"
        in ran.err
    )
    assert [lines_of(ran, f"worker-{index}") for index in (0, 1)] == [[f"42 {i} ['--epochs', '3']"] for i in (0, 1)]
    ran = pair.run("train", "tutorial.ipynb", "--", "--epochs", "1")
    assert lines_of(ran, "worker-1") == ["42 1 ['--epochs', '1']"]
    assert (pair.directory / "main.py").read_text() == "print('a file of the user')\n"
    assert sorted(path.name for path in pair.directory.iterdir()) == ["helper.py", "main.py", "tutorial.ipynb"]


def test_the_module_of_a_package_that_a_notebook_writes_runs(pair: Program) -> None:
    package = ["%%writefile trainer/task.py\nfrom trainer import model\nprint(model.SIZE)\n"]
    package += ["%%writefile trainer/model.py\nSIZE = 43\n", "%%writefile trainer/__init__.py\n"]
    cells = [{"cell_type": "code", "source": cell} for cell in [*package, "!python -m trainer.task\n"]]
    pair.script("package.ipynb", json.dumps({"cells": cells, "nbformat": 4}))
    ran = pair.run("train", "package.ipynb")
    assert [lines_of(ran, f"worker-{index}") for index in (0, 1)] == [["43"], ["43"]]


def test_a_notebook_without_a_script_is_refused_before_anything_is_started(pair: Program) -> None:
    pair.script("plain.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "print(1)\n"}]}))
    ran = pair.run("train", "plain.ipynb", code=2)
    assert "next:  jupyter nbconvert --to script plain.ipynb" in ran.err
    pair.script(
        "tutorial.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "%%writefile a.py\nx = 1\n"}]})
    )
    ran = pair.run("train", "--workdir", ".", "tutorial.ipynb", code=2)
    assert "--workdir does not apply to a notebook" in ran.err
    assert "next:  fleet train tutorial.ipynb" in ran.err
