from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.train.test_script import write
from train.entry import find_entry
from train.packages import needed


def test_what_a_script_imports_at_once(tmp_path: Path) -> None:
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
    assert needed(find_entry(str(tmp_path / "task.py"), "", (), "")) == {
        "os": "task.py:1",
        "numpy": "task.py:1",
        "tensorflow": "task.py:2",
        "pandas": "model.py:2",
        "pyarrow": "data/sets.py:1",
    }


def test_what_a_module_imports_at_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pkg/__init__.py": "import first\n",
            "pkg/task.py": "from . import near\nfrom .near import x\nimport beside\n",
            "pkg/near.py": "import second\nfrom .. import outside\n",
            "pkg/beside.py": "",
        },
    )
    found = needed(find_entry("", "pkg.task", (), str(tmp_path)))
    assert found == {"beside": "pkg/task.py:3", "first": "pkg/__init__.py:1", "second": "pkg/near.py:1"}


@pytest.mark.parametrize("line", ["sys.path.insert(0, 'lib')", "sys.path += ['lib']", "sys.meta_path.append(f)"])
def test_nothing_is_known_where_the_paths_change(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"task.py": f"import sys\n{line}\nimport far\n"})
    assert needed(find_entry(str(tmp_path / "task.py"), "", (), "")) == {}


def test_other_programs_need_nothing_that_is_known(tmp_path: Path) -> None:
    write(tmp_path, {"task.R": "library(keras)\n", "task.py": "import x\n"})
    assert needed(find_entry(str(tmp_path / "task.R"), "", (), "")) == {}
    assert needed(find_entry("", "", ("python", "task.py"), str(tmp_path))) == {}
