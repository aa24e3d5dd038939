"""Recognize downloads that a host without access to the internet could not make; pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from train.diagnosis.tracebacks import Raised

_KERAS = re.compile(r"URL fetch failure on (\S{1,2000}): (\S{1,8}) -- (.{0,200})")
# Exceptions of urllib, requests, urllib3, httpx, huggingface_hub, and tensorflow_datasets.
_TYPES = re.compile(
    r"(?:URL|MaxRetry|NewConnection|NameResolution|SSL|Proxy|Download|LocalEntryNotFound|Connect(?:ion|Timeout)?|gai|Timeout)"
    r"[Ee]rror|(?:Connect|Read)Timeout|RemoteDisconnected|timeout"
)
_TENSORFLOW = re.compile(r"Error executing an HTTP request: libcurl")
_POOL = re.compile(
    r"HTTP(S?)ConnectionPool\(host='([^']{1,253})', port=(\d{1,5})\).{0,200}?url: (\S{1,1000})", re.DOTALL
)
_URL = re.compile(r"\bhttps?://[^\s'\"<>()\[\]{},;\\]{1,2000}(?=[\s'\">)\],;\\]|$)")
_FILE = re.compile(
    r"^(?:[^/]*\.)?(?:googleapis\.com|github(?:usercontent)?\.com|huggingface\.co|tfhub\.dev|kaggle\.com)/|\.[A-Za-z]\w{0,7}$"
)
_TARGET = re.compile(r"^fleet: could not download (\S{1,2000}) to ((?:~/|/)(?!.*\.\./)\S.{0,1000}[^/])$")
_NO_NAME = (
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname"
    r"|nodename nor servname[\w ,]{0,40}|[Cc]ould(?: not|n't) resolve host(?: name)?|Failed to resolve"
)
_NO_ROUTE = r"Network is unreachable|No route to host|(?:[Cc]onnection |handshake operation )?timed out"
_REASON = re.compile(rf"{_NO_NAME}|{_NO_ROUTE}|Connection refused|Tunnel connection failed[^\n>)]{{0,80}}")
_OFFLINE = re.compile(rf"{_NO_NAME}|{_NO_ROUTE}")
# Keras reads four files for this data set, one after the other.
_FASHION = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("labels-idx1", "images-idx3")]

# Packages that keep what they download in a directory of the home directory, by their own rules.
_CACHES = {"tensorflow_datasets": "tensorflow_datasets", "huggingface_hub": ".cache/huggingface"}


class Download(NamedTuple):
    """A download that failed.

    Attributes:
        url: Its URL.
        reason: Why it failed, without a full stop.
        files: The files that the script needs: each URL with its path on the host, separated by a space; the path
            begins with ``~/`` in the login directory, and is empty if it is unknown. No files: they do not exist.
        cache: The directory of the home directory in which a package looks, if it decides the names; else empty.
    """

    url: str
    reason: str
    files: tuple[str, ...] = ()
    cache: str = ""


def find_download(fatal: Raised, lines: Sequence[str], hosts: Collection[str]) -> Download | None:
    """Return the download that an exception reports as failed; None: it reports something else.

    Args:
        fatal: The exception.
        lines: The log of the task.
        hosts: Names and addresses of the tasks of the job.
    """
    chain = list(fatal.chain())
    text = "\n".join(each.message for each in chain)
    keras = _KERAS.search(text)
    if keras and keras[2].isdigit():
        return Download(keras[1], f"the server answered {keras[2]} {keras[3].strip()}")
    reason = _REASON.search(text)
    is_request = any(_TYPES.fullmatch(each.short) for each in chain) or _TENSORFLOW.search(text)
    if reason is None or not (keras or is_request):
        return None
    region = lines[chain[-1].first : fatal.end]
    targets = [match for line in lines for match in [_TARGET.match(line)] if match]
    is_in_keras = any(frame.function == "get_file" for each in chain for frame in each.frames)
    url = keras[1] if keras else targets[-1][1] if targets and is_in_keras else _url(text, region)
    parts = urlsplit(url)
    packages = [name for name in _CACHES for each in chain for call in each.frames if f"/{name}/" in call.file]
    if not parts.hostname or parts.hostname in hosts:
        return None
    if not (keras or is_in_keras or packages or _FILE.search(f"{parts.hostname}{parts.path}")):  # a service
        return None
    offline = "it has no access to the internet" if _OFFLINE.match(reason[0]) else "it cannot reach the server"
    if packages:
        return Download(url, f"{offline} ({reason[0]})", cache=_CACHES[packages[0]])
    target = next((match[2] for match in targets if match[1] == url), "")
    return Download(url, f"{offline} ({reason[0]})", _files(url, target))


def _url(text: str, traceback: Sequence[str]) -> str:
    """Return the URL in the messages of exceptions, or in the lines of source code that a traceback shows."""
    pool = _POOL.search(text)
    if pool:
        default = pool[3] == ("443" if pool[1] else "80")
        return f"http{pool[1].lower()}://{pool[2]}{'' if default else ':' + pool[3]}{pool[4]}"
    return next((match[0] for part in (text, "\n".join(traceback)) for match in _URL.finditer(part)), "")


def _files(url: str, target: str) -> tuple[str, ...]:
    base, _, name = url.rpartition("/")
    if name in _FASHION and target.endswith(f"/{name}"):
        return tuple(f"{base}/{each} {target.removesuffix(name)}{each}" for each in _FASHION)
    return (f"{url} {target}",)
