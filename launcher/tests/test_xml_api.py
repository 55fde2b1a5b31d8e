"""Cloud Storage's XML API, as curl and Rust's object_store speak it at Google's own host."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from google.cloud import storage
from google.cloud.storage import transfer_manager

from launcher.tests.running import DEADLINE
from launcher.tests.test_buckets import BYTES, MIB, serving

GOOGLE = "storage.googleapis.com"
PART = 5 * MIB

Ask = Callable[..., requests.Response]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the bucket."""
    folder = tmp_path / "gcs/bucket"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with serving(folder.parent) as url:
        yield url


@pytest.fixture
def ask(url: str) -> Ask:
    """Send a request as a client with a login does; a header's name has _ for -."""

    def ask(method: str, path: str, body: bytes = b"", **headers: str) -> requests.Response:
        sent = {"Host": GOOGLE, "Authorization": "Bearer x"} | {k.replace("_", "-"): v for k, v in headers.items()}
        return requests.request(method, f"{url}/bucket{path}", data=body, headers=sent, timeout=DEADLINE)

    return ask


def texts(answer: requests.Response, tag: str) -> list[str]:
    return re.findall(f"<{tag}>(.*?)</{tag}>", answer.text)


def test_an_object_is_written_read_and_deleted(ask: Ask, folder: Path) -> None:
    written = ask("PUT", "/a%20b/c.txt", b"content", Content_Type="text/plain")
    assert (written.status_code, written.text) == (200, "")
    assert (folder / "a b/c.txt").read_bytes() == b"content"
    read = ask("HEAD", "/a%20b%2Fc.txt")
    assert (read.headers["Content-Length"], read.headers["ETag"]) == ("7", written.headers["ETag"])
    assert read.headers["X-Goog-Generation"] == written.headers["X-Goog-Generation"]
    assert ask("GET", "/a%20b/c.txt", Range="bytes=3-").text == "tent"
    assert ask("DELETE", "/a%20b/c.txt").status_code == 204
    assert [ask(method, "/a%20b/c.txt").status_code for method in ("GET", "DELETE")] == [404, 404]


def test_a_write_happens_only_if_its_precondition_holds(ask: Ask, folder: Path) -> None:
    first = ask("PUT", "/lock", b"1", X_Goog_If_Generation_Match="0")
    assert ask("PUT", "/lock", b"2", X_Goog_If_Generation_Match="0").status_code == 412
    generation = first.headers["X-Goog-Generation"]
    assert ask("PUT", "/lock", b"3", X_Goog_If_Generation_Match=generation).status_code == 200
    assert ask("DELETE", "/lock", X_Goog_If_Generation_Match=generation).status_code == 412
    assert ask("GET", f"/lock?generation={generation}").status_code == 404
    assert ask("GET", "/lock", If_None_Match=ask("HEAD", "/lock").headers["ETag"]).status_code == 304
    assert ask("GET", "/lock", If_Match='"1"').status_code == 412
    assert ask("PUT", "/lock", b"4", Content_MD5="AAAAAAAAAAAAAAAAAAAAAA==").status_code == 400
    assert (folder / "lock").read_bytes() == b"3"


def test_an_object_is_copied_unless_one_is_there(ask: Ask, folder: Path) -> None:
    (folder / "a b").write_bytes(b"content")
    source = {"X_Goog_Copy_Source": "bucket/a%20b", "X_Goog_If_Generation_Match": "0"}
    assert texts(copied := ask("PUT", "/c", **source), "ETag") == [copied.headers["ETag"]]
    assert (folder / "c").read_bytes() == b"content"
    assert ask("PUT", "/c", **source).status_code == 412
    assert ask("PUT", "/d", X_Goog_Copy_Source="bucket/none").status_code == 404


