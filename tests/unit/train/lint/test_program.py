from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import FIT, GANG, READY, TF, check, findings


def rules(source: str) -> list[str]:
    return [f"{item.rule} {item.severity.value}" for item in check(source)]


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("name = input('name: ')\n", ["MW701 error"]),
        ("breakpoint()\n", ["MW701 error"]),
        ("import pdb; pdb.set_trace()\n", ["MW701 error"]),
        ("import getpass\ng = getpass.getpass()\n", ["MW701 error"]),
        ("if not args:\n    input()\n", ["MW701 warning"]),
        ("def ask():\n    return input()\nask()\n", ["MW701 error"]),
        ("try:\n    input()\nexcept EOFError:\n    pass\n", []),
        ("def ask():\n    return input()\n", []),
        ("def input(text):\n    return 1\ninput('x')\n", []),
        ("from helpers import *\nraw_input = 1\n", []),
        ("data.input('x')\n", []),
        ("import sys\ntext = sys.stdin.read()\n", ["MW701 warning"]),
        ("import sys\nif sys.argv[1:]:\n    print(sys.stdin.readline())\n", ["MW701 warning"]),
        ("import sys\nsys.stdout.write('x')\nstdin = open('x').read()\n", []),
    ],
)
def test_questions_to_the_user_are_reported(piece: str, expected: list[str]) -> None:
    assert rules(piece) == expected


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("get_ipython().system('pip install x')\n", ["MW702 error"]),
        ("get_ipython().run_line_magic('matplotlib', 'inline')\n", ["MW702 error"]),
        ("try:\n    get_ipython()\nexcept NameError:\n    pass\n", []),
        ("try:\n    get_ipython\nexcept NameError:\n    sys.exit()\nget_ipython()\n", []),
        ("from IPython import get_ipython\nget_ipython()\n", []),
        ("if 'get_ipython' in globals():\n    print(1)\n", []),
    ],
)
def test_tracebacks_of_notebooks_are_found(piece: str, expected: list[str]) -> None:
    assert rules(piece) == expected


SPAWN = "import multiprocessing as mp\nmp.set_start_method('spawn')\n"


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (SPAWN + "p = mp.Process(target=work)\np.start()\n", ["MW703 error"]),
        (SPAWN + "with mp.Pool(2) as pool:\n    pool.map(work, x)\n", ["MW703 error"]),
        ("import multiprocessing as mp\nc = mp.get_context('spawn')\np = c.Process(target=work)\n", ["MW703 error"]),
        (SPAWN + "if __name__ == '__main__':\n    mp.Process(target=work).start()\n", []),
        (SPAWN + "def main():\n    mp.Pool(2)\nif __name__ == '__main__':\n    main()\n", []),
        ("import multiprocessing as mp\nmp.Process(target=work).start()\n", []),
        ("import multiprocessing as mp\nmp.set_start_method(how)\nmp.Process(target=work).start()\n", []),
        ("import multiprocessing as mp\nmp.set_start_method('fork')\nmp.Pool(2)\n", []),
    ],
)
def test_processes_started_on_import_are_reported(piece: str, expected: list[str]) -> None:
    assert rules(piece) == expected


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("os.environ['no_proxy'] = 'localhost'\n", ["MW704"]),
        ("os.environ['NO_PROXY'] = ''\n", ["MW704"]),
        ("del os.environ['no_proxy']\n", ["MW704"]),
        ("os.environ.pop('no_proxy', None)\n", ["MW704"]),
        ("os.environ['no_proxy'] += ',example.org'\n", []),
        ("os.environ['no_proxy'] = os.environ['no_proxy'] + ',example.org'\n", []),
        ("os.environ['no_proxy'] = '*'\n", []),
        ("os.environ['https_proxy'] = 'http://proxy:3128'\n", []),
    ],
)
def test_overwritten_proxy_variables_are_reported(piece: str, expected: list[str]) -> None:
    source = TF + piece + READY.removeprefix(TF) + FIT
    assert [item.split()[0] for item in findings(source)] == expected
    assert findings(source, workers=1) == []
    assert findings(GANG + piece + READY.removeprefix(GANG) + FIT) == []


def test_modules_that_hide_packages_are_reported() -> None:
    hiding = {"tensorflow.py": "", "keras/__init__.py": "", "lib/numpy.py": "", "keras/layers.py": ""}
    result = check("import tensorflow as tf\nimport lib.numpy\n", modules=hiding)
    assert [(item.rule, item.file) for item in result] == [("MW705", "keras/__init__.py"), ("MW705", "tensorflow.py")]
    assert check("import data\n", modules={"data.py": ""}) == []
    assert check("x = 1\n", modules={"tensorflow.py": "# fleet: ignore[MW705]\n"}) == []


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("", ["MW706"]),
        ("EPOCHS = int(os.environ.get('EPOCHS', '3'))\n", ["MW706"]),
        ("main()\n", []),
        ("if __name__ == '__main__':\n    main()\n", []),
        ("from absl import app\napp.run(main)\n", []),
        ("result = main()\n", []),
        ("@cli.command()\ndef other():\n    pass\n", []),
    ],
)
def test_functions_that_nothing_calls_are_reported(end: str, expected: list[str]) -> None:
    source = "import os\n\ndef main():\n    print('training')\n" + end
    assert [item.split()[0] for item in findings(source) if "MW7" in item] == expected


def test_a_notebook_command_whose_value_is_used_is_not_deleted() -> None:
    (finding,) = (item for item in check(GANG + "n = get_ipython().getoutput('ls')\n") if item.rule == "MW702")
    assert finding.fix.startswith("use subprocess.check_output(")
    (finding,) = (item for item in check(GANG + "get_ipython().system('ls')\n") if item.rule == "MW702")
    assert finding.fix.startswith("delete the line")
