from __future__ import annotations

import re

import pytest

from train.agent.protocol.cluster import PLACEHOLDERS
from train.script.arguments import complete, find_defaulted, find_missing, value_of, words


@pytest.mark.parametrize(
    ("names", "value"),
    [
        ("--rank RANK --node_rank --process-id machine_id global_rank", "{rank}"),
        ("--task_index --task_id taskid --worker_index idx", "{index}"),
        ("--job_name --task_type jobname role", "{type}"),
        ("--world_size --num_workers --num-nodes nnodes n_workers nprocs numWorkers", "{tasks}"),
        ("--worker_hosts --workers_list worker_addresses", "{worker_hosts}"),
        ("--ps_hosts ps_addresses", "{ps_hosts}"),
        ("--hosts addresses cluster_hosts node_list", "{addresses}"),
        ("--epochs --lora_rank --local_rank --data num_layers list job workers id --list_hosts_file size host", ""),
    ],
)
def test_names_have_the_placeholders_of_their_values(names: str, value: str) -> None:
    assert {value_of(name) for name in names.split()} == {value}
    assert all(word in PLACEHOLDERS for word in re.findall(r"{(\w+)}", value))


def index_error(line: str, error: str = "IndexError: list index out of range") -> list[str]:
    return ["Traceback (most recent call last):", '  File "u.py", line 3, in <module>', f"    {line}", error]


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        (["usage: t.py [-h] --rank R", "t.py: error: the following arguments are required: --rank, -n/--nodes, data"],
         "--rank --nodes data"),
        (["FATAL Flags parsing error:",
          "  flag --task_index=None: Flag --task_index must have a value other than None.",
          "flag --data=None: Flag --data must have a value other than None.", "Pass --helpshort or --helpfull"],
         "--task_index --data"),
        (["Usage: t.py [OPTIONS]", "", "Error: Missing option '--rank' / '-r'."], "--rank"),
        (["Error: Missing option '-r' / '--rank'."], "--rank"),
        (["Error: Missing argument 'RANK'."], "RANK"),
        (["│ Missing option '--world-size'.    │"], "--world-size"),
        (["ERROR: The function received no value for the required argument: rank"], "rank"),
        (index_error("rank = int(sys.argv[1])"), "rank"),
        (index_error("rank, size = int(sys.argv[1]), int(sys.argv[2])"), "rank size"),
        (index_error("_, rank, size = sys.argv", "ValueError: not enough values to unpack (expected 3, got 1)"),
         "rank size"),
        (index_error("rank, size = map(int, sys.argv[1:])",
                     "ValueError: not enough values to unpack (expected 2, got 0)"),
         "rank size"),
        # Others.
        (index_error("x = data[1]"), ""),
        (["ValueError: Shape must be rank 2 but is rank 3"], ""),
        (["ValueError: please specify the batch_size"], ""),
        (["rank 0: error: no such file"], ""),
    ],
)  # fmt: skip
def test_missing_arguments_are_read_from_the_output(lines: list[str], missing: str) -> None:
    assert find_missing(lines) == tuple(missing.split())


CLICK = """
@click.option("--rank", "-r", type=int, required=True)
@click.option("-n", "--num-workers", type=click.IntRange(1), required=True)
@click.option("--epochs", default=3)
@click.argument("data")
"""
FLAGS = """
flags.DEFINE_string("job_name", "", "ps or worker")
tf.app.flags.DEFINE_integer("task_index", 0, "i")
flags.DEFINE_string('ps_hosts', '', 'hosts')
flags.DEFINE_integer("num_workers", 4, "of the data set")
"""
ARGV = """
if len(sys.argv) > 3: epochs = sys.argv[3]
rank: int = int(sys.argv[1])
size = int(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("missing", "source", "given", "added"),
    [
        ("--rank", "", "", "--rank"),
        ("--rank", CLICK, "", "--rank --num-workers data"),
        ("--num-workers", CLICK, "-r 0", "--num-workers data"),
        ("--num-workers", CLICK, "--rank=0", "--num-workers data"),
        ("--worker_hosts", FLAGS, "", "--worker_hosts --task_index --ps_hosts"),
        ("--worker_hosts", FLAGS, "--task_index 1", "--worker_hosts --ps_hosts"),
        ("--epochs", 'p.add_argument("--epochs", required=True)\np.add_argument("--rank", default=0)', "",
         "--epochs --rank"),
        ("--rank", 'p.add_argument("--job_name", default="mine")', "", "--rank"),
        ("rank", ARGV, "", "rank size"),
        ("size", ARGV, "5", "size"),
        ("--rank", f"{ARGV}add_argument('--rank', required=True)", "", "--rank"),
    ],
)  # fmt: skip
def test_arguments_that_would_be_missing_next_are_added(missing: str, source: str, given: str, added: str) -> None:
    assert complete(missing.split(), [source], given.split()) == added.split()


def test_words_have_a_placeholder_or_the_name_as_value() -> None:
    assert words(["--rank", "size", "--learning-rate"]) == [
        "--rank",
        "{rank}",
        "SIZE",
        "--learning-rate",
        "LEARNING_RATE",
    ]


@pytest.mark.parametrize(
    ("source", "given", "names"),
    [
        ('p.add_argument("--rank", type=int, default=0)\np.add_argument("--world-size", default=1)', "",
         "--rank --world-size"),
        ('p.add_argument("--task_index", default="0")\np.add_argument("--epochs", default=3)', "", "--task_index"),
        (FLAGS, "", "--job_name --task_index --ps_hosts"),
        (FLAGS, "--task_index=1", ""),
        ('p.add_argument("--rank", default=8)', "", ""),
        ('p.add_argument("--rank", default=int(os.environ.get("RANK", 0)))', "", ""),
        ('p.add_argument("--world-size", default=1)', "", ""),
        ('p.add_argument("--local_rank", default=0)', "", ""),
        (CLICK, "", ""),
    ],
)  # fmt: skip
def test_an_index_with_a_default_is_found_with_the_options_of_the_same_kind(
    source: str, given: str, names: str
) -> None:
    assert find_defaulted([source], given.split()) == names.split()
