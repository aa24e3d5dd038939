"""URLs of a package index and of a proxy for pip, whose passwords come from environment variables. Pure.

A login is written as ``https://user:${NAME}@host/simple``, the form of pip's requirements files
(https://pip.pypa.io/en/stable/reference/requirements-file-format/#using-environment-variables). So a password is
neither an argument of a process nor part of a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

from train.agent.protocol.records import PipSource
from train.errors import ScriptError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LOGIN = re.compile(rf"(?:[^:$]+|{_REFERENCE.pattern}):(?:{_REFERENCE.pattern})+")
_PRINTABLE = re.compile(r"[!-~]*")
_NETRC = re.compile(r"[!#-\[\]-~]+")  # words that all versions of Python read from a netrc file
_SCHEMES = ("http", "https")


def check_index_url(url: str) -> str:
    """Return the URL of a package index, or an empty text, unchanged.

    Raises:
        ValueError: it is invalid, or contains a password; the text begins with "must" and does not contain the URL.
    """
    _check_url(url, "https://pypi.example.com/simple")
    return url


def check_proxy_url(url: str) -> str:
    """Return the URL of a proxy, or an empty text, unchanged.

    Raises:
        ValueError: as for `check_index_url`.
    """
    _check_url(url, "http://proxy.example.com:3128")
    if urlsplit(_plain(url)).path not in ("", "/"):
        raise ValueError("must be a URL without a path, such as http://proxy.example.com:3128")
    return url


def pip_source(index_url: str, proxy_url: str, environ: Mapping[str, str]) -> PipSource:
    """Return the index and the proxy with their logins.

    Args:
        index_url: A checked URL; empty: none.
        proxy_url: A checked URL; empty: none.
        environ: The variables to which the URLs refer.

    Raises:
        ScriptError: a variable is not set, or its value cannot be a password.
    """
    index, user, password = _split_login("--index-url", index_url, environ)
    proxy, proxy_user, proxy_password = _split_login("--pip-proxy", proxy_url, environ)
    if proxy_password:
        scheme, _, rest = proxy.partition("://")
        proxy = f"{scheme}://{quote(proxy_user, safe='')}:{quote(proxy_password, safe='')}@{rest}"
    return PipSource(index, user, password, proxy)


def _check_url(url: str, example: str) -> None:
    general = f"must be a URL such as {example}"
    plain = _plain(url)
    try:
        parts = urlsplit(plain)
        is_valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if url and not (is_valid and _PRINTABLE.fullmatch(plain)):
        raise ValueError(general)
    if url and (parts.query or parts.fragment):
        raise ValueError(f"{general}, without ? and #")
    login = _login(url)
    if "@" in plain.partition("://")[2].partition("/")[0] and not _LOGIN.fullmatch(login):
        raise ValueError(
            "must not contain a password or token: write the login as user:${NAME}, and set that variable"
        )
    if len(_REFERENCE.findall(url)) != len(_REFERENCE.findall(login)) or "$" in plain:
        raise ValueError("must refer to variables only in the login: https://user:${NAME}@host")


def _plain(url: str) -> str:
    """Return a URL without references to variables, for its other parts."""
    return _REFERENCE.sub("x", url)


def _login(url: str) -> str:
    """Return the part of a URL before the @ of its host; empty if it has none."""
    authority = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    return authority.rpartition("@")[0]


def _split_login(option: str, url: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return a URL without its login, user, and password.

    Raises:
        ScriptError: A variable is not set, or pip cannot read the result from a netrc file.
    """
    login = _login(url)
    if not login:
        return url, "", ""
    names = _REFERENCE.findall(login)
    for name in names:
        if not environ.get(name):
            raise ScriptError(
                f"{option} refers to the variable {name}, which is not set",
                hint=f"set it in the environment of this command: export {name}",
            )
    given = [unquote(part) for part in login.partition(":")[::2]]
    user, password = (_REFERENCE.sub(lambda match: environ[match[1]], part) for part in given)
    if not (_NETRC.fullmatch(user) and _NETRC.fullmatch(password)):
        raise ScriptError(
            f"pip cannot use the login of {option} in {', '.join(names)}",
            cause='it contains a space, ", \\, or a character that is not ASCII',
            hint="use a login without these characters",
        )
    return url.replace(f"{login}@", "", 1), user, password
