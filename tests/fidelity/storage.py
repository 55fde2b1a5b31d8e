"""Cloud Storage."""

import io

import pytest
from google.api_core.exceptions import Conflict, NotFound, PreconditionFailed
from google.cloud.storage import Blob, Bucket, Client, transfer_manager

from launcher.tests.vertex import Service
from tests.fidelity.usages import DOCS, NOTEBOOKS, rest, usage

SAMPLES = f"{DOCS}: Cloud Storage, code samples"


def bucket(name: str) -> Bucket:
    return Client(project="p").create_bucket(name)


def filled(name: str, *objects: str) -> Bucket:
    """Create a bucket in which each object holds its own name."""
    made = bucket(name)
    for key in objects:
        made.blob(key).upload_from_string(key)
    return made


@usage(f"{NOTEBOOKS}/migration/sdk-custom-scikit-learn-prebuilt-container.ipynb")
def file_uploaded(vertex: Service) -> None:
    """Upload a file, and download it."""
    path, back = vertex.folder / "up.txt", vertex.folder / "down.txt"
    path.write_text("content")
    blob = bucket("files").blob("folder/up.txt")
    blob.upload_from_filename(path)
    blob.download_to_filename(back)
    assert back.read_text() == "content"


@usage(f"{NOTEBOOKS}/automl/automl_forecasting_on_vertex_pipelines.ipynb")
def string_uploaded(vertex: Service) -> None:
    """Upload a text, and download it as bytes."""
    blob = bucket("strings").blob("a.json")
    blob.upload_from_string('{"a": 1}', content_type="application/json")
    assert blob.download_as_bytes() == b'{"a": 1}'
    assert Client(project="p").bucket("strings").get_blob("a.json").content_type == "application/json"


@usage(f"{NOTEBOOKS}/pipelines/custom_tabular_train_batch_pred_bq_pipeline.ipynb")
def found_by_address(vertex: Service) -> None:
    """Download an object by its gs:// URI."""
    filled("addressed", "a/b")
    blob = Blob.from_uri("gs://addressed/a/b", client=Client(project="p"))
    assert blob.download_as_text() == "a/b"


@usage(f"{NOTEBOOKS}/automl/automl_image_classification_batch_prediction.ipynb")
def listed(vertex: Service) -> None:
    """List the objects under a prefix."""
    filled("listed", "run/1", "run/2", "other")
    assert [blob.name for blob in Client(project="p").list_blobs("listed", prefix="run/")] == ["run/1", "run/2"]


@usage(f"{SAMPLES}, list objects by a delimiter")
def listed_as_folders(vertex: Service) -> None:
    """List objects as in folders."""
    found = filled("folders", "a/1", "a/b/2", "c").list_blobs(delimiter="/")
    assert [blob.name for blob in found] == ["c"]
    assert found.prefixes == {"a/"}


@usage(f"{SAMPLES}, list objects by a pattern")
def listed_by_pattern(vertex: Service) -> None:
    """List objects that match a pattern."""
    found = filled("patterns", "a.csv", "b.txt", "d/c.csv").list_blobs(match_glob="**.csv")
    assert [blob.name for blob in found] == ["a.csv", "d/c.csv"]


@usage(f"{SAMPLES}, create a bucket in a location")
def located(vertex: Service) -> None:
    """Create a bucket in a region, and read its location."""
    made = Client(project="p").create_bucket("located", location="us-central1")
    assert made.location.lower() == "us-central1"
    assert Client(project="p").get_bucket("located").location_type == "region"


@usage(f"{SAMPLES}, list buckets")
def buckets_listed(vertex: Service) -> None:
    """List all buckets, and look up one bucket."""
    bucket("one-of-all")
    client = Client(project="p")
    assert "one-of-all" in [made.name for made in client.list_buckets()]
    assert client.lookup_bucket("none-of-all") is None
    assert not client.bucket("none-of-all").exists()


@usage(f"{SAMPLES}, delete a bucket")
def bucket_deleted(vertex: Service) -> None:
    """Delete a bucket with its objects."""
    filled("deleted", "a", "b").delete(force=True)
    with pytest.raises(NotFound):
        Client(project="p").get_bucket("deleted")


@usage(f"{SAMPLES}, a bucket that exists")
def bucket_twice(vertex: Service) -> None:
    """Get an error for a second bucket with the same name."""
    bucket("twice")
    with pytest.raises(Conflict):
        bucket("twice")


@usage(f"{SAMPLES}, delete an object")
def object_deleted(vertex: Service) -> None:
    """Delete objects, individually and in a batch."""
    made = filled("emptied", "a", "b", "c")
    made.blob("a").delete()
    with made.client.batch():
        made.blob("b").delete()
        made.blob("c").delete()
    assert [*made.list_blobs()] == []


@usage(f"{SAMPLES}, copy, rename and move objects")
def copied_and_renamed(vertex: Service) -> None:
    """Copy an object to another bucket, and rename the copy."""
    source, target = filled("source", "a"), bucket("target")
    source.copy_blob(source.blob("a"), target, "b")
    target.rename_blob(target.blob("b"), "c")
    assert [(blob.name, blob.download_as_text()) for blob in target.list_blobs()] == [("c", "a")]


@usage(f"{SAMPLES}, rewrite an object")
def rewritten(vertex: Service) -> None:
    """Rewrite an object under another name."""
    made = filled("rewritten", "a")
    token, done, size = made.blob("b").rewrite(made.blob("a"))
    assert (token, done, size) == (None, 1, 1)


