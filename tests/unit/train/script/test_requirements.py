from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.train.script.test_script import write
from train.errors import ScriptError
from train.script.requirements import Requirements, is_requirement, read_requirements


def read(directory: Path, text: str, **others: str) -> Requirements:
    write(directory, {"requirements.txt": text, **{f"{name}.txt": other for name, other in others.items()}})
    return read_requirements(directory / "requirements.txt")


def refused(directory: Path, text: str) -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        read(directory, text)
    return caught.value


def test_only_comments_and_backslashes_are_removed_from_lines(tmp_path: Path) -> None:
    result = read(
        tmp_path,
        "\ufeff# a list\r\nTensorflow-CPU==2.21.0  # the same everywhere\r\n\n--index-url https://pypi.example/simple\n"
        "scikit_learn[alldeps] >=1.5 ; python_version < '3.13'\nrequests==2.32.0 \\\n    --hash=sha256:0123 \\\n"
        "    --hash=sha256:4567\n# no more \\\npkg @ git+https://example.com/a/b#egg=pkg\n--pre\n-i https://x.example/y\n",
    )
    assert result.text.splitlines() == [
        "Tensorflow-CPU==2.21.0",
        "--index-url https://pypi.example/simple",
        "scikit_learn[alldeps] >=1.5 ; python_version < '3.13'",
        "requests==2.32.0     --hash=sha256:0123     --hash=sha256:4567",
        "pkg @ git+https://example.com/a/b#egg=pkg",
        "--pre",
        "-i https://x.example/y",
    ]
    assert result.constraints == ""
    assert result.names == {"tensorflow-cpu", "scikit-learn", "requests", "pkg"}


def test_included_files_replace_their_line(tmp_path: Path) -> None:
    write(
        tmp_path, {"deep/base.txt": "b\n-r more.txt\n-c pins.txt\n", "deep/more.txt": "c\n", "deep/pins.txt": "n<2\n"}
    )
    result = read(tmp_path, "a\n-r deep/base.txt\n--requirement=other.txt\n-cpins.txt\nz\n", other="d", pins="m<3")
    assert result.text == "a\nb\nc\nd\nz\n"
    assert result.constraints == "n<2\nm<3\n"
    assert result.names == {"a", "b", "c", "d", "z"}
    assert read(tmp_path, "-r https://example.com/r.txt\n").text == "-r https://example.com/r.txt\n"


def test_requirements_that_include_themselves_are_rejected(tmp_path: Path) -> None:
    write(tmp_path, {"b.txt": "-r requirements.txt\n"})
    assert refused(tmp_path, "-r b.txt\n").message.endswith("requirements.txt includes itself")


HERE = """-e .|-e ./lib|--editable=../lib|.|.[extra]|./lib|../lib|/srv/lib|wheels/x-1.0-py3-none-any.whl|\
x-1.0.tar.gz|file:///srv/x-1.0.whl|x @ file:///srv/x-1.0.whl|x @ ./x|lib/part|-f wheels|--find-links=file:///srv"""


@pytest.mark.parametrize("line", HERE.split("|"))
def test_packages_and_paths_on_this_computer_are_rejected_with_their_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "lib" / "part").mkdir(parents=True)
    error = refused(tmp_path, f"numpy\n\n{line}\n")
    assert error.message.startswith(f"{tmp_path}/requirements.txt:3: ")
    assert "on this computer" in error.message
    assert error.hint


@pytest.mark.parametrize(
    "line", ["-e git+https://example.com/a/b", "https://example.com/x-1.0-py3-none-any.whl", "--no-binary=:all:"]
)
def test_urls_that_the_hosts_can_fetch_are_kept(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, line).text == f"{line}\n"


def test_missing_and_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"the requirements file .* does not exist"):
        read_requirements(tmp_path / "none.txt")
    assert refused(tmp_path, "a\n-r none.txt\n").message.endswith("txt:2: file 'none.txt' does not exist")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScriptError, match="cannot be read"):
        read_requirements(tmp_path / "bytes.txt")


def test_modules_are_matched_with_the_packages_that_provide_them() -> None:
    result = Requirements("", names=frozenset({"scikit-learn", "tf-keras", "pyyaml", "opencv-python", "python-box"}))
    assert all(map(result.brings, ["sklearn", "tf_keras", "yaml", "cv2", "box"]))
    assert not any(map(result.brings, ["numpy", "keras", "python"]))


