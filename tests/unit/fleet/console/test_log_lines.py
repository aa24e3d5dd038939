from __future__ import annotations

import re
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.console.log_lines import LINE_MAX, LogText, clean, render_line
from fleet.jobs.following.log_view import is_startup_line

SGR = re.compile(r"\x1b\[[0-9;:]*m")


def lines(*chunks: bytes) -> list[str]:
    text = LogText()
    return [line for chunk in chunks for line in text.feed(chunk)] + text.finish()


def test_lines_across_chunks() -> None:
    assert lines(b"one\ntw", b"o\n\nthree") == ["one", "two", "", "three"]


def test_a_character_across_chunks() -> None:
    assert lines("━".encode()[:1], "━".encode()[1:] + b"\n") == ["━"]


def test_invalid_utf8_is_shown_as_such() -> None:
    assert lines(b"a\xffb\n") == ["a\ufffdb"]


def test_windows_line_ends() -> None:
    assert lines(b"one\r\ntwo\r", b"\n") == ["one", "two"]


def test_only_the_final_state_of_a_keras_2_bar_is_a_line() -> None:
    text = LogText()
    first = b"1/6 [====>....] - ETA: 7s - loss: 1.1554"
    assert text.feed(b"Epoch 1/2\n\r" + first + b"\x08" * len(first)) == ["Epoch 1/2"]
    assert text.bar == first.decode()
    assert text.feed(b"\r6/6 [=========] - 2s - loss: 1.1\n") == ["6/6 [=========] - 2s - loss: 1.1"]
    assert text.bar == ""


def test_only_the_final_state_of_a_keras_3_bar_is_a_line() -> None:
    bar = "\x1b[1m{}/6\x1b[0m \x1b[32m━━━\x1b[0m loss: 1.5"
    wide = 30
    text = LogText()
    assert text.feed(("\r" + bar.format(1) + "\x08" * wide).encode()) == []
    assert text.bar == "1/6 ━━━ loss: 1.5"
    assert text.feed(("\r" + bar.format(6) + "\n").encode()) == [bar.format(6) + "\x1b[0m"]


def test_an_unfinished_line_that_is_not_redrawn_is_no_bar() -> None:
    text = LogText()
    text.feed(b"Enter a number: ")
    assert text.bar == ""


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


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_how_bytes_are_cut_into_chunks_does_not_matter(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    assert lines(*(data[a:b] for a, b in pairwise(places))) == lines(data)


def test_a_colour_ends_with_its_line() -> None:
    assert lines(b"\x1b[31mred\nplain\n") == ["\x1b[31mred\x1b[0m", "plain"]


def test_clean_is_one_line_without_colours() -> None:
    assert clean("a\nb\x1b[31mc\x1b[0m\ud800") == "a bc"


def test_long_lines_are_cut_with_a_mark() -> None:
    assert render_line("x" * LINE_MAX) == "x" * LINE_MAX
    assert render_line("x" * (LINE_MAX + 2048)) == "x" * LINE_MAX + " … 2.0 KiB more"
    colored = render_line("\x1b[32m" + "y" * (LINE_MAX + 5))
    assert SGR.sub("", colored) == "y" * LINE_MAX + " … 5 B more"
    assert "\x1b[0m …" in colored


def test_colours_do_not_count() -> None:
    line = "\x1b[32mab\x1b[0m" * (LINE_MAX // 2)
    assert render_line(line) == line + "\x1b[0m"


@pytest.mark.parametrize(
    ("piece", "count"),
    [
        (b"x" * 65536, 150),
        (b"\r" * 65536, 150),
        (b"50%\r" * 16384, 150),
        (b"|\x08" * 256, 50),
        (b"\x1b[1m" * 512, 100),
    ],
)
def test_megabytes_without_a_newline_take_little_memory(piece: bytes, count: int) -> None:
    text = LogText()
    tracemalloc.start()
    try:
        for _ in range(count):
            assert text.feed(piece) == []
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    (line,) = text.feed(b"\n")
    assert len(line) < 70_000
    if piece[:1] == b"x":
        assert line.endswith("… 9.4 MiB more")
    if piece[:1] == b"5":
        assert line == "50%"
    if piece[:1] == b"|":
        assert line == "|"


def test_after_a_gap_the_next_whole_line_is_the_first() -> None:
    text = LogText()
    text.feed(b"unfinish")
    text.skip()
    assert text.feed(b"ed\nnext\n") == ["next"]
    text.skip()
    assert text.finish() == []


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
