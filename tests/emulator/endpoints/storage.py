"""The content of the objects of Cloud Storage: uploads and downloads.

Source: https://cloud.google.com/storage/docs/uploads-downloads.
"""

from __future__ import annotations

import json
import re
import uuid
from email.parser import BytesParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tests.emulator.api import Answer, Request, encode
from tests.emulator.endpoints import endpoint
from tests.emulator.failures import Refusal, bad_request
from tests.emulator.storage import Storage, Upload

if TYPE_CHECKING:
    from tests.emulator.server import Emulator

XML = "/storage-xml/"
"""Prefix of the paths of the XML API, which has a host name of its own."""
_UPLOAD = re.compile(r"(?:/resumable)?/upload/storage/v1/b/(?P<bucket>[^/]+)/o")
_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/(?P<bucket>[^/]+)/o/(?P<object>[^/]+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PART = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@endpoint("/storage/v1/")
def answer_json(emulator: Emulator, request: Request) -> Answer:
    """Return the content of an object with ``alt=media``; other requests are calls of the JSON API."""
    return download(emulator, request) if request.query.get("alt") == "media" else emulator.api.answer(request)


@endpoint("/download/storage/v1/")
def download(emulator: Emulator, request: Request) -> Answer:
    """Return the content of an object, or a range of it."""
    match = _OBJECT.fullmatch(urlsplit(request.target).path)
    if match is None:
        raise bad_request("Invalid path.")
    return _content(emulator, request, unquote(match["bucket"]), unquote(match["object"]))


@endpoint(XML)
def download_by_path(emulator: Emulator, request: Request) -> Answer:
    """Return the content of the object at ``/BUCKET/OBJECT`` of the XML API."""
    bucket, _, name = request.path.removeprefix(XML).partition("/")
    if request.verb != "GET":
        raise Refusal(501, "notImplemented", "The emulator only downloads with the XML API.")
    return _content(emulator, request, bucket, name)


@endpoint("/upload/storage/v1/", "/resumable/upload/storage/v1/")
def upload(emulator: Emulator, request: Request) -> Answer:
    """Create an object: in one request, with its metadata, or in several parts."""
    match = _UPLOAD.fullmatch(urlsplit(request.target).path)
    if match is None:
        raise bad_request("Invalid path.")
    cloud, bucket, query = emulator.cloud, unquote(match["bucket"]), request.query
    emulator.api.count("storage.objects.insert")
    with cloud.clock.changed:
        storage = cloud.part(Storage)
        if "upload_id" in query:
            return _continue(emulator, storage, request)
        storage.check(request.token, cloud.denied, bucket, "storage.objects.create")
        if query.get("uploadType") == "resumable":
            return _begin(storage, request, bucket)
        name, content = query.get("name", ""), request.body
        if query.get("uploadType") == "multipart":
            name, content = _multipart(request, name)
        return encode(200, storage.put(bucket, name, content, query, cloud.clock.stamp()))


def _begin(storage: Storage, request: Request, bucket: str) -> Answer:
    """Return the URL of a new resumable upload."""
    given = json.loads(request.body) if request.body.strip() else {}
    number = uuid.uuid4().hex
    storage.uploads[number] = Upload(bucket, request.query.get("name") or given["name"], request.query)
    host = request.headers.get("host", "")
    scheme = "https" if host.endswith(".googleapis.com") else "http"
    url = f"{scheme}://{host}{urlsplit(request.target).path}?uploadType=resumable&upload_id={number}"
    return Answer(200, b"", {"Location": url})


def _continue(emulator: Emulator, storage: Storage, request: Request) -> Answer:
    """Add a part to a resumable upload, whose URL is its authorization; or report how much of it arrived."""
    number = request.query["upload_id"]
    begun = storage.uploads.get(number)
    if begun is None:
        raise Refusal(404, "notFound", "No such upload session.")
    part = _PART.fullmatch(request.headers.get("content-range", ""))
    if part is not None and part[1] is not None and int(part[1]) != len(begun.received):
        raise bad_request("The part does not begin where the last one ended.")
    begun.received += request.body
    if part is not None and part[3] != str(len(begun.received)):
        last = {"Range": f"bytes=0-{len(begun.received) - 1}"} if begun.received else {}
        return Answer(308, b"", last)
    del storage.uploads[number]
    now = emulator.cloud.clock.stamp()
    return encode(200, storage.put(begun.bucket, begun.name, begun.received, begun.query, now))


def _multipart(request: Request, name: str) -> tuple[str, bytes]:
    """Return name and content from a body with the object's metadata and its content."""
    kind = request.content_type.replace("'", '"')  # gcloud quotes the boundary in this way
    message = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + request.body)
    parts = message.get_payload()
    if not isinstance(parts, list) or len(parts) != 2:
        raise bad_request("Missing end boundary in multipart body.")
    described, content = (part.get_payload(decode=True) for part in message.walk() if not part.is_multipart())
    assert isinstance(described, bytes)
    assert isinstance(content, bytes)
    return name or json.loads(described)["name"], content


def _content(emulator: Emulator, request: Request, bucket: str, name: str) -> Answer:
    cloud = emulator.cloud
    emulator.api.count("storage.objects.download")
    with cloud.clock.changed:
        storage = cloud.part(Storage)
        storage.check(request.token, cloud.denied, bucket, "storage.objects.get")
        content = storage.find(bucket, name, request.query).content
    headers = {"Content-Type": "application/octet-stream"}
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if wanted is None:
        return Answer(200, content, headers)
    start, end = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
    if start >= len(content):
        return Answer(416, b"", {**headers, "Content-Range": f"bytes */{len(content)}"})
    return Answer(206, content[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"})