@pytest.mark.parametrize(
    "text",
    [
        "tensorflow~=2.21.0", "tensorflow[and-cuda]~=2.21.0", "a<2,>1", "six", "numpy (>=1,<2)", "a  >= 1",
        "x @ git+https://h/x.git@v1#egg=x", "https://h/x.whl", "git+ssh://git@h/x", "torch==2.1+cu118",
        "a; python_version < '3.9'", "a>=1 ; sys_platform=='linux'", "a[b,c] == 1.*",
    ],
)  # fmt: skip
def test_requirement_specifiers_and_urls(text: str) -> None:
    assert is_requirement(text)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-r /etc/passwd", "--index-url=http://x y", "a b", "./local", "/abs", "a\nb", "~x", "file:///x",
        "x @ file:///y", "-e .", "a==", "a==1 --hash=x", "a;\n", "c:\\x", "x/y", "a" + ">=1," * 240,
        "a" + " " * 990 + "!",
        "a(" + "<" * 900, "a" * 1001, "a\x1b",
    ],
)  # fmt: skip
def test_options_paths_and_other_texts_are_no_requirements(text: str) -> None:
    assert not is_requirement(text)


# --- pyproject.toml -------------------------------------------------------------------------------------------------


def read_project(directory: Path, text: str, lock: str = "") -> Requirements:
    write(directory, {"pyproject.toml": text, **({"uv.lock": lock} if lock else {})})
    return read_requirements(directory / "pyproject.toml")


def test_the_dependencies_of_a_project_are_requirements(tmp_path: Path) -> None:
    lines = """["pandas>=2,  <3", "Scikit_Learn[all]", "tqdm; os_name=='posix'"]"""
    result = read_project(tmp_path, f'[project]\nname = "mine"\ndependencies = {lines}\n')
    assert result.text.splitlines() == ["pandas>=2, <3", "Scikit_Learn[all]", "tqdm; os_name=='posix'"]
    assert result.names == {"pandas", "scikit-learn", "tqdm"}
    assert result.constraints == ""
    assert result.note == "installing the dependencies of pyproject.toml"


def test_versions_of_uv_lock_are_constraints(tmp_path: Path) -> None:
    lock = """
        version = 1
        [[package]]
        name = "mine"
        version = "0.1"
        source = { virtual = "." }
        [[package]]
        name = "pandas"
        version = "2.2.3"
        source = { registry = "https://pypi.org/simple" }
        dependencies = [{ name = "numpy", version = "2.2.6", marker = "python_full_version < '3.11'" }]
        [[package]]
        name = "numpy"
        version = "2.2.6"
        source = { registry = "https://pypi.org/simple" }
        resolution-markers = ["python_full_version < '3.11'"]
        [[package]]
        name = "numpy"
        version = "2.4.6"
        source = { registry = "https://pypi.org/simple" }
        resolution-markers = ["python_full_version >= '3.14'", "python_full_version >= '3.11'"]
        [[package]]
        name = "own"
        version = "3"
        source = { git = "https://example.com/own" }
    """
    result = read_project(tmp_path, '[project]\ndependencies = ["pandas"]\n', lock)
    assert result.text == "pandas\n"
    assert result.constraints.splitlines() == [
        "pandas==2.2.3",
        "numpy==2.2.6 ; (python_full_version < '3.11')",
        "numpy==2.4.6 ; (python_full_version >= '3.14') or (python_full_version >= '3.11')",
    ]
    assert result.note == "installing the dependencies of pyproject.toml, in the versions of uv.lock"


def test_packages_outside_of_an_index_and_tables_of_poetry_are_named(tmp_path: Path) -> None:
    sources = '[tool.uv.sources]\nnets = { path = "../nets" }\ntorch = { index = "cpu" }\n'
    result = read_project(tmp_path, f'[project]\ndependencies = ["nets", "torch"]\n{sources}')
    assert (result.text, result.note) == (
        "torch\n",
        "installing the dependencies of pyproject.toml, without nets: [tool.uv.sources] is not read",
    )
    result = read_project(tmp_path, '[tool.poetry.dependencies]\npython = "^3.10"\npandas = "^2"\n')
    assert result.text == ""
    assert result.note.startswith("pyproject.toml: [tool.poetry.dependencies] is not read")
    assert read_project(tmp_path, "[tool.ruff]\n") == Requirements("")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project\n", "cannot be read"),
        ('[project]\ndependencies = "pandas"\n', "is not a list of requirements"),
        ('[project]\ndependencies = ["nets @ file:///home/me/nets"]\n', "is not a list of requirements"),
        ("[project]\ndependencies = [1]\n", "is not a list of requirements"),
    ],
)
def test_invalid_projects_are_rejected_with_the_option_that_leaves_them_out(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ScriptError, match=message) as caught:
        read_project(tmp_path, text)
    assert caught.value.again == {"--no-requirements": True, "--requirements": None}


@pytest.mark.parametrize("lock", ["package = 3\n", "[[package]]\nsource = 3\n", "[[package]]\nsource.registry = 1\n"])
def test_incomplete_locks_constrain_nothing(tmp_path: Path, lock: str) -> None:
    assert read_project(tmp_path, '[project]\ndependencies = ["pandas"]\n', lock).constraints == ""
