# ruff: noqa: E501 - one row a line
"""Downloads that failed: their URLs, why, and the files that the script needs."""

from __future__ import annotations

import pytest

from train.agent.protocol.records import Exit, Outcome
from train.diagnosis.cause import diagnose
from train.diagnosis.storage import hint
from train.diagnosis.verdict import Cause, TaskEvidence, Verdict

DNS = "[Errno -3] Temporary failure in name resolution"
POOL = "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /bert/config.json (Caused by NameResolutionError(\"Failed to resolve 'huggingface.co'\"))"
KERAS = "Exception: URL fetch failure on https://data.example.org/a.npz: None -- "


def failed(exception: str, *, source: str = "train()", before: str = "", function: str = "<module>") -> Verdict:
    log = f'{before}Traceback (most recent call last):\n  File "/home/ubuntu/job/task.py", line 7, in {function}\n    {source}\n{exception}\n'
    tasks = [
        TaskEvidence("worker-0", "10.0.0.2", Exit(1), 100.0, log_tail=log.encode(), port=2222),
        TaskEvidence("worker-1", "trainer-b", Exit(1), 100.1, log_tail=log.encode(), port=2222),
    ]
    verdict = diagnose(tasks, Outcome.FAILED, "worker-0")
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("exception", "source", "url", "reason"),
    [
        (KERAS + DNS, "", "https://data.example.org/a.npz", "it has no access to the internet (Temporary failure in name resolution)"),
        (KERAS + "[Errno 101] Network is unreachable", "", "https://data.example.org/a.npz", "it has no access to the internet (Network is unreachable)"),
        (KERAS + "[Errno 111] Connection refused", "", "https://data.example.org/a.npz", "it cannot reach the server (Connection refused)"),
        ("requests.exceptions.ConnectionError: " + POOL, "", "https://huggingface.co/bert/config.json", "it has no access to the internet"),
        (f"urllib.error.URLError: <urlopen error {DNS}>", 'urlretrieve("https://example.org/train.csv", "train.csv")', "https://example.org/train.csv", "it has no access to the internet"),
        ("tensorflow.python.framework.errors_impl.AbortedError: All 10 retry attempts failed. The last failure: Error executing an HTTP request: libcurl code 6 meaning 'Could not resolve host: storage.googleapis.com' when reading https://storage.googleapis.com/tfds-data/mnist.json", "", "https://storage.googleapis.com/tfds-data/mnist.json", "it has no access to the internet"),
    ],
)  # fmt: skip
def test_a_host_without_internet(exception: str, source: str, url: str, reason: str) -> None:
    verdict = failed(exception, source=source)
    assert verdict.kind is Cause.DOWNLOAD
    assert f"worker-0 (10.0.0.2) could not download {url}: {reason}" in verdict.message
    assert "so did worker-1" in verdict.message
    assert verdict.downloads == (f"{url} ",)
    assert "let the script read it there" in verdict.hint


def test_the_file_in_which_keras_looks_is_known_from_the_log() -> None:
    line = "fleet: could not download https://data.example.org/a.npz to ~/.keras/datasets/b.npz\n"
    verdict = failed(KERAS + DNS, before=line)
    assert verdict.downloads == ("https://data.example.org/a.npz ~/.keras/datasets/b.npz",)
    assert (
        verdict.hint
        == "download the file once on this computer and send it to the hosts: all tasks need the same one"
    )


def test_a_time_limit_within_get_file_has_the_url_of_the_log() -> None:
    line = "fleet: could not download https://data.example.org/a.npz to /data/keras/datasets/a.npz\n"
    verdict = failed("TimeoutError: [Errno 110] Connection timed out", before=line, function="get_file")
    assert "could not download https://data.example.org/a.npz: it has no access to the internet" in verdict.message
    assert verdict.downloads == ("https://data.example.org/a.npz /data/keras/datasets/a.npz",)


