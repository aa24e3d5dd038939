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
        (
            "http://reader:${PIP_PASSWORD}@index:8080/a@b/",
            PipSource("http://index:8080/a@b/", "reader", "s3cr3t/@:"),
        ),
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


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("pypi.example.com/simple", "must be a URL such as"),
        ("file:///srv/simple", "must be a URL such as"),
        ("https:///simple", "must be a URL such as"),
        ("https://index:99999/simple", "must be a URL such as"),
        ("https://index:x/simple", "must be a URL such as"),
        ("https://[index/simple", "must be a URL such as"),
        ("https://index/si mple", "must be a URL such as"),
        ("https://index/\n", "must be a URL such as"),
        ("https://index/simple?token=s3cr3t", "without ? and #"),
        ("https://reader:s3cr3t@index/simple", "must not contain a password or token"),
        ("https://reader:s3cr3t${PIP_PASSWORD}@index/simple", "must not contain a password or token"),
        ("https://s3cr3t@index/simple", "must not contain a password or token"),
        ("https://:${PIP_PASSWORD}@index/simple", "must not contain a password or token"),
        ("https://reader:$PIP_PASSWORD@index/simple", "must not contain a password or token"),
        ("https://index/${PIP_PASSWORD}/simple", "must refer to variables only in the login"),
    ],
)
def test_an_invalid_url_is_refused_without_repeating_it(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^must ") as raised:
        check_index_url(url)
    assert reason in str(raised.value)
    assert "s3cr3t" not in str(raised.value)


def test_a_proxy_has_no_path() -> None:
    with pytest.raises(ValueError, match="must be a URL without a path"):
        check_proxy_url("http://proxy:3128/simple")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "--index-url refers to the variable PIP_PASSWORD, which is not set"),
        ({"PIP_PASSWORD": ""}, "--index-url refers to the variable PIP_PASSWORD, which is not set"),
        ({"PIP_PASSWORD": "s3cr3t word"}, "pip cannot use the login of --index-url in PIP_PASSWORD"),
        ({"PIP_PASSWORD": 's3cr3t"'}, "pip cannot use the login of --index-url in PIP_PASSWORD"),
        ({"PIP_PASSWORD": "s3cr3t\\"}, "pip cannot use the login of --index-url in PIP_PASSWORD"),
        ({"PIP_PASSWORD": "s3cr3té"}, "pip cannot use the login of --index-url in PIP_PASSWORD"),
    ],
)
def test_a_login_that_cannot_be_used_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ScriptError) as raised:
        pip_source("https://reader:${PIP_PASSWORD}@index/simple", "", environment)
    assert raised.value.message == message
    assert "s3cr3t" not in raised.value.message + raised.value.cause + raised.value.hint
