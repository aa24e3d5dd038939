from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.console.log_lines import LINE_MAX, clean, render_line
from fleet.jobs.following.log_view import is_startup_line

SGR = re.compile(r"\x1b\[[0-9;:]*m")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("abc\x08\x08X", "aX"),
        ("abc\x08\x08\x08\x08\x08X", "X"),
        ("abc\x08\x08", "abc"),
        ("a\x08b\x08c", "c"),
        ("one\rtwo\r", "two"),
        ("\r\r", ""),
    ],
)
def test_carriage_returns_and_backspaces(line: str, shown: str) -> None:
    assert render_line(line) == shown


@pytest.mark.parametrize(
    "evil",
    [
        "\x1b[2J",  # clear the screen
        "\x1b[10;20H",  # move the cursor
        "\x1b[6n",  # request its position; the terminal sends it as input
        "\x1b]0;title\x07",
        "\x1b]52;c;ZXZpbA==\x1b\\",  # the clipboard
        "\x1bP+q544e\x1b\\",
        "\x1b_application\x1b\\",
        "\x1bc",  # reset
        "\x1b[>4;2m",  # modifyOtherKeys: ends with m, but is not a colour
        "\x1b[?25l",
        "\x1b(0",
        "\x9b2J",
        "\x9d0;title\x9c",
        "\x07",
        "\x0e",
        "\x7f",
        "\u202e",  # right to left from here on
        "\x1b",
        "\x1b[",
        "\x1b[31",
    ],
)
def test_nothing_but_text_and_colours_reaches_the_terminal(evil: str) -> None:
    assert render_line(f"before{evil}") == "before"
    assert clean(f"before{evil}") == "before"
    assert render_line(f"{evil}\x1b[1;31mred\x1b[0m").endswith("\x1b[1;31mred\x1b[0m\x1b[0m")


@given(st.text(st.sampled_from("a\x1b[]0;mPX^_\\\x07\x9b\x9c\x9d5?>H \r\x08é")))
def test_no_mixture_of_sequences_makes_a_new_one(text: str) -> None:
    shown = SGR.sub("", render_line(text))
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", shown)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", clean(text))


def test_clean_is_one_line_without_colours() -> None:
    assert clean("a\nb\x1b[31mc\x1b[0m\ud800") == "a bc"


def test_long_lines_are_cut_with_a_mark_and_lose_their_colors() -> None:
    assert render_line("x" * LINE_MAX) == "x" * LINE_MAX
    assert render_line("x" * (LINE_MAX + 2048)) == "x" * LINE_MAX + " … 2.0 KiB more"
    assert render_line("\x1b[32m" + "y" * (LINE_MAX + 5)) == "y" * LINE_MAX + " … 5 B more"


def test_colors_do_not_count_unless_there_are_more_than_text() -> None:
    line = "\x1b[32mabcdef\x1b[0m" * (LINE_MAX // 6)
    assert render_line(line) == line + "\x1b[0m"
    assert render_line("\x1b[32;1;4mx" * LINE_MAX) == "x" * LINE_MAX


NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795228844.740084    5800 port.cc:153] oneDNN custom operations are on. You may see different results
I0000 00:00:1795228844.740421    5800 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU not used.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.
E0000 00:00:1795228847.362245    5800 cuda_platform.cc:52] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)
I0000 00:00:1795228847.438592    5812 coordination_service.h:529] /job:worker/task:0 has connected
W0000 00:00:1795228847.675245    5800 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized because
/job:worker/replica:0/task:1
2024-05-09 12:34:56.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.
2024-05-09 12:34:56.123456: I external/local_tsl/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers on your machine
2024-05-09 12:34:56.1: E external/local_xla/xla/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN
"""  # noqa: E501

SIGNAL = """\
Epoch 1/5
I0509 12:34:56.789012 140123456 train.py:12] step 10 loss 0.5
INFO:tensorflow:Using MirroredStrategy with devices
E0000 00:00:1795228847.362245    5800 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_NO_DEVICE (100)
2024-05-09 12:34:56.123456: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed
2024-05-09 12:34:56.123456: E tensorflow/core/distributed_runtime/worker.cc:1] UNAVAILABLE: connection refused
WARNING:tensorflow:AutoShardPolicy
"""


@pytest.mark.parametrize("line", NOISE.splitlines())
def test_start_up_chatter_is_startup_line(line: str) -> None:
    assert is_startup_line(line)


@pytest.mark.parametrize("line", SIGNAL.splitlines())
def test_what_a_script_says_and_what_goes_wrong_is_not(line: str) -> None:
    assert not is_startup_line(line)