@usage(f"{SAMPLES}, compose objects")
def composed(vertex: Service) -> None:
    """Compose a new object from several objects."""
    made = filled("composed", "a", "b")
    made.blob("ab").compose([made.blob("a"), made.blob("b")])
    assert made.blob("ab").download_as_text() == "ab"


@usage(f"{SAMPLES}, upload from memory in chunks")
def resumable(vertex: Service) -> None:
    """Upload a stream in chunks with a resumable upload."""
    made = bucket("chunks")
    made.blob("large", chunk_size=256 * 1024).upload_from_file(io.BytesIO(b"x" * 10**6))
    assert made.get_blob("large").size == 10**6


@usage(f"{SAMPLES}, stream objects")
def streamed(vertex: Service) -> None:
    """Write and read an object as a file."""
    blob = bucket("streams").blob("log")
    with blob.open("w") as file:
        file.write("line 1\nline 2\n")
    with blob.open("r") as file:
        assert file.readlines() == ["line 1\n", "line 2\n"]


@usage(f"{SAMPLES}, download a byte range")
def byte_range(vertex: Service) -> None:
    """Download a part of an object."""
    assert filled("ranges", "0123456789").blob("0123456789").download_as_bytes(start=2, end=4) == b"234"


@usage(f"{SAMPLES}, request preconditions")
def precondition(vertex: Service) -> None:
    """Upload an object only if it doesn't exist."""
    made = filled("guarded", "a")
    with pytest.raises(PreconditionFailed):
        made.blob("a").upload_from_string("b", if_generation_match=0)


@usage(f"{SAMPLES}, transfer manager, upload chunks concurrently")
def chunks_at_once(vertex: Service) -> None:
    """Upload a file in several chunks in parallel."""
    path = vertex.folder / "large"
    path.write_bytes(b"chunk" * 2**21)
    blob = bucket("parts").blob("large")
    transfer_manager.upload_chunks_concurrently(path, blob, chunk_size=5 * 2**20, worker_type=transfer_manager.THREAD)
    assert blob.download_as_bytes() == path.read_bytes()


@usage(f"{SAMPLES}, transfer manager")
def many_at_once(vertex: Service) -> None:
    """Upload a folder with the transfer manager."""
    folder = vertex.folder / "many"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)
    made = bucket("many")
    transfer_manager.upload_many_from_filenames(made, ["a", "b", "c"], str(folder), worker_type=transfer_manager.THREAD)
    assert [blob.name for blob in made.list_blobs()] == ["a", "b", "c"]


@usage(f"{SAMPLES}, object metadata")
def checksummed(vertex: Service) -> None:
    """Read an object's size, checksums and times."""
    blob = filled("sums", "123456789").get_blob("123456789")
    assert (blob.size, blob.crc32c) == (9, "4waSgw==")
    assert blob.md5_hash
    assert blob.updated >= blob.time_created


@usage(f"{SAMPLES}, custom metadata", differs="an object is a plain file, so its custom metadata is dropped")
def custom_metadata(vertex: Service) -> None:
    """Store custom metadata with an object."""
    blob = filled("metadata", "a").blob("a")
    blob.metadata = {"epoch": "3"}
    blob.patch()
    assert Client(project="p").bucket("metadata").get_blob("a").metadata == {"epoch": "3"}


@usage(f"{SAMPLES}, bucket labels")
def bucket_labels(vertex: Service) -> None:
    """Label a bucket."""
    made = bucket("labeled")
    made.labels = {"team": "vision"}
    made.patch()
    assert Client(project="p").get_bucket("labeled").labels == {"team": "vision"}


@usage(f"{DOCS}: IAM for buckets, add-iam-policy-binding of 33 notebooks")
def policy(vertex: Service) -> None:
    """Grant an account read access to a bucket."""
    made = bucket("shared")
    policy = made.get_iam_policy(requested_policy_version=3)
    policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"serviceAccount:a@p.iam"}})
    made.set_iam_policy(policy)
    roles = [binding["role"] for binding in made.get_iam_policy(requested_policy_version=3).bindings]
    assert "roles/storage.objectViewer" in roles


@usage(f"{DOCS}: IAM for buckets, testIamPermissions")
def permissions(vertex: Service) -> None:
    """Test the permissions for a bucket."""
    assert bucket("allowed").test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]


@usage(f"{DOCS}: gcsfs, as pandas and Keras use it")
def file_system(vertex: Service) -> None:
    """Read and write a bucket with gcsfs."""
    import gcsfs

    fs = gcsfs.GCSFileSystem(project="p", token="anon", endpoint_url=vertex.endpoint, skip_instance_cache=True)
    bucket("filesystem")
    with fs.open("filesystem/a/b.txt", "w") as file:
        file.write("content")
    assert fs.ls("filesystem/a") == ["filesystem/a/b.txt"]
    assert fs.cat("filesystem/a/b.txt") == b"content"


@usage(f"{DOCS}: Cloud Storage, objects.get with curl")
def by_curl(vertex: Service) -> None:
    """Read an object's metadata and its bytes with plain REST."""
    filled("curl", "a/b")
    assert rest(vertex, "GET", "storage/v1/b/curl/o/a%2Fb")["size"] == "3"
    assert [one["name"] for one in rest(vertex, "GET", "storage/v1/b/curl/o", prefix="a/")["items"]] == ["a/b"]
