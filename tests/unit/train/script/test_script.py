from __future__ import annotations

import os
from pathlib import Path

import pytest

from train.errors import ScriptError
from train.script.source import check_script, imports


def refused(script: Path) -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        check_script(script)
    return caught.value


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"print('hello')\n",
        b"print('hello')\r\n",
        b"\xef\xbb\xbfx = 1\n",  # a byte order mark
        b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
        b"import re\nre.compile('\\d')\n",  # a SyntaxWarning only
        b"import nothing_that_exists\nraise SystemExit(3)\n",
    ],
)
def test_a_script_that_compiles_is_accepted_and_not_executed(tmp_path: Path, content: bytes) -> None:
    script = tmp_path / "task.py"
    script.write_bytes(content)
    assert check_script(script) == script


@pytest.mark.parametrize(
    ("content", "line", "shown"),
    [
        (b"x = 1\nfor i in range(3\n    print(i)\n", 2, "for i in range(3"),
        (b"return 5\n", 1, "return 5"),
        (b"def f():\n  x = 1\n    y = 2\n", 3, "y = 2"),
        (b"x = 1\nprint 'hello'\n", 2, "print 'hello'"),
        (b"x = '" + b"a" * 500 + b"\n", 1, "x = 'aaa"),
    ],
)
def test_a_syntax_error_is_shown_with_its_line(tmp_path: Path, content: bytes, line: int, shown: str) -> None:
    script = tmp_path / "task.py"
    script.write_bytes(content)
    error = refused(script)
    assert error.message.startswith(f"{script}:{line}: ")
    assert shown in error.cause
    assert len(error.cause) < 200
    assert error.cause.endswith("…") == (len(content) > 200)
    assert error.next_steps == (("python3", "-m", "py_compile", str(script)),)


@pytest.mark.parametrize("content", [b"name = '\xe9'\n", b"# coding: no-such-thing\n", b"x = 1\x00\n", b"(" * 5000])
def test_files_that_are_not_python_are_rejected(tmp_path: Path, content: bytes) -> None:
    script = tmp_path / "task.py"
    script.write_bytes(content)
    assert str(script) in refused(script).message


def test_a_missing_script_names_a_similar_one(tmp_path: Path) -> None:
    write(tmp_path, {"train_mnist.py": "", "other.py": ""})
    error = refused(tmp_path / "train_mnits.py")
    assert error.message == f"the script {tmp_path / 'train_mnits.py'} does not exist"
    assert error.hint == f"did you mean {tmp_path / 'train_mnist.py'}?"
    assert error.again == {"SCRIPT": str(tmp_path / "train_mnist.py")}
    assert "other.py, train_mnist.py" in refused(tmp_path / "zzz").hint
    assert "the directory" in refused(tmp_path / "nowhere" / "a.py").hint
    assert "does not exist" in refused(tmp_path / "other.py" / "a.py").message


def test_a_directory_is_rejected_with_a_script_in_it_as_hint(tmp_path: Path) -> None:
    assert "name a Python script" in refused(tmp_path).hint
    write(tmp_path, {"b.py": "", "a.py": ""})
    error = refused(tmp_path)
    assert error.message == f"{tmp_path} is a directory, not a script"
    assert str(tmp_path / "a.py") in error.hint


def test_a_notebook_is_rejected_with_the_conversion_command(tmp_path: Path) -> None:
    notebook = tmp_path / "my work.ipynb"
    notebook.write_text("{}")
    assert refused(notebook).next_steps == (("jupyter", "nbconvert", "--to", "script", str(notebook)),)


@pytest.mark.parametrize("name", ["task", "task.pyc", "task.sh", "task.txt"])
def test_only_python_scripts_are_accepted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x = 1\n")
    assert "does not end in .py" in refused(tmp_path / name).cause


def test_irregular_files_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "not a regular file" in refused(tmp_path / "pipe.py").message
    (tmp_path / "link.py").symlink_to("gone.py")
    assert "a link to nothing" in refused(tmp_path / "link.py").message
    assert "gone.py" in refused(tmp_path / "link.py").cause
    assert "cannot be read" in refused(tmp_path / ("x" * 300 + ".py")).message
    assert "not a file name" in refused(tmp_path / "a\0b.py").message


def test_an_unreadable_script_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "task.py"
    script.write_text("x = 1\n")

    def denied(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    error = refused(script)
    assert error.cause == "permission denied"
    assert error.next_steps == (("chmod", "u+r", str(script)),)


def test_imports_follows_modules_of_the_directory(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "main.py": "import os, tensorflow\nimport data\nfrom net import model, missing\nimport pkg.deep.leaf\n",
            "data.py": "def load():\n    import lazy\n",
            "lazy.py": "import data\nimport main\n",  # a cycle
            "net/__init__.py": "",
            "net/model.py": "from . import layers\nfrom ..data import load\nfrom .block import Block\n",
            "net/layers.py": "",
            "net/block.py": "",
            "pkg/deep/leaf.py": "",  # packages without __init__.py
            "unused.py": "",
        },
    )
    result = [source.name for source in imports(tmp_path / "main.py", tmp_path)]
    assert result[0] == "main.py"
    assert sorted(result) == [
        "data.py", "lazy.py", "main.py", "net/__init__.py", "net/block.py", "net/layers.py", "net/model.py",
        "pkg/deep/leaf.py",
    ]  # fmt: skip


def test_imports_searches_next_to_the_script_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"jobs/near.py": "x =", "near.py": "", "far.py": "", "../outside.py": ""}
    write(tmp_path / "w", {**files, "jobs/task.py": "import near\nimport far\nfrom ... import outside\n"})
    monkeypatch.chdir(tmp_path / "w")
    for top in (tmp_path / "w", Path()):
        names = [source.name for source in imports(top / "jobs/task.py", top)]
        assert names == ["jobs/task.py", "jobs/near.py", "far.py"]