def test_a_bucket_is_listed_page_by_page(ask: Ask, folder: Path) -> None:
    for name in ("a&b", "d/1", "d/2", "e"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    first = ask("GET", "?list-type=2&delimiter=/&max-keys=2")
    assert (texts(first, "Key"), texts(first, "CommonPrefixes")) == (["a&amp;b"], ["<Prefix>d/</Prefix>"])
    (token,) = texts(first, "NextContinuationToken")
    last = ask("GET", f"?list-type=2&delimiter=/&continuation-token={token}")
    assert (texts(last, "Key"), texts(last, "Size"), texts(last, "IsTruncated")) == (["e"], ["1"], ["false"])
    assert texts(ask("GET", "/?list-type=2&prefix=d/&start-after=d/1"), "Key") == ["d/2"]


def begun(ask: Ask, *parts: bytes) -> tuple[str, list[str]]:
    """Begin an upload, and send its parts; returns its id and their ETags."""
    (upload,) = texts(ask("POST", "/x?uploads"), "UploadId")
    sent = [ask("PUT", f"/x?partNumber={i}&uploadId={upload}", part) for i, part in enumerate(parts, start=1)]
    return upload, [one.headers["ETag"] for one in sent]


def named(*numbers: int) -> bytes:
    parts = (f'<Part><PartNumber>{number}</PartNumber><ETag>"x"</ETag></Part>' for number in numbers)
    return f"<CompleteMultipartUpload>{''.join(parts)}</CompleteMultipartUpload>".encode()


def test_an_object_is_made_of_the_parts_that_are_named_and_of_no_other(ask: Ask, folder: Path) -> None:
    upload, etags = begun(ask, BYTES[:PART], b"sent again", b"left out")
    assert ask("PUT", f"/x?partNumber=2&uploadId={upload}", b"end").status_code == 200
    listed = ask("GET", f"/x?uploadId={upload}")
    assert (texts(listed, "PartNumber"), texts(listed, "ETag")[0]) == (["1", "2", "3"], etags[0])
    assert [*folder.iterdir()] == []
    done = ask("POST", f"/x?uploadId={upload}", named(1, 2))
    assert (done.status_code, texts(done, "ETag")) == (200, [done.headers["ETag"]])
    assert (folder / "x").read_bytes() == BYTES[:PART] + b"end"
    assert ask("POST", f"/x?uploadId={upload}", named(1, 2)).status_code == 404
    assert [*(folder.parent / ".uploads").iterdir()] == []


@pytest.mark.parametrize("body", [named(2, 1), named(1, 1, 2), named(1, 3), named(), b"<x", named(1, 2)])
def test_other_parts_than_those_that_were_sent_make_no_object(ask: Ask, folder: Path, body: bytes) -> None:
    upload, _ = begun(ask, b"too small", b"end")
    assert ask("POST", f"/x?uploadId={upload}", body).status_code == 400
    assert ask("PUT", f"/x?partNumber=10001&uploadId={upload}", b"").status_code == 400
    assert [*folder.iterdir()] == []
    assert ask("DELETE", f"/x?uploadId={upload}").status_code == 204
    assert ask("PUT", f"/x?partNumber=1&uploadId={upload}", b"").status_code == 404
    assert [*(folder.parent / ".uploads").iterdir()] == []


@pytest.mark.parametrize("id", ["", "../bucket", "0" * 32, "x"])
def test_an_upload_that_is_none_is_not_found(ask: Ask, folder: Path, id: str) -> None:
    for method, query in (("GET", ""), ("PUT", "&partNumber=1"), ("POST", ""), ("DELETE", "")):
        assert ask(method, f"/x?uploadId={id}{query}").status_code == 404
    assert folder.exists()


def test_the_chunks_of_an_object_go_up_at_once(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a client that takes this API at its own endpoint, too."""
    (tmp_path / "file").write_bytes(BYTES)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    blob = storage.Client(project="demo").bucket("bucket").blob("a b/x")
    transfer_manager.upload_chunks_concurrently(tmp_path / "file", blob, chunk_size=PART, worker_type="thread")
    assert (folder / "a b/x").read_bytes() == BYTES


def test_a_web_page_begins_no_upload(url: str, folder: Path) -> None:
    answer = requests.post(f"{url}/bucket/x?uploads", headers={"Origin": "https://example.org"}, timeout=DEADLINE)
    assert answer.status_code == 403
    assert not (folder.parent / ".uploads").exists()
