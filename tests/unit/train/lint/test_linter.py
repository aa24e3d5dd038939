from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.train.lint.programs import FIT, GANG, MODEL, READY, READY_LOOP, TF, check, findings
from train.lint.finding import Severity
from train.lint.linter import UNREADABLE, lint
from train.lint.rule import RULES
from train.script.source import imports

ROOT = Path(__file__).parents[4]
COUNTS = (
    "epoch = tf.Variable(0)\nepoch.assign_add(1)\ncheckpoint = tf.train.Checkpoint(model=model)\ncheckpoint.save(x)\n"
)
LATE = TF + "x = tf.constant(1)\nstrategy = tf.distribute.MultiWorkerMirroredStrategy(){}\n"


# --- scripts as people write them ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("train/examples/keras_fit.py", []),
        ("train/examples/custom_loop.py", []),
        ("train/examples/generator.py", []),
        (
            "tests/e2e/scripts/keras_tutorial/main.py",
            ["main.py:18 MW405 hint", "mnist_setup.py:24 MW308 hint"],
        ),
        (
            "tests/e2e/scripts/loop_tutorial/main.py",
            [
                "main.py:67 MW406 warning",
                "main.py:69 MW403 warning",
                "main.py:88 MW407 warning",
                "mnist.py:15 MW309 warning",
            ],
        ),
    ],
)
@pytest.mark.parametrize("workers", [2, 5])
def test_examples_and_tutorials(script: str, expected: list[str], workers: int) -> None:
    path = ROOT / script
    sources = {file.relative_to(path.parent).as_posix(): file.read_text() for file in imports(path, path.parent)}
    result = lint(sources, path.name, workers=workers)
    assert [f"{item.location} {item.rule} {item.severity.value}" for item in result] == expected


# --- findings --------------------------------------------------------------------------------------------


def test_a_finding_has_a_message_a_reason_and_a_fix() -> None:
    (result,) = check(LATE.format(""))
    assert (result.rule, result.file, result.line, result.column) == ("MW101", "task.py", 4, 12)
    assert (result.location, result.severity) == ("task.py:4", Severity.ERROR)
    assert result.message == (
        "MultiWorkerMirroredStrategy is created after tf.constant (line 3) has started TensorFlow's runtime"
    )
    assert result.reason
    assert result.fix


def test_the_column_counts_characters() -> None:
    (result,) = check("é = 'ü'; x = input('é')\n")
    assert result.column == 14


def test_the_line_of_a_chain_is_that_of_its_last_name() -> None:
    data = "data = (\n    tf.data.Dataset.from_tensor_slices(x)\n    .shuffle(9)\n    .shard(2, i)\n)\n"
    assert findings(GANG + data) == ["MW309 warning 7"]


def test_findings_are_ordered_by_file_and_line() -> None:
    modules = {"a.py": "input()\n", "z.py": "input()\ninput()\n"}
    result = check("import z\nimport a\ninput()\n", modules=modules)
    assert [item.location for item in result] == ["task.py:3", "a.py:1", "z.py:1", "z.py:2"]


# --- silence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("  # fleet: ignore[MW101]", True),
        ("  # fleet: ignore", True),
        ("  #fleet:ignore[MW999, MW101]", True),
        ("  # Fleet: ignore[mw101]", True),
        ("  # fleet: ignore[MW102]", False),
        ("  # fleet: ignore[]", False),
        ("  # ignore[MW101]", False),
        ("\n# fleet: ignore[MW101]", False),
        ("; s = '# fleet: ignore[MW101]'", False),
    ],
)
def test_a_comment_suppresses_rules_in_its_statement(comment: str, silent: bool) -> None:
    assert (check(LATE.format(comment)) == []) is silent


def test_a_comment_on_any_line_of_a_statement_counts() -> None:
    fit = "model.fit(\n    data,\n    epochs=3,  # fleet: ignore[MW405]\n)\n"
    assert findings(READY + fit) == []
    assert findings(READY + fit.replace("MW405", "MW404")) == ["MW405 hint 12"]
    block = "if True:  # fleet: ignore\n    model.fit(data, epochs=3)\n"
    assert findings(READY + block) == ["MW405 hint 13"]


# --- unreadable files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\nx =\n", 2),
        ("return 1\n", 1),
        ("\tx\n  y\n", 2),
        ("x = '\n", 1),
        ("# coding: nothing\n", 1),
        ("\0", 1),
    ],
)
def test_a_script_that_does_not_compile_is_an_error(source: str, line: int) -> None:
    (result,) = check(source)
    assert (result.rule, result.severity, result.file) == (UNREADABLE, Severity.ERROR, "task.py")
    assert result.line in (line, 1)
    assert "task.py" not in result.message or result.line == 1


