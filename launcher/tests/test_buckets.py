import contextlib
import importlib
import io
import os
import random
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from google.api_core import exceptions
from google.cloud import storage
from google.cloud.storage import transfer_manager

from launcher.tests.running import DEADLINE, deadline
from vertex_launch.job.contract import project_number
from vertex_launch.local.api.http import Router
from vertex_launch.local.storage.buckets import Buckets
from vertex_launch.local.storage.gcs_api import GcsApi

BYTES = random.Random(1).randbytes(20 * 10**6)
MIB = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    root = tmp_path_factory.mktemp("state") / "gcs"
    with serving(root) as url:
        yield url, root


@pytest.fixture
def root(server: tuple[str, Path]) -> Iterator[Path]:
    """The folder of the buckets; they are deleted after the test."""
    yield server[1]
    for bucket in server[1].iterdir():
        if bucket.is_symlink():
            bucket.unlink()
        else:
            shutil.rmtree(bucket)


@pytest.fixture
def url(server: tuple[str, Path], root: Path) -> str:
    return server[0]


@contextlib.contextmanager
def serving(root: Path) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    router = Router(GcsApi(root).routes())
    server = uvicorn.Server(uvicorn.Config(router, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        assert not thread.is_alive()


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch) -> storage.Client:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    return storage.Client(project="demo")


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    return client.create_bucket("bucket")


def names(bucket: storage.Bucket, **asked: Any) -> list[str]:
    return [blob.name for blob in bucket.list_blobs(**asked)]


def put(bucket: storage.Bucket, *objects: str) -> None:
    for name in objects:
        bucket.blob(name).upload_from_string(name)


def request(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """For what no client would send."""
    asked = urllib.request.Request(url, body, {k.replace("_", "-"): v for k, v in headers.items()}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=DEADLINE) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_what_is_uploaded_is_a_file_and_what_is_written_is_an_object(bucket: storage.Bucket, root: Path) -> None:
    bucket.blob("run/model/weights.txt").upload_from_string("ü")
    assert (root / "bucket/run/model/weights.txt").read_text() == "ü"
    (root / "bucket/run/logs").mkdir()
    (root / "bucket/run/logs/chief").write_text("step 1\n")
    assert names(bucket) == ["run/logs/chief", "run/model/weights.txt"]
    assert bucket.blob("run/logs/chief").download_as_text() == "step 1\n"


def test_an_object_that_is_written_in_place_is_read_as_it_is_now(bucket: storage.Bucket, root: Path) -> None:
    generations = []
    with (root / "bucket/log").open("w") as file:
        for step in range(5):
            file.write(f"{step}\n")
            file.flush()
            assert bucket.blob("log").download_as_text().endswith(f"{step}\n")
            generations.append(bucket.get_blob("log").generation)
    assert generations == sorted({*generations})


def test_an_object_says_what_its_file_is(bucket: storage.Bucket, root: Path) -> None:
    bucket.blob("a/b.json").upload_from_string("123456789")
    blob = bucket.get_blob("a/b.json")
    assert (blob.size, blob.content_type, blob.metageneration) == (9, "application/json", 1)
    assert (blob.crc32c, blob.md5_hash) == ("4waSgw==", "JfnnlDI7RTiF9RgfG2JNCw==")  # the CRC's own check value
    assert blob.updated.timestamp() == pytest.approx((root / "bucket/a/b.json").stat().st_mtime, abs=0.001)


def test_bytes_arrive_whole_by_every_kind_of_upload(bucket: storage.Bucket, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(BYTES)
    bucket.blob("file").upload_from_filename(file)
    bucket.blob("chunks", chunk_size=MIB).upload_from_file(io.BytesIO(BYTES))
    bucket.blob("small").upload_from_string(BYTES[:1000])
    bucket.blob("empty").upload_from_string(b"")
    with bucket.blob("open").open("wb", chunk_size=MIB) as stream:
        for begin in range(0, len(BYTES), 3 * MIB):
            stream.write(BYTES[begin : begin + 3 * MIB])
    for name, expected in {"file": BYTES, "chunks": BYTES, "open": BYTES, "small": BYTES[:1000], "empty": b""}.items():
        assert bucket.blob(name).download_as_bytes() == expected, name


@pytest.mark.parametrize("tail", [b"\r\n", b"\n", b"--", b"\r\n--", b"\r", b"\n--=="])
def test_an_upload_may_end_like_a_multipart_body(bucket: storage.Bucket, tail: bytes) -> None:
    bucket.blob("tail").upload_from_string(tail + tail)
    assert bucket.blob("tail").download_as_bytes() == tail + tail


@pytest.mark.parametrize("checksum", ["md5", "crc32c"])
def test_checksums_are_compared_on_both_sides(bucket: storage.Bucket, checksum: Any) -> None:
    bucket.blob("sum", chunk_size=MIB).upload_from_file(io.BytesIO(BYTES[: 3 * MIB]), checksum=checksum)
    assert bucket.blob("sum").download_as_bytes(checksum=checksum) == BYTES[: 3 * MIB]


def test_bytes_that_do_not_have_the_checksum_sent_are_no_object(bucket: storage.Bucket, url: str) -> None:
    to = f"{url}/upload/storage/v1/b/bucket/o?uploadType=media&name=sum"
    status, body = request(to, "POST", b"data", X_Goog_Hash="crc32c=AAAAAA==")
    assert status == 400
    assert b"instead of AAAAAA==" in body
    assert names(bucket) == []


def test_parts_are_downloaded_by_range(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(BYTES)
    assert blob.download_as_bytes(start=5, end=9) == BYTES[5:10]
    assert blob.download_as_bytes(start=len(BYTES) - 3) == BYTES[-3:]
    assert blob.download_as_bytes(start=-3) == BYTES[-3:]
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        blob.download_as_bytes(start=len(BYTES))
    with blob.open("rb", chunk_size=MIB) as stream:
        stream.seek(12345678)
        assert stream.read(10) == BYTES[12345678:12345688]


def test_many_objects_and_the_chunks_of_one_go_at_once(bucket: storage.Bucket, tmp_path: Path) -> None:
    pairs = [(io.BytesIO(b"%d" % i), bucket.blob(f"many/{i}")) for i in range(8)]
    assert transfer_manager.upload_many(pairs, worker_type="thread") == [None] * 8
    assert {bucket.blob(f"many/{i}").download_as_text() for i in range(8)} == {*"01234567"}
    bucket.blob("x").upload_from_string(BYTES)
    transfer_manager.download_chunks_concurrently(
        bucket.blob("x"), tmp_path / "x", chunk_size=5 * MIB, worker_type="thread"
    )
    assert (tmp_path / "x").read_bytes() == BYTES


def test_a_list_is_in_order_of_whole_names(bucket: storage.Bucket) -> None:
    unordered = ["b", "a/b/c", "a-b", "a/b.txt", "a/b", "a.txt", "ä", "a0", "a/ä/x"]
    with pytest.raises(exceptions.BadRequest, match="would be both a file and a folder"):
        put(bucket, *unordered)
    put(bucket, *(unordered[5:]))
    assert names(bucket) == sorted(["b", "a/b/c", "a-b", "a/b.txt", *unordered[5:]])


def test_a_list_may_be_narrowed(client: storage.Client, bucket: storage.Bucket) -> None:
    put(bucket, "l/0/a", "l/0/b", "l/1/a", "l/2", "l.txt", "m/0/a")
    assert names(bucket, prefix="l/") == ["l/0/a", "l/0/b", "l/1/a", "l/2"]
    assert names(bucket, prefix="l") == ["l.txt", "l/0/a", "l/0/b", "l/1/a", "l/2"]
    assert names(bucket, start_offset="l/0/b", end_offset="m") == ["l/0/b", "l/1/a", "l/2"]
    assert names(bucket, match_glob="l/*/a") == ["l/0/a", "l/1/a"]
    assert names(bucket, match_glob="**/{a,2}") == ["l/0/a", "l/1/a", "l/2", "m/0/a"]
    assert names(bucket, match_glob="l/[!0]/?") == ["l/1/a"]
    folders = client.list_blobs("bucket", prefix="l/", delimiter="/")
    assert [blob.name for blob in folders] == ["l/2"]
    assert folders.prefixes == {"l/0/", "l/1/"}


@pytest.mark.parametrize(
    ("pattern", "takes"),
    [
        ("**", "a/b.txt a/c/b.txt b.txt"),
        ("*", "b.txt"),
        ("**/b.txt", "a/b.txt a/c/b.txt"),
        ("a/*/*", "a/c/b.txt"),
        ("**a*b.txt", ""),
        ("**{a/,c/}*", "a/b.txt a/c/b.txt"),
        ("?.t[!a]t", "b.txt"),
        ("{b,b.}*txt", "b.txt"),
        ("*a" * 60, ""),
        ("**a*" * 60, ""),
    ],
)
def test_a_glob_takes_what_google_documents_and_ends(bucket: storage.Bucket, pattern: str, takes: str) -> None:
    put(bucket, "a/b.txt", "a/c/b.txt", "b.txt", "a" * 50 + "/" + "a" * 200)
    with deadline():
        assert [name for name in names(bucket, match_glob=pattern) if "aa" not in name] == takes.split()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_an_images_address_can_ask_for_writes_nothing(bucket: storage.Bucket, url: str, method: str) -> None:
    bucket.blob("a").upload_from_string("precious")
    for query in ("uploadType=media&name=a", "uploadType=resumable&name=a"):
        assert request(f"{url}/upload/storage/v1/b/bucket/o?{query}", method)[0] == 404
    assert bucket.blob("a").download_as_bytes() == b"precious"


def test_a_delete_gives_up_an_upload_and_never_begins_one(bucket: storage.Bucket, url: str) -> None:
    assert request(f"{url}/upload/storage/v1/b/bucket/o?uploadType=media&name=a", "DELETE")[0] == 400
    assert names(bucket) == []


def test_html_of_a_bucket_runs_nothing_in_a_browser(bucket: storage.Bucket, url: str) -> None:
    put(bucket, "a.html")
    with urllib.request.urlopen(f"{url}/download/storage/v1/b/bucket/o/a.html?alt=media", timeout=DEADLINE) as answer:
        assert answer.headers["Content-Security-Policy"] == "sandbox"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_pages_follow_on_each_other_even_if_objects_come_between(bucket: storage.Bucket) -> None:
    put(bucket, *(f"{i // 3}/{i}" for i in range(7)))
    pages = bucket.list_blobs(page_size=3).pages
    listed = [blob.name for blob in next(pages)]
    put(bucket, "0/0-late")
    listed += [blob.name for page in pages for blob in page]
    assert listed == [f"{i // 3}/{i}" for i in range(7)]
    folders = bucket.list_blobs(page_size=1, delimiter="/")
    assert ([*folders], folders.prefixes) == ([], {"0/", "1/", "2/"})
    assert names(bucket, max_results=2) == ["0/0", "0/0-late"]


@pytest.mark.parametrize("seed", range(3))
def test_a_list_is_what_a_dictionary_of_names_would_give(bucket: storage.Bucket, root: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        path = root / "bucket" / "/".join(chance.choices(["a", "b.c", "a-", "é", "Z"], k=chance.randint(1, 4)))
        with contextlib.suppress(OSError):  # a file and a folder of one name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    files = sorted(p.relative_to(root / "bucket").as_posix() for p in (root / "bucket").rglob("*") if p.is_file())
    empty = [f"{p.relative_to(root / 'bucket').as_posix()}/" for p in (root / "bucket").rglob("*") if is_empty(p)]
    everything = sorted(files + empty)
    for _ in range(20):
        prefix = "".join(chance.choices(["", "a", "a/", "b.c/", "é"], k=2))
        start, end = sorted(chance.sample([*everything, "", "~"], 2))
        expected = [name for name in everything if name.startswith(prefix) and start <= name < end]
        page_size = chance.randint(1, 5)
        assert names(bucket, prefix=prefix, start_offset=start, end_offset=end, page_size=page_size) == expected


def is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def test_an_empty_folder_is_an_object_of_no_bytes_as_on_a_mounted_bucket(bucket: storage.Bucket, root: Path) -> None:
    (root / "bucket/run/logs").mkdir(parents=True)
    assert names(bucket) == ["run/logs/"]
    assert bucket.blob("run/logs/").download_as_bytes() == b""
    bucket.blob("made/").upload_from_string("")
    assert (root / "bucket/made").is_dir()
    bucket.blob("run/logs/").delete()
    assert names(bucket) == ["made/"]
    with pytest.raises(exceptions.BadRequest, match="is a folder and can't contain data"):
        bucket.blob("other/").upload_from_string("x")


def test_objects_are_copied_renamed_composed_and_deleted(bucket: storage.Bucket, root: Path) -> None:
    put(bucket, "a", "deep/er/b")
    assert bucket.copy_blob(bucket.blob("a"), bucket, "copy").size == 1
    assert bucket.blob("rewritten").rewrite(bucket.blob("a")) == (None, 1, 1)
    bucket.rename_blob(bucket.blob("copy"), "renamed")
    bucket.blob("both").compose([bucket.blob("a"), bucket.blob("deep/er/b")])
    assert bucket.blob("both").download_as_text() == "adeep/er/b"
    bucket.delete_blobs([bucket.blob("a"), bucket.blob("deep/er/b")])
    assert names(bucket) == ["both", "renamed", "rewritten"]
    assert not (root / "bucket/deep").exists()  # Cloud Storage has no folders to leave


def test_a_batch_answers_each_call(client: storage.Client, bucket: storage.Bucket) -> None:
    put(bucket, "a/b", "c")
    with client.batch(raise_exception=False) as batch:
        for name in ("a/b", "none", "c"):
            bucket.blob(name).delete()
    assert [response.status_code for response in batch._responses] == [204, 404, 204]
    assert names(bucket) == []


def test_a_write_happens_only_if_its_preconditions_hold(bucket: storage.Bucket) -> None:
    blob = bucket.blob("lock")
    blob.upload_from_string("1", if_generation_match=0)
    first = blob.generation
    for refused in ({"if_generation_match": 0}, {"if_generation_match": 5}, {"if_metageneration_match": 2}):
        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("lock").upload_from_string("2", **refused)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("lock", chunk_size=MIB).upload_from_file(io.BytesIO(BYTES), if_generation_match=0)
    blob.upload_from_string("3", if_generation_match=first)
    assert blob.generation > first
    with pytest.raises(exceptions.PreconditionFailed):
        blob.download_as_bytes(if_generation_match=first)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=first)
    assert blob.download_as_text() == "3"


def test_of_many_that_create_one_object_one_succeeds(bucket: storage.Bucket) -> None:
    outcomes = []

    def create(content: str) -> None:
        try:
            bucket.blob("lock").upload_from_string(content, if_generation_match=0)
            outcomes.append(content)
        except exceptions.PreconditionFailed:
            pass

    threads = [threading.Thread(target=create, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert outcomes == [bucket.blob("lock").download_as_text()]


def test_what_is_missing_or_exists_is_said_as_cloud_storage_says_it(
    client: storage.Client, bucket: storage.Bucket
) -> None:
    assert client.lookup_bucket("another") is None
    assert not bucket.blob("none").exists()
    with pytest.raises(exceptions.NotFound, match="No such object: bucket/none"):
        bucket.blob("none").delete()
    with pytest.raises(exceptions.NotFound, match="bucket another does not exist; create it first"):
        client.bucket("another").blob("x").upload_from_string("x")
    with pytest.raises(exceptions.Conflict):
        client.create_bucket("bucket")
    with pytest.raises(exceptions.BadRequest, match="Invalid bucket name"):
        client.create_bucket("b")
    put(bucket, "x")
    with pytest.raises(exceptions.Conflict, match="isn't empty"):
        bucket.delete()
    bucket.delete(force=True)
    assert [*client.list_buckets()] == []


def test_metadata_that_no_file_has_are_dropped(bucket: storage.Bucket) -> None:
    put(bucket, "x")
    blob = bucket.blob("x")
    blob.metadata = {"team": "research"}
    blob.patch()
    assert bucket.get_blob("x").metadata is None


def test_a_bucket_keeps_what_it_was_created_with(client: storage.Client) -> None:
    new = client.bucket("placed")
    new.storage_class, new.labels, new.versioning_enabled = "NEARLINE", {"team": "ours"}, True
    new.iam_configuration.uniform_bucket_level_access_enabled = True
    new.add_lifecycle_delete_rule(age=7)
    client.create_bucket(new, location="europe-west4")
    found = client.get_bucket("placed")
    assert (found.location, found.location_type, found.storage_class) == ("EUROPE-WEST4", "region", "NEARLINE")
    assert (found.labels, found.versioning_enabled) == ({"team": "ours"}, True)
    assert found.iam_configuration.uniform_bucket_level_access_enabled
    assert [*found.lifecycle_rules] == [{"action": {"type": "Delete"}, "condition": {"age": 7}}]
    assert found.time_created


@pytest.mark.parametrize(
    ("location", "kind"), [("us", "multi-region"), ("NAM4", "dual-region"), ("us-east1", "region")]
)
def test_a_location_is_of_a_kind(client: storage.Client, location: str, kind: str) -> None:
    made = client.create_bucket("placed", location=location)
    assert (made.location, made.location_type) == (location.upper(), kind)


def test_a_bucket_belongs_to_the_project_that_created_it(client: storage.Client) -> None:
    made = client.create_bucket("owned", project="of-others")
    assert made.project_number == int(project_number("of-others"))


def test_a_bucket_changes_as_patched_or_replaced_but_for_its_place(bucket: storage.Bucket, url: str) -> None:
    bucket.labels = {"team": "ours", "stage": "test"}
    bucket.patch()
    labels = bucket.labels
    del labels["team"]
    labels["size"] = "l"
    bucket.labels, bucket.storage_class = labels, "COLDLINE"
    bucket.patch()
    assert (bucket.labels, bucket.metageneration) == ({"stage": "test", "size": "l"}, 3)
    request(f"{url}/storage/v1/b/bucket", "PATCH", b'{"location": "EU", "name": "other", "etag": "x"}')
    bucket.reload()
    assert (bucket.location, bucket.name, bucket.storage_class) == ("US", "bucket", "COLDLINE")
    bucket.labels = {"only": "this"}
    bucket.update()
    assert bucket.client.get_bucket("bucket").labels == {"only": "this"}
    with pytest.raises(exceptions.PreconditionFailed, match="has changed; read the bucket again"):
        bucket.patch(if_metageneration_match=1)


def test_a_policy_is_kept_and_no_change_of_another_is_lost(bucket: storage.Bucket) -> None:
    policy = bucket.get_iam_policy(requested_policy_version=3)
    assert policy.bindings == []
    policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"user:a@example.com"}})
    bucket.set_iam_policy(policy)
    assert bucket.get_iam_policy()["roles/storage.objectViewer"] == {"user:a@example.com"}
    with pytest.raises(exceptions.PreconditionFailed, match="has changed"):
        bucket.set_iam_policy(policy)
    assert "iamPolicy" not in bucket.client.get_bucket("bucket")._properties
    allowed = ["storage.objects.get", "storage.buckets.delete"]
    assert bucket.test_iam_permissions(allowed) == allowed


def test_a_buckets_metadata_outlive_the_service_and_not_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for location in ("EUROPE-WEST4", "US"):
        with serving(tmp_path / "gcs") as url:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            client = storage.Client(project="demo")
            if location == "US":
                client.get_bucket("bucket").delete()
            client.create_bucket("bucket", location=location)
        with serving(tmp_path / "gcs") as url:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            assert storage.Client(project="demo").get_bucket("bucket").location == location


ODD = [
    "sp ace",
    "ü/ß",
    "a%2Fb",
    "q?x=1&y",
    "h#1",
    "pl+us",
    "[x]*{y}",
    "x:y@z",
    ";semi",
    "\\back",
    '"q"',
    "\u2028",
    "...",
]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_is_a_file_of_that_name(bucket: storage.Bucket, root: Path, name: str) -> None:
    bucket.blob(name).upload_from_string("small")
    assert (root / "bucket" / name).read_text() == "small"
    bucket.blob(name, chunk_size=MIB).upload_from_file(io.BytesIO(BYTES[: 2 * MIB]))
    assert bucket.blob(name).download_as_bytes() == BYTES[: 2 * MIB]
    assert names(bucket) == [name]
    bucket.blob(name).delete()


NO_FILES = ["../x", "a/../../x", "/etc/x", "a//b", "./x", "a/.", "nul\0", "line\nbreak", "x" * 256, "x/" * 513]


@pytest.mark.parametrize("name", NO_FILES)
def test_a_name_that_cannot_be_a_file_is_refused(bucket: storage.Bucket, root: Path, name: str) -> None:
    before = everything_in(root.parent)
    calls: tuple[Callable[[], object], ...] = (
        lambda: bucket.blob(name).upload_from_string("x"),
        lambda: bucket.blob(name, chunk_size=MIB).upload_from_file(io.BytesIO(BYTES[: 2 * MIB])),
        lambda: bucket.blob(name).download_as_bytes(),
        lambda: bucket.blob(name).delete(),
    )
    for refused in calls:
        with pytest.raises((exceptions.BadRequest, exceptions.NotFound)):
            refused()
    assert everything_in(root.parent) == before


@pytest.mark.parametrize(
    "path",
    [
        "b/bucket/o/..%2F..%2Fsecret",
        "b/bucket/o/%2e%2e%2f%2e%2e%2fsecret",
        "b/bucket/o/../../../../secret",
        "b/../o/secret",
        "b/..%2F/o/secret",
        "b/%2e%2e/o/secret",
        "b/.uploads/o/x",
        "b/%2Fetc/o/passwd",
        "b/bucket/o/%252e%252e%252fsecret",
        "b/bucket%00/o/x",
    ],
)
def test_no_address_leads_out_of_the_buckets(bucket: storage.Bucket, url: str, root: Path, path: str) -> None:
    (root.parent / "secret").write_text("secret")
    for prefix in ("storage", "download/storage"):
        status, body = request(f"{url}/{prefix}/v1/{path}?alt=media")
        assert status in (400, 404)
        assert b"No such" in body or b"does not exist" in body or b"doesn't serve" in body or b"object name" in body
    assert request(f"{url}/storage/v1/{path}", "DELETE")[0] in (400, 404)
    assert (root.parent / "secret").read_text() == "secret"


def test_links_are_neither_listed_nor_followed(client: storage.Client, bucket: storage.Bucket, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "bucket/folder").symlink_to(outside)
    (root / "bucket/file").symlink_to(outside / "secret")
    (root / "linked").symlink_to(outside)
    for name in ("folder/secret", "file"):
        with pytest.raises(exceptions.BadRequest, match="contains a symbolic link"):
            bucket.blob(name).download_as_bytes()
        with pytest.raises(exceptions.BadRequest, match="contains a symbolic link"):
            bucket.blob(name).upload_from_string("x")
    with pytest.raises(exceptions.NotFound):
        client.bucket("linked").blob("secret").download_as_bytes()
    assert (names(bucket), [found.name for found in client.list_buckets()]) == ([], ["bucket"])
    assert [*outside.iterdir()] == [outside / "secret"]


def test_an_upload_is_invisible_until_it_is_whole_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "gcs"
    (root / "bucket").mkdir(parents=True)
    with serving(root) as url:
        session = begin_upload(url, "x")
        assert send(session, BYTES[:MIB], f"bytes 0-{MIB - 1}/*") == (308, f"bytes=0-{MIB - 1}")
        assert b"items" not in request(f"{url}/storage/v1/b/bucket/o")[1]
    with serving(root) as url:
        session = url + session[session.index("/upload") :]
        assert send(session, b"", "bytes */*") == (308, f"bytes=0-{MIB - 1}")
        assert send(session, BYTES[MIB // 2 : 2 * MIB], f"bytes {MIB // 2}-{2 * MIB - 1}/{2 * MIB}")[0] == 200
        assert request(f"{url}/storage/v1/b/bucket/o/x?alt=media") == (200, BYTES[: 2 * MIB])
        assert send(session, b"", "bytes */*")[0] == 404
    assert [*(root / ".uploads").iterdir()] == []


def test_an_upload_with_a_gap_or_too_many_bytes_is_refused(bucket: storage.Bucket, url: str) -> None:
    assert send(begin_upload(url, "x"), b"abc", "bytes 5-7/8")[0] == 400
    assert send(begin_upload(url, "x"), b"abcdef", "bytes 0-5/3")[0] == 400
    assert send(begin_upload(url, "x"), b"abc", "nonsense")[0] == 400
    assert names(bucket) == []


def begin_upload(url: str, name: str) -> str:
    asked = urllib.request.Request(f"{url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name={name}", b"{}")
    with urllib.request.urlopen(asked, timeout=DEADLINE) as got:
        return str(got.headers["Location"])


def send(session: str, body: bytes, content_range: str) -> tuple[int, str]:
    asked = urllib.request.Request(session, body, {"Content-Range": content_range}, method="PUT")
    try:
        with urllib.request.urlopen(asked, timeout=DEADLINE) as got:
            return got.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Range", "")


def test_a_range_with_more_digits_than_a_number_may_have_is_no_range(bucket: storage.Bucket, url: str) -> None:
    put(bucket, "a")
    assert request(f"{url}/storage/v1/b/bucket/o/a?alt=media", Range=f"bytes=0-{'9' * 5000}") == (200, b"a")


@pytest.mark.parametrize("calls", [1, 100, 101])
def test_a_batch_has_at_most_a_hundred_calls(bucket: storage.Bucket, url: str, calls: int) -> None:
    one = b"--x\r\nContent-ID: <id+7>\r\n\r\nGET /storage/v1/b/bucket HTTP/1.1\r\n\r\n\r\n"
    kind = "multipart/mixed; boundary=x"
    status, said = request(f"{url}/batch/storage/v1", "POST", one * calls + b"--x--", Content_Type=kind)
    assert status == (200 if calls <= 100 else 400), said
    assert said.count(b"Content-ID: <response-id+7>\r\n\r\nHTTP/1.1 200 OK") == (calls if calls <= 100 else 0)


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("storage/v1/b", "POST", b"[]"),
        ("storage/v1/b", "POST", b"{"),
        ("storage/v1/b", "POST", b'{"name": "../x"}'),
        ("storage/v1/b", "POST", b'{"name": 5}'),
        ("storage/v1/b/bucket/o?maxResults=many", "GET", None),
        ("storage/v1/b/bucket/o?pageToken=!", "GET", None),
        ("storage/v1/b/bucket/o?matchGlob=[z-a]", "GET", None),
        ("storage/v1/b/bucket/o/x/compose", "POST", b"{}"),
        ("storage/v1/b/bucket/o/x/compose", "POST", b'{"sourceObjects": 1}'),
        ("storage/v1/b/bucket/o/x/compose", "POST", b'{"sourceObjects": [1]}'),
        ("upload/storage/v1/b/bucket/o?uploadType=multipart", "POST", b"nothing of the kind"),
        ("upload/storage/v1/b/bucket/o?uploadType=multipart", "POST", b"--x\n\n{}\n--x\n\ndata without end"),
        ("upload/storage/v1/b/bucket/o?uploadType=media", "POST", b"no name"),
        ("upload/storage/v1/b/bucket/o?uploadType=new&name=x", "POST", b""),
        ("upload/storage/v1/b/bucket/o?uploadType=resumable", "POST", b'{"name": "\\ud800"}'),
        ("upload/storage/v1/b/bucket/o?upload_id=../../x", "PUT", b""),
        ("batch/storage/v1", "POST", b"no batch"),
        (f"storage/v1/b/bucket/o?matchGlob={'[' * 2000}", "GET", None),
        ("storage/v1/b/bucket/acl", "GET", None),
        ("storage/v1/b/bucket/iam", "PUT", b'{"bindings": [{"role": "roles/owner"}]}'),
        ("storage/v1/b/bucket/iam", "PUT", b'{"bindings": {}}'),
        ("storage/v1/b", "POST", b'{"name": "other", "location": 5}'),
    ],
)
def test_what_cannot_be_read_is_the_callers_fault(
    bucket: storage.Bucket, url: str, path: str, method: str, body: bytes | None
) -> None:
    status, said = request(f"{url}/{path}", method, body)
    assert status in (400, 404), said
    assert said.startswith(b'{"error":{"code":4')


def test_a_download_is_one_object_while_others_take_its_place(bucket: storage.Bucket, root: Path) -> None:
    stop = threading.Event()

    def replace() -> None:
        for i in range(10**6):
            if stop.is_set():
                return
            (root / "next").write_bytes(b"%d" % (i % 10) * 3 * 10**6)
            os.replace(root / "next", root / "bucket/x")

    (root / "bucket/x").write_bytes(b"0")
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(10):
            assert len({*bucket.blob("x").download_as_bytes()}) == 1
    finally:
        stop.set()
        thread.join(DEADLINE)


def test_a_list_bears_files_that_come_and_go(bucket: storage.Bucket, root: Path) -> None:
    put(bucket, "a", "z")
    stop = threading.Event()

    def come_and_go() -> None:
        for _ in range(10**6):
            if stop.is_set():
                return
            (root / "bucket/folder").mkdir()
            (root / "bucket/folder/m").write_text("m")
            shutil.rmtree(root / "bucket/folder")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(40):
            assert {"a", "z"} <= {*names(bucket)} <= {"a", "folder/", "folder/m", "z"}
    finally:
        stop.set()
        thread.join(DEADLINE)


def test_an_object_that_is_deleted_before_it_is_read_has_no_checksums(root: Path) -> None:
    (root / "bucket").mkdir()
    (root / "bucket/x").write_text("x")
    buckets = Buckets(root)
    item = buckets.get("bucket", "x")
    assert buckets.checksums(item) is not None
    (root / "bucket/x").unlink()
    assert buckets.checksums(item) is None


def test_gcsfs_reads_and_writes(url: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # else it asks over gRPC, and hangs
    gcsfs = importlib.import_module("gcsfs.core")
    files = gcsfs.GCSFileSystem(project="demo", token="anon", endpoint_url=url, skip_instance_cache=True)
    files.mkdir("bucket")
    files.pipe("bucket/a/one", b"1")
    with files.open("bucket/a/large", "wb", block_size=5 * MIB) as stream:
        stream.write(BYTES)
    assert files.cat("bucket/a/large") == BYTES
    assert files.cat_file("bucket/a/large", start=10, end=20) == BYTES[10:20]
    assert files.find("bucket") == ["bucket/a/large", "bucket/a/one"]
    assert (files.ls("bucket"), files.isdir("bucket/a"), files.exists("bucket/b")) == (["bucket/a"], True, False)
    (root / "bucket/a/job").write_text("here")
    files.invalidate_cache()
    assert files.glob("bucket/**/j*") == ["bucket/a/job"]
    files.get("bucket/a/job", str(tmp_path / "got"))
    assert (tmp_path / "got").read_text() == "here"
    files.mv("bucket/a/one", "bucket/two")
    assert files.cat("bucket/two") == b"1"
    files.rm("bucket/a", recursive=True)
    assert not (root / "bucket/a").exists()


@pytest.mark.proof
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_reads_and_writes(url: str, root: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    (local / "deep").mkdir(parents=True)
    (local / "deep/small").write_text("small")
    (local / "large").write_bytes(BYTES)
    (root / "jobs-bucket/run").mkdir(parents=True)
    (root / "jobs-bucket/run/log").write_text("step 1\n")
    gcloud = GCloud(url, tmp_path / "config")
    assert gcloud("cat", "gs://jobs-bucket/run/log") == "step 1\n"
    gcloud("cp", "-r", f"{local}", "gs://jobs-bucket/")
    assert (root / "jobs-bucket/local/large").read_bytes() == BYTES
    assert gcloud("ls", "gs://jobs-bucket/**").split() == [
        f"gs://jobs-bucket/{name}" for name in ("local/deep/small", "local/large", "run/log")
    ]
    gcloud("cp", "gs://jobs-bucket/local/large", f"{tmp_path}/got")
    assert (tmp_path / "got").read_bytes() == BYTES
    (local / "deep/small").rename(local / "deep/other")
    gcloud("rsync", "-r", "--delete-unmatched-destination-objects", f"{local}", "gs://jobs-bucket/local")
    assert {path.name for path in (root / "jobs-bucket/local").rglob("*")} == {"deep", "other", "large"}
    gcloud("rm", "-r", "gs://jobs-bucket")
    assert not (root / "jobs-bucket").exists()
    gcloud("buckets", "create", "gs://made-here", "--location=europe-west4")
    viewer = ("--member=user:a@example.com", "--role=roles/storage.objectViewer")
    gcloud("buckets", "add-iam-policy-binding", "gs://made-here", *viewer)
    assert "user:a@example.com" in gcloud("buckets", "get-iam-policy", "gs://made-here")
    gcloud("buckets", "update", "gs://made-here", "--update-labels=team=ours")
    described = gcloud("buckets", "describe", "gs://made-here", "--format=value(location,labels)")
    assert described.split() == ["EUROPE-WEST4", "team=ours"]


class GCloud:
    """`gcloud storage` without an account."""

    def __init__(self, url: str, config: Path) -> None:
        self._environment = os.environ | {
            "CLOUDSDK_CONFIG": str(config),
            "CLOUDSDK_CORE_PROJECT": "demo",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{url}/storage/v1/",
        }

    def __call__(self, *arguments: str) -> str:
        ended = subprocess.run(
            ["gcloud", "storage", *arguments], env=self._environment, capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


def everything_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
