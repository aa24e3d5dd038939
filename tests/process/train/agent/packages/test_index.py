"""Test that a real pip uses the index and the proxy of a request, and that logins stay secret."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.index_server import Server, serve
from tests.process.train.agent.packages.test_packages import done, refused, venvs
from tests.process.train.agent.wheels import wheel
from tests.program import read_files
from train.agent.protocol.records import PipSource, Refusal

USER, PASSWORD = "reader", "s3cr3t-of-the-index"
PROXY_PASSWORD = "s3cr3t-of-the-proxy"
# Settings of the host that a request must replace.
ENVIRONMENT = {
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_FIND_LINKS": "",
    "PIP_NO_INDEX": "1",
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "1",
    "no_proxy": "",
    "NO_PROXY": "",
    "all_proxy": "http://127.0.0.1:9",
}
BACKEND = """
import io, os, tarfile, zipfile

def _metadata(archive):
    archive.writestr("built-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n")
    archive.writestr("built-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    archive.writestr("built-1.0.dist-info/RECORD", "")

def build_wheel(directory, config_settings=None, metadata_directory=None):
    import helper
    with zipfile.ZipFile(os.path.join(directory, "built-1.0-py3-none-any.whl"), "w") as archive:
        archive.writestr("built.py", "")
        _metadata(archive)
    return "built-1.0-py3-none-any.whl"
"""
PROJECT = '[build-system]\nrequires = ["helper"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return a directory with a wheel, and with a package that must be built with the help of another wheel."""
    directory = tmp_path / "index"
    wheel(directory, "adds", "1.0")
    wheel(directory, "helper", "1.0")
    source = tmp_path / "built-1.0"
    source.mkdir()
    (source / "backend.py").write_text(BACKEND)
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: built\nVersion: 1.0\n")
    with tarfile.open(directory / "built-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "built-1.0")
    return directory


@pytest.fixture
def servers(packages: Path) -> Iterator[tuple[Server, Server]]:
    """Yield an index and a proxy, each of which requires a login."""
    with ExitStack() as stack:
        index = stack.enter_context(serve(packages, f"{USER}:{PASSWORD}"))
        yield index, stack.enter_context(serve(None, f"{USER}:{PROXY_PASSWORD}"))


def readable_by_others() -> str:
    """Return the arguments of all processes."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def test_logins_of_index_and_proxy_are_used_and_stay_secret(connect: Connect, servers: tuple[Server, Server]) -> None:
    index, proxy = servers
    seen: list[str] = []
    proxy.on_request = lambda _path: seen.append(readable_by_others())
    agent = connect(env=ENVIRONMENT)
    source = PipSource(
        f"http://{index.location}/simple", USER, PASSWORD, f"http://{USER}:{PROXY_PASSWORD}@{proxy.location}"
    )
    answer = done(agent, requirements="adds\nbuilt", source=source)
    requested = [path.rpartition("/")[2] for path in proxy.paths]
    assert {"adds-1.0-py3-none-any.whl", "built-1.0.tar.gz", "helper-1.0-py3-none-any.whl"} <= {*requested}
    assert len(index.paths) == len(proxy.paths)  # nothing without the proxy
    assert any(f"http://{index.location}/simple" in text for text in seen)  # of the process that prepares the build
    for secret in (PASSWORD, PROXY_PASSWORD):
        assert not [text for text in seen if secret in text]
        assert not [path for path, content in read_files(agent.root) if secret.encode() in content]
    assert not (Path(answer.python).parents[1] / "scratch").exists()


def test_an_index_without_login_and_tls_is_used_and_decides_the_environment(connect: Connect, packages: Path) -> None:
    agent = connect(env={**ENVIRONMENT, "all_proxy": "", "PIP_TRUSTED_HOST": "other.example.com"})
    with serve(packages) as proxy:  # it answers for all hosts
        source = PipSource("http://pypi.example.com:8080/simple", proxy=f"http://{proxy.location}")
        first = done(agent, requirements="adds", source=source)
        assert any(path.startswith("http://pypi.example.com:8080/simple/adds") for path in proxy.paths)
        again = done(
            agent, requirements="adds", source=source._replace(user=USER, password=PASSWORD, proxy="http://p")
        )
        assert (again.python, again.made) == (first.python, False)
        other = source._replace(index_url="http://other.example.com/simple")
        assert done(agent, requirements="adds", source=other).made
        assert len(venvs(agent)) == 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            PipSource("http://{index}/simple", USER, "wrong-s3cr3t", f"http://{{user}}:{PROXY_PASSWORD}@{{proxy}}"),
            "pip finds no adds",
        ),
        (
            PipSource("http://{index}/simple", USER, PASSWORD, "http://{user}:wrong-s3cr3t@127.0.0.1:9"),
            "pip cannot reach the package index",
        ),
    ],
)
def test_a_wrong_login_is_reported_without_it(
    connect: Connect, servers: tuple[Server, Server], source: PipSource, reason: str
) -> None:
    index, proxy = servers
    names = {"index": index.location, "proxy": proxy.location, "user": USER}
    source = source._replace(index_url=source.index_url.format(**names), proxy=source.proxy.format(**names))
    agent = connect(env=ENVIRONMENT)
    answer = refused(agent, requirements="adds", source=source)
    kind = Refusal.PACKAGES if "finds no" in reason else Refusal.INSTALLATION
    assert (answer.kind, answer.reason) == (kind, reason)
    assert ("rejected the login" in answer.cause) == ("finds no" in reason)
    assert "s3cr3t" not in repr(answer)
    assert venvs(agent) == set()
