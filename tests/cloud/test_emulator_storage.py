"""The emulator's Cloud Storage: objects, their versions, and who may use them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from tests.emulator import Emulator
from tests.emulator.governance import DEFAULT_ACCOUNT
from tests.emulator.identity import ANONYMOUS, account_metadata
from tests.emulator.storage import SCOPES, Bucket, Storage

ACCOUNT = f"serviceAccount:{DEFAULT_ACCOUNT}"


class Client:
    """Calls of one account to the API."""

    def __init__(self, emulator: Emulator, token: str = "") -> None:
        self.url = emulator.url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(self, verb: str, path: str, body: bytes = b"", **headers: str) -> requests.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.request(verb, f"{self.url}{path}", data=body, headers=self.headers | named, timeout=60)

    def put(self, name: str, content: bytes, query: str = "") -> requests.Response:
        return self.call("POST", f"/upload/storage/v1/b/bkt/o?uploadType=media&name={name}{query}", content)

    def get(self, path: str, **headers: str) -> requests.Response:
        return self.call("GET", f"/storage/v1/b/bkt{path}", b"", **headers)

    def compose(self, name: str, *sources: dict[str, Any], query: str = "") -> requests.Response:
        body = json.dumps({"sourceObjects": list(sources)}).encode()
        return self.call("POST", f"/storage/v1/b/bkt/o/{name}/compose{query}", body, Content_Type="application/json")


def instance(emulator: Emulator, *scopes: str) -> Client:
    """Return a client on an instance with these scopes."""
    account = {"email": DEFAULT_ACCOUNT, "scopes": [f"{SCOPES}{scope}" for scope in scopes]}
    return Client(emulator, json.loads(account_metadata(account)["default"]["token"])["access_token"])


@pytest.fixture
def bucket(emulator: Emulator) -> Bucket:
    return emulator.cloud.part(Storage).create("bkt")


@pytest.fixture
def client(emulator: Emulator, bucket: Bucket) -> Client:
    return Client(emulator)


def test_objects_are_listed_by_prefix_in_pages(client: Client) -> None:
    for name in ("run1%2Fa", "run1%2Fb%2Fc", "run1%2Fb%2Fd", "run2", "%C3%A4"):
        assert client.put(name, b"x").status_code == 200
    assert [item["name"] for item in client.get("/o").json()["items"]] == [
        "run1/a",
        "run1/b/c",
        "run1/b/d",
        "run2",
        "ä",
    ]
    listed = client.get("/o?prefix=run1%2F&delimiter=%2F").json()
    assert ([item["name"] for item in listed["items"]], listed["prefixes"]) == (["run1/a"], ["run1/b/"])
    names, token = [], ""
    for _ in range(3):
        page = client.get(f"/o?delimiter=%2F&maxResults=1&pageToken={token}").json()
        names += [item["name"] for item in page["items"]] + page["prefixes"]
        token = page.get("nextPageToken", "")
    assert (names, token) == (["run1/", "run2", "ä"], "")


def test_a_range_of_an_object_is_downloaded(client: Client) -> None:
    client.put("run1%2Fa", b"0123456789")
    for path in ("/o/run1%2Fa?alt=media", "/../../../../download/storage/v1/b/bkt/o/run1%2Fa?alt=media"):
        got = client.get(path, Range="bytes=2-4")
        assert (got.status_code, got.content, got.headers["Content-Range"]) == (206, b"234", "bytes 2-4/10")
    assert client.get("/o/run1%2Fa?alt=media").content == b"0123456789"
    assert client.get("/o/run1%2Fa?alt=media", Range="bytes=8-99").content == b"89"
    assert client.get("/o/run1%2Fa?alt=media", Range="bytes=10-20").status_code == 416


def test_an_upload_is_resumed_where_it_was_interrupted(client: Client) -> None:
    begun = client.call("POST", "/upload/storage/v1/b/bkt/o?uploadType=resumable&name=a")
    path = begun.headers["Location"].removeprefix(client.url)
    first = client.call("PUT", path, b"01234", Content_Range="bytes 0-4/*")
    assert (first.status_code, first.headers["Range"]) == (308, "bytes=0-4")
    asked = client.call("PUT", path, Content_Range="bytes */10")
    assert (asked.status_code, asked.headers["Range"]) == (308, "bytes=0-4")
    assert client.call("PUT", path, b"xyz", Content_Range="bytes 7-9/10").status_code == 400
    assert client.get("/o/a").status_code == 404
    last = client.call("PUT", path, b"56789", Content_Range="bytes 5-9/10")
    assert (last.status_code, last.json()["size"]) == (200, "10")
    assert client.get("/o/a?alt=media").content == b"0123456789"
    assert client.call("PUT", path, b"", Content_Range="bytes */10").status_code == 404


def test_an_object_is_uploaded_with_its_metadata(client: Client) -> None:
    body = (
        b'--cut\r\nContent-Type: application/json\r\n\r\n{"name": "a/b"}\r\n'
        b"--cut\r\nContent-Type: application/octet-stream\r\n\r\n\x00\xff\n\r\n--cut--\r\n"
    )
    path = "/upload/storage/v1/b/bkt/o?uploadType=multipart"
    assert client.call("POST", path, body, Content_Type='multipart/related; boundary="cut"').json()["name"] == "a/b"
    assert client.get("/o/a%2Fb?alt=media").content == b"\x00\xff\n"


def test_preconditions_on_the_generation_are_kept(client: Client) -> None:
    first = client.put("a", b"1", "&ifGenerationMatch=0").json()["generation"]
    assert client.put("a", b"2", "&ifGenerationMatch=0").status_code == 412
    assert client.put("a", b"2", f"&ifGenerationMatch={first}").status_code == 200
    assert client.get(f"/o/a?ifGenerationMatch={first}").status_code == 412
    assert client.call("DELETE", f"/storage/v1/b/bkt/o/a?ifGenerationMatch={first}").status_code == 412
    assert client.call("DELETE", "/storage/v1/b/bkt/o/a").status_code == 200
    assert client.get("/o/a").status_code == 404


def test_objects_are_composed_and_copied(client: Client) -> None:
    generation = client.put("a", b"1").json()["generation"]
    client.put("b", b"2")
    assert client.compose("c", {"name": "a", "generation": generation}, {"name": "b"}).json()["size"] == "2"
    assert client.get("/o/c?alt=media").content == b"12"
    stale = {"name": "b", "objectPreconditions": {"ifGenerationMatch": generation}}
    assert client.compose("c", stale).status_code == 412
    assert client.compose("c", {"name": "a"}, query="?ifGenerationMatch=0").status_code == 412
    assert client.compose("c", *[{"name": "a"}] * 33).status_code == 400
    assert client.compose("c", {"name": "missing"}).status_code == 404
    assert client.call("POST", "/storage/v1/b/bkt/o/c/rewriteTo/b/bkt/o/d%2Fe").json()["done"] is True
    assert client.get("/o/d%2Fe?alt=media").content == b"12"


@pytest.mark.parametrize(
    ("role", "scopes", "allowed"),
    [
        ("objectUser", ["devstorage.read_write"], {"create", "get", "list", "delete"}),
        ("objectUser", ["cloud-platform"], {"create", "get", "list", "delete"}),
        ("objectUser", ["devstorage.read_only"], {"get", "list"}),
        ("objectUser", ["logging.write"], set()),
        ("objectUser", [], set()),
        ("objectViewer", ["cloud-platform"], {"get", "list"}),
        ("objectCreator", ["cloud-platform"], {"create"}),
        ("legacyBucketReader", ["cloud-platform"], {"list", "bucket"}),
        ("admin", ["devstorage.full_control"], {"create", "get", "list", "delete", "bucket"}),
    ],
)
def test_scopes_and_roles_decide(
    emulator: Emulator, client: Client, bucket: Bucket, role: str, scopes: list[str], allowed: set[str]
) -> None:
    client.put("a", b"1")
    bucket.members[f"roles/storage.{role}"] = {ACCOUNT}
    host = instance(emulator, *scopes)
    answers = {
        "create": host.put("b", b"1"),
        "get": host.get("/o/a?alt=media"),
        "list": host.get("/o"),
        "bucket": host.get(""),
        "delete": host.call("DELETE", "/storage/v1/b/bkt/o/a"),
    }
    assert {name for name, answer in answers.items() if answer.status_code == 200} == allowed
    refused = {answer.status_code for name, answer in answers.items() if name not in allowed}
    assert refused <= {403}
    if not scopes:
        assert answers["create"].json()["error"]["errors"][0]["reason"] == "insufficientPermissions"


def test_a_call_needs_a_token_and_a_bucket(emulator: Emulator, client: Client) -> None:
    anonymous = Client(emulator, ANONYMOUS)
    assert anonymous.get("/o").status_code == 401
    assert "Anonymous caller does not have storage.objects.create access" in anonymous.put("a", b"").text
    missing = client.call("GET", "/storage/v1/b/missing/o")
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "The specified bucket does not exist.")