@pytest.mark.parametrize(
    ("package", "push"),
    [
        ("tensorflow_datasets/core/download/downloader.py", "fleet push --to . ~/tensorflow_datasets"),
        ("huggingface_hub/file_download.py", "fleet push --to .cache ~/.cache/huggingface"),
    ],
)
def test_a_package_with_a_cache_of_its_own_gets_all_of_it(package: str, push: str) -> None:
    source = f'load("x")\n  File "/venv/lib/python3.11/site-packages/{package}", line 7, in get\n    fetch(url)'
    verdict = failed("requests.exceptions.ConnectionError: " + POOL, source=source)
    assert verdict.kind is Cause.DOWNLOAD
    assert verdict.downloads == ()
    assert verdict.hint.endswith(push)


def test_all_files_of_fashion_mnist_are_fetched_at_once() -> None:
    base = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
    name = "train-labels-idx1-ubyte.gz"
    line = f"fleet: could not download {base}/{name} to ~/.keras/datasets/fashion-mnist/{name}\n"
    verdict = failed(f"Exception: URL fetch failure on {base}/{name}: None -- {DNS}", before=line)
    assert len(verdict.downloads) == 4
    assert (
        f"{base}/t10k-images-idx3-ubyte.gz ~/.keras/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz"
        in verdict.downloads
    )


@pytest.mark.parametrize("path", ["../../.ssh/authorized_keys", "~/a/../../b", "data/a.npz", "~/a/"])
def test_a_path_that_leaves_its_directory_is_not_used(path: str) -> None:
    line = f"fleet: could not download https://data.example.org/a.npz to {path}\n"
    assert failed(KERAS + DNS, before=line).downloads == ("https://data.example.org/a.npz ",)


def test_a_file_that_does_not_exist_is_not_fetched() -> None:
    verdict = failed("Exception: URL fetch failure on https://data.example.org/a.npz: 404 -- Not Found")
    assert verdict.kind is Cause.DOWNLOAD
    assert "could not download https://data.example.org/a.npz: the server answered 404 Not Found" in verdict.message
    assert verdict.downloads == ()
    assert verdict.hint == "open the URL on this computer, and correct it"


@pytest.mark.parametrize(
    ("exception", "source", "kind"),
    [
        (f"socket.gaierror: {DNS}", 'socket.create_connection(("database", 5432))', Cause.NAME_RESOLUTION),
        ("requests.exceptions.ConnectionError: HTTPConnectionPool(host='tracking', port=5000): Max retries exceeded with url: /api (Connection refused)", "", Cause.SCRIPT_EXCEPTION),
        ("ConnectionRefusedError: [Errno 111] Connection refused", 'get("http://trainer-b:80/file.csv")', Cause.SCRIPT_EXCEPTION),
        ("ValueError: no rows in https://example.org/train.csv", "", Cause.SCRIPT_EXCEPTION),
    ],
)  # fmt: skip
def test_other_failures_of_the_network_are_not_downloads(exception: str, source: str, kind: Cause) -> None:
    verdict = failed(exception, source=source)
    assert verdict.kind is kind
    assert verdict.downloads == ()


def test_only_the_name_of_a_task_leads_to_addresses() -> None:
    source = 'socket.create_connection(("{}", 2222))'
    assert failed(f"socket.gaierror: {DNS}", source=source.format("trainer-b")).hint.startswith("use addresses")
    assert failed(f"socket.gaierror: {DNS}", source=source.format("database")).hint.startswith(
        "the name is not that of"
    )


@pytest.mark.parametrize(
    "text",
    [
        "HTTP response code 403 with body ''",
        "me@example.com does not have storage.objects.get access to the Google Cloud Storage object.",
        "the specified key does not exist: s3://bkt/a",
        "No such object: bkt/data/a.npz when reading gs://bkt/data/a.npz",
    ],
)
def test_other_errors_have_no_hint_of_cloud_storage(text: str) -> None:
    assert hint(text, ["gs://bkt/run1"]) == ""
