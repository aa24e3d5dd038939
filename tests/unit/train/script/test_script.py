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
        b"", b"print('hello')\r\n", b"\xef\xbb\xbfx = 1\n", b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
        b"import re\nre.compile('\\d')\n",  # a SyntaxWarning only
        b"import nothing_that_exists\nraise SystemExit(3)\n",
    ],
)  # fmt: skip
def test_a_script_that_compiles_is_accepted_and_not_executed(tmp_path: Path, content: bytes) -> None:
    script = tmp_path / "task.py"
    script.write_bytes(content)
    assert check_script(script) == script


@pytest.mark.parametrize(
    ("content", "line", "shown"),
    [
        (b"x = 1\nfor i in range(3\n    print(i)\n", 2, "for i in range(3"),
        (b"return 5\n", 1, "return 5"),
        (b"x = 1\nprint 'hello'\n", 2, "print 'hello'"),
        (b"x = '" + b"a" * 500 + b"\n", 1, "x = 'aaa"),
        (b"name = '\xe9'\n", 0, ""), (b"# coding: no-such-thing\n", 0, ""), (b"x = 1\x00\n", 0, ""),
        (b"(" * 5000, 0, ""),
    ],
)  # fmt: skip
def test_a_syntax_error_is_shown_with_its_line(tmp_path: Path, content: bytes, line: int, shown: str) -> None:
    script = tmp_path / "task.py"
    script.write_bytes(content)
    error = refused(script)
    assert error.message.startswith(f"{script}:{line}: " if line else str(script))
    assert shown in error.cause
    assert len(error.cause) < 200
    assert not line or error.next_steps == (("python3", "-m", "py_compile", str(script)),)


def test_a_missing_script_names_a_similar_one(tmp_path: Path) -> None:
    write(tmp_path, {"train_mnist.py": "", "other.py": ""})
    error, meant = refused(tmp_path / "train_mnits.py"), tmp_path / "train_mnist.py"
    assert error.message == f"the script {tmp_path / 'train_mnits.py'} does not exist"
    assert (error.hint, error.again) == (f"did you mean {meant}?", {"SCRIPT": str(meant)})
    assert "there are: other.py, train_mnist.py" in refused(tmp_path / "zzz.py").hint
    assert "does not exist" in refused(tmp_path / "none" / "task.py").hint


def test_files_of_other_kinds_are_rejected(tmp_path: Path) -> None:
    write(tmp_path, {"task.sh": "x = 1\n", "work.ipynb": "{}", "jobs/a.py": ""})
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link.py").symlink_to("gone.py")
    for name, message in {
        "task.sh": "is not a Python script", "work.ipynb": "is a notebook", "jobs": "is a directory",
        "pipe.py": "not a regular file", "link.py": "does not exist", "x" * 300 + ".py": "cannot be read",
        "a\0b.py": "not a file name",
    }.items():  # fmt: skip
        assert message in refused(tmp_path / name).message
    convert = ("jupyter", "nbconvert", "--to", "script", str(tmp_path / "work.ipynb"))
    assert refused(tmp_path / "work.ipynb").next_steps == (convert,)
    assert refused(tmp_path / "jobs").hint == f"name one of its scripts, such as {tmp_path / 'jobs' / 'a.py'}"


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
            "net/block.py": "x =",
            "pkg/deep/leaf.py": "",  # packages without __init__.py
            "unused.py": "",
        },
    )
    first, *others = [source.name for source in imports(tmp_path / "main.py", tmp_path)]
    net = ["net/__init__.py", "net/block.py", "net/layers.py", "net/model.py"]
    assert (first, sorted(others)) == ("main.py", ["data.py", "lazy.py", *net, "pkg/deep/leaf.py"])


def test_imports_searches_next_to_the_script_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"jobs/near.py": "x =", "near.py": "", "far.py": "", "../outside.py": ""}
    write(tmp_path / "w", {**files, "jobs/task.py": "import near\nimport far\nfrom ... import outside\n"})
    monkeypatch.chdir(tmp_path / "w")
    for top in (tmp_path / "w", Path()):
        names = [source.name for source in imports(top / "jobs/task.py", top)]
        assert names == ["jobs/task.py", "jobs/near.py", "far.py"]
