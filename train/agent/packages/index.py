"""The package index and the proxy that a request names, for pip: its environment, its login, and its output. Pure.

Neither a login of the index nor one of the proxy may be in `PIP_*`: pip repeats these values as arguments of the
processes that install the requirements of a build, which all users of the host can read. pip reads the login of an
index from a netrc file, and that of a proxy from the usual variables of proxies, which only this user and root read.
"""

from __future__ import annotations

import re
from typing import Dict
from urllib.parse import urlsplit

from train.agent.protocol.records import PipSource

_HIDDEN = "****"
_INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_PYPI_URL", "PIP_NO_INDEX")
_PROXY_VARIABLES = ("http_proxy", "https_proxy")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def pip_environment(environment: Dict[str, str], source: PipSource, netrc: str) -> Dict[str, str]:
    """Return an environment in which pip uses the given index and proxy.

    Args:
        environment: Variables of the login, which hold for what `source` does not set.
        source: The index and the proxy.
        netrc: Path of the file with the result of `netrc_text`.
    """
    variables = dict(environment)
    if source.index_url:
        for name in _INDEX_VARIABLES:
            variables.pop(name, None)
        variables["PIP_INDEX_URL"] = source.index_url
        location = urlsplit(source.index_url)
        if location.scheme == "http":  # pip ignores such an index unless it is listed there, too
            trusted = variables.get("PIP_TRUSTED_HOST", "")
            variables["PIP_TRUSTED_HOST"] = f"{trusted} {location.netloc}".strip()
    if source.password:
        variables["NETRC"] = netrc
    if source.proxy:
        for name in ("all_proxy", "ALL_PROXY", "PIP_PROXY"):
            variables.pop(name, None)
        for name in _PROXY_VARIABLES:
            variables[name] = variables[name.upper()] = source.proxy
        if not _LOGIN.search(source.proxy):
            variables["PIP_PROXY"] = source.proxy  # before a proxy in pip's configuration files
    return variables


def netrc_text(source: PipSource) -> str:
    """Return a netrc file with the login of the index; empty if it has none.

    Source: https://pip.pypa.io/en/stable/topics/authentication/#netrc-support.
    """
    if not source.password:
        return ""
    location = urlsplit(source.index_url)
    hosts = (location.netloc.partition(":")[0], location.hostname)  # names that versions of pip look up
    line = "machine {} login {} password {}\n"
    return "".join(line.format(host, source.user, source.password) for host in dict.fromkeys(hosts))


def hide_logins(line: str, source: PipSource) -> str:
    """Return a line of pip's output without logins."""
    line = _LOGIN.sub(_HIDDEN, line)
    login = source.proxy.partition("://")[2].rpartition("@")[0]
    for secret in filter(None, (source.password, login.partition(":")[2])):
        line = line.replace(secret, _HIDDEN)
    return line
