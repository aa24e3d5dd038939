"""Parsing of pip's output, as recorded from pip 23 and 24, one file each."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.agent.packages.pip import find_cause
from train.agent.protocol.records import Exit, Refusal, Refused

RECORDED = Path(__file__).parent / "pip"
CLOUD_NAT = "let the host reach it; instances without an external address need Cloud NAT"


def failed(lines: str, end: Exit = Exit(code=1)) -> Refused:  # noqa: B008 - never changed
    return find_cause(lines.splitlines(), end)


@pytest.mark.parametrize(
    ("file", "kind", "reason", "cause"),
    [
        (
            "no-version",
            Refusal.PACKAGES,
            "pip finds no tf-keras==99",
            "there are …, 2.18.0, 2.19.0rc0, 2.19.0, 2.20.1, 2.21.0",
        ),
        (
            "other-python",
            Refusal.PACKAGES,
            "pip finds no markdown-it-py==4.0.0",
            "there are …, 2.0.0, 2.0.1, 2.1.0, 2.2.0, 3.0.0; for other versions of Python "
            "4.3.0 Requires-Python >=3.10",
        ),
        ("no-name", Refusal.INSTALLATION, "pip cannot reach the package index", "Name or service not known"),
        ("refused", Refusal.INSTALLATION, "pip cannot reach the package index", "Connection refused"),
        (
            "conflict",
            Refusal.PACKAGES,
            "the packages exclude each other",
            "The user requested attrs==23.1; The user requested attrs==22.1",
        ),
        (
            "malformed",
            Refusal.PACKAGES,
            "pip cannot install the packages",
            "Invalid requirement: 'six=><3': Expected end or semicolon (after name and no valid version specifier)",
        ),
        (
            "build",
            Refusal.INSTALLATION,
            "pip fails in Building wheel for bad (pyproject.toml)",
            "bad.c:1:10: fatal error: nosuch.h: No such file or directory",
        ),
    ],
)
def test_why_pip_failed(file: str, kind: Refusal, reason: str, cause: str) -> None:
    failure = failed((RECORDED / f"{file}.txt").read_text())
    assert (failure.kind, failure.reason, failure.cause) == (kind, reason, cause)
    assert failure.hint
    assert (failure.hint == CLOUD_NAT) == (reason == "pip cannot reach the package index")


def test_a_package_that_never_was() -> None:
    lines = (
        "ERROR: Could not find a version that satisfies the requirement nothing (from versions: none)\n"
        "ERROR: No matching distribution found for nothing\n"
    )
    failure = failed(lines)
    assert (failure.reason, failure.cause) == ("pip finds no nothing", "there are none for this Python and computer")


def test_a_download_that_broke_off() -> None:
    lines = (
        "Collecting tensorflow==2.21.0\n"
        "ERROR: Exception:\n"
        "Traceback (most recent call last):\n"
        "pip._vendor.urllib3.exceptions.ReadTimeoutError: "
        "HTTPSConnectionPool(host='files.pythonhosted.org', port=443): Read timed out.\n"
    )
    failure = failed(lines, Exit(code=2))
    assert (failure.reason, failure.cause) == ("pip cannot reach the package index", "Read timed out")


def test_a_connection_that_was_mended_is_not_the_reason() -> None:
    broken = "WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError()': /simple/six/\n"
    assert failed(broken + (RECORDED / "no-version.txt").read_text()).reason == "pip finds no tf-keras==99"
    assert failed(broken + (RECORDED / "build.txt").read_text()).reason.startswith("pip fails in")


def test_a_full_disk() -> None:
    failure = failed(
        "Installing collected packages: numpy\n"
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    )
    assert (failure.kind, failure.cause) == (Refusal.DISK, "")


def test_an_end_by_a_signal_or_without_words() -> None:
    assert failed("Collecting six\n", Exit(signal=9)).reason == "pip was killed by signal 9"
    assert failed("", Exit(code=1)).cause == "no output"
    assert failed("\nno such option: --no-such-option\n", Exit(code=2)).cause == "no such option: --no-such-option"
