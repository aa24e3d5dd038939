"""Test the URLs of a package index and of a proxy for pip."""

from __future__ import annotations

import pytest

from train.agent.protocol.records import PipSource
from train.errors import ScriptError
from train.script.package_index import check_index_url, check_proxy_url, pip_source

ENVIRONMENT = {"PIP_USER": "reader", "PIP_PASSWORD": "s3cr3t/@:"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", PipSource()),
        ("https://pypi.example.com/simple", PipSource("https://pypi.example.com/simple")),
        ("http://reader:${PIP_PASSWORD}@index:8080/a@b/", PipSource("http://index:8080/a@b/", "reader", "s3cr3t/@:")),
        ("https://a%40b:${PIP_PASSWORD}@index", PipSource("https://index", "a@b", "s3cr3t/@:")),
        (
            "https://${PIP_USER}:${PIP_PASSWORD}@[::1]/simple",
            PipSource("https://[::1]/simple", "reader", "s3cr3t/@:"),
        ),
    ],
)
def test_logins_of_an_index_come_from_variables(url: str, expected: PipSource) -> None:
    assert pip_source(check_index_url(url), "", ENVIRONMENT) == expected


def test_the_login_of_a_proxy_is_part_of_its_url_again() -> None:
    url = check_proxy_url("http://${PIP_USER}:${PIP_PASSWORD}@proxy:3128/")
    assert pip_source("", url, ENVIRONMENT).proxy == "http://reader:s3cr3t%2F%40%3A@proxy:3128/"
    assert pip_source("", "http://proxy:3128", ENVIRONMENT).proxy == "http://proxy:3128"


GENERAL = """pypi.example.com/simple file:///srv/simple https:///simple https://index:99999/simple
https://index:x/simple https://[index/simple"""
PASSWORDS = """https://reader:s3cr3t@index/simple https://reader:s3cr3t${PIP_PASSWORD}@index/simple
https://s3cr3t@index/simple https://:${PIP_PASSWORD}@index/simple https://reader:$PIP_PASSWORD@index/simple"""
REASONS = {
    **dict.fromkeys([*GENERAL.split(), "https://index/si mple", "https://index/\n"], "must be a URL such as"),
    **dict.fromkeys(PASSWORDS.split(), "must not contain a password or token"),
    "https://index/simple?token=s3cr3t": "without ? and #",
    "https://index/${PIP_PASSWORD}/simple": "must refer to variables only in the login",
}


@pytest.mark.parametrize(("url", "reason"), REASONS.items())
def test_an_invalid_url_is_refused_without_repeating_it(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^must ") as raised:
        check_index_url(url)
    assert reason in str(raised.value)
    assert "s3cr3t" not in str(raised.value)


def test_a_proxy_has_no_path() -> None:
    with pytest.raises(ValueError, match="must be a URL without a path"):
        check_proxy_url("http://proxy:3128/simple")


@pytest.mark.parametrize("password", ["", "s3cr3t word", 's3cr3t"', "s3cr3t\\", "s3cr3té"])
def test_a_login_that_cannot_be_used_is_refused(password: str) -> None:
    with pytest.raises(ScriptError) as raised:
        pip_source("https://reader:${PIP_PASSWORD}@index/simple", "", {"PIP_PASSWORD": password})
    unusable = "pip cannot use the login of --index-url in PIP_PASSWORD"
    unset = "--index-url refers to the variable PIP_PASSWORD, which is not set"
    assert raised.value.message == (unusable if password else unset)
    assert "s3cr3t" not in raised.value.message + raised.value.cause + raised.value.hint