def test_a_module_that_does_not_compile_is_a_warning() -> None:
    result = check("import a\n" + LATE.format(""), modules={"a.py": "x =\n"})
    assert [(item.rule, item.severity.value, item.file) for item in result] == [
        ("MW101", "error", "task.py"),
        ("MW001", "warning", "a.py"),
    ]


def test_a_script_without_source_gives_no_finding() -> None:
    assert lint({}, "task.py", workers=2) == []


# --- any script ---------------------------------------------------------------------------------------------------

SIMPLE = [
    *[line for line in (READY + FIT + COUNTS).splitlines() if line[:1] not in (" ", "w")],
    "break", "return x", "yield x", "await x", "pass", "x = y = z", "del x, y[0], z.a", "global x", "nonlocal x",
    "import a.b as c, d", "from . import x", "from a import *", "assert x, y", "raise A from b", "a[1:2] = *b, c",
    "a.b.c += d @ e", "(a, *b), c = d", "x: int = 3", "f(*a, **b)(c)[d].e", "f'{a!r:>{b}}'", "{**a, 'b': c, **d}",
    "[a for b in c if d for e in f]", "{a: b for a, b in c}", "a if b else c", "not a and b or c", "-a < b < c",
    "(a := b)", "os.environ['TF_CONFIG'] = '{}'", "sys.exit(0)", "x = x(x)", "step(next(iter(shared)))", "data.a = 1",
    "model.save('m')", "strategy.run(main, args=(x,))", "callbacks=[]; callbacks.append(A())", "x = [x, *x]; x[0]()",
    "model.fit(data, callbacks=[A()])", "options = tf.data.Options(); options.a.auto_shard_policy = x", "A().f()",
]  # fmt: skip
COMPOUND = [
    "for x in shared:\n{}else:\n{}", "while x:\n{}", "while True:\n{}", "if task_id == 0:\n{}", "if x:\n{}else:\n{}",
    "try:\n{}except (A, b.C) as e:\n{}else:\n{}finally:\n{}", "try:\n{}except:\n{}", "def f(*a, b=1, **k):\n{}",
    "class A(tf.keras.Model, *b, metaclass=M):\n{}", "class A(A):\n    def on_epoch_end(self):\n        self.f()\n{}",
    "with strategy.scope() as s, c:\n{}", "async def f(x):\n{}", "match x:\n    case [A(b=1), *c] if d:\n    {}",
    "@tf.function\ndef main(x):\n{}", "with x:\n{}",
]  # fmt: skip


def compound(blocks: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    bodies = st.lists(blocks, min_size=1, max_size=3).map("".join)
    return st.builds(
        lambda head, *inside: head.format(*(indent(body, "    ") for body in inside)),
        st.sampled_from(COMPOUND),
        *[bodies] * 4,
    )


BLOCKS = st.recursive(st.sampled_from(SIMPLE).map("{}\n".format), compound, max_leaves=12)


@given(st.lists(BLOCKS, max_size=8).map("".join), st.booleans())
def test_no_evidence_makes_the_diagnosis_raise(source: str, inside: bool) -> None:
    if inside:
        source = f"def main(x):\n    x\n{indent(source, '    ')}\nmain(1)\n"
    for workers in (1, 3):
        for item in lint({"task.py": READY + source, "a/b.py": source}, "task.py", workers=workers, gpus=0):
            assert item.rule in (UNREADABLE, *RULES)
            assert item.line >= 1
            assert item.column >= 1


@given(st.text(max_size=60))
def test_no_text_makes_it_raise(source: str) -> None:
    lint({"task.py": source}, "task.py", workers=2)


@pytest.mark.parametrize("directory", ["train", "provision"])
def test_programs_that_do_not_train_give_no_finding(directory: str) -> None:
    for path in sorted((ROOT / directory).rglob("*.py"))[::5]:
        if "examples" not in path.parts:
            # As a script, train/script/keras.py would hide the package keras (MW705).
            # The main function of a module is called by another module (MW706).
            result = lint({"task.py": path.read_text(encoding="utf-8")}, "task.py", workers=2)
            assert [item for item in result if item.rule != "MW706"] == [], path


# --- documents ----------------------------------------------------------------------------------------------------


def test_every_rule_is_described() -> None:
    page = (ROOT / "docs" / "lint.md").read_text()
    assert re.findall(r"^### (MW\d{3}) ", page, re.MULTILINE) == sorted([UNREADABLE, *RULES])


def test_the_correct_script_of_the_documents_gives_no_finding() -> None:
    page = (ROOT / "docs" / "lint.md").read_text()
    scripts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert scripts
    for script in scripts:
        assert check(script) == []
    assert MODEL in READY
    assert findings(READY_LOOP + "for batch in shared:\n    step(batch)\n") == []
