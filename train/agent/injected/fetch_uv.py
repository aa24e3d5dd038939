"""Download uv from a package index: the newest wheel for this computer, verified by the hash that the index names.

Arguments: URL of the index, path of the program. Logins come from netrc, proxies from the environment, as for pip.
Source: https://packaging.python.org/en/latest/specifications/simple-repository-api/.
"""

import base64
import hashlib
import html.parser
import io
import netrc
import os
import re
import sys
import urllib.parse
import urllib.request
import zipfile

_SILENCE_S = 20.0
_LONGEST = 200 << 20  # bytes
_WHEEL = re.compile(r"uv-(\d+)\.(\d+)\.(\d+)-py3-none-(\w+linux)_\S*_{}\.whl".format(os.uname().machine))


class _Page(html.parser.HTMLParser):
    """The links of a page that are not withdrawn."""

    def __init__(self):  # type: () -> None
        super().__init__()
        self.links = []  # type: list[str]

    def handle_starttag(self, tag, attrs):  # type: (str, list[tuple[str, str | None]]) -> None
        values = dict(attrs)
        if tag == "a" and values.get("href") and "data-yanked" not in values:
            self.links.append(values["href"] or "")


def _read(url):  # type: (str) -> tuple[bytes, str]
    location = urllib.parse.urlsplit(url)
    if location.scheme not in ("http", "https"):
        raise ValueError("not a URL of a web server")
    request = urllib.request.Request(url, headers={"Accept": "text/html"})  # noqa: S310 - checked above
    name = location.hostname or ""
    user, password = location.username, location.password
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    if not user and os.path.exists(path):
        user, _, password = netrc.netrc(path).authenticators(name) or (None, None, None)
    if user:
        request.full_url = location._replace(netloc=location.netloc.rpartition("@")[2]).geturl()
        login = "{}:{}".format(urllib.parse.unquote(user), urllib.parse.unquote(password or ""))
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    with urllib.request.urlopen(request, timeout=_SILENCE_S) as answer:  # noqa: S310
        data = answer.read(_LONGEST + 1)
        if len(data) > _LONGEST:
            raise ValueError("the answer is too long")
        return data, answer.url


def _rank(link):  # type: (str) -> tuple[int, ...]
    """Return the version of a wheel for this processor and C library; empty for other files."""
    match = _WHEEL.match(urllib.parse.unquote(urllib.parse.urlsplit(link).path).rpartition("/")[2])
    kind = "manylinux" if "CS_GNU_LIBC_VERSION" in os.confstr_names else "musllinux"
    return tuple(int(part) for part in match.group(1, 2, 3)) if match and match.group(4) == kind else ()


def _fetch(index, target):  # type: (str, str) -> None
    page = _Page()
    data, url = _read(index.rstrip("/") + "/uv/")
    page.feed(data.decode("utf-8", "replace"))
    link = max(page.links, key=_rank, default="")
    if not _rank(link):
        raise ValueError("the index has no uv for this computer")
    address, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(url, link))
    data, _ = _read(address)
    kind, _, digest = fragment.partition("=")
    if kind == "sha256" and hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("uv arrived damaged")
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".data/scripts/uv")]
        program = wheel.read(name)
    temporary = "{}.{}.new".format(target, os.getpid())
    with open(temporary, "wb") as file:
        file.write(program)
    os.chmod(temporary, 0o700)
    os.replace(temporary, target)


if __name__ == "__main__":
    try:
        _fetch(*sys.argv[1:])
    except Exception as error:  # whatever it is: pip installs the packages
        sys.exit("{}: {}".format(type(error).__name__, error))
