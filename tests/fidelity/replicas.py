"""Inside a replica."""

import pytest
from google.cloud import aiplatform

from launcher.tests.running import eventually
from launcher.tests.vertex import Service, script
from tests.fidelity.usages import DOCS, NOTEBOOKS, pool, put, usage


def printed(vertex: Service, code: str, *more: object, **how: object) -> list[str]:
    """Run a script as a job of one replica, or of further pools, and return the lines of the first one."""
    job = aiplatform.CustomJob(
        "replica", worker_pool_specs=[pool(*script(code)), *more], base_output_dir="gs://b/replica"
    )
    job.run(**how)
    lines = [line.partition(": ") for line in vertex.log(job.resource_name)]
    return [text for replica, _, text in lines if replica == "workerpool0-0"]


@usage(f"{DOCS}: Training code requirements, environment variables")
def cluster_spec(vertex: Service) -> None:
    """Read the replica's own position in CLUSTER_SPEC."""
    code = "import json, os; task = json.loads(os.environ['CLUSTER_SPEC'])['task']; print(task['type'], task['index'])"
    assert printed(vertex, code) == ["workerpool0 0"]


@usage(f"{DOCS}: Training code requirements, CLOUD_ML_JOB_ID")
def own_job(vertex: Service) -> None:
    """Read the ID of the replica's job and project."""
    code = "import os; print(os.environ['CLOUD_ML_JOB_ID'].isdigit(), bool(os.environ['CLOUD_ML_PROJECT_ID']))"
    assert printed(vertex, code) == ["True True"]


@usage(f"{DOCS}: google.cloud.aiplatform.initializer, CLOUD_ML_REGION")
def own_region(vertex: Service) -> None:
    """Read the region of the replica's job, as the SDK does."""
    assert printed(vertex, "import os; print(os.environ['CLOUD_ML_REGION'])") == ["us-central1"]


@usage(f"{DOCS}: Prepare training code, Cloud Storage FUSE")
def mounted_bucket(vertex: Service) -> None:
    """Read and write a bucket as the folder /gcs."""
    put("data/in.txt", "content")
    code = "text = open('/gcs/b/data/in.txt').read(); open('/gcs/b/data/out.txt', 'w').write(text); print(text)"
    assert printed(vertex, code) == ["content"]
    assert (vertex.state_dir / "gcs/b/data/out.txt").read_text() == "content"


@usage(f"{NOTEBOOKS}/training/pytorch_gcs_data_training.ipynb")
def model_folder(vertex: Service) -> None:
    """Save a model in the folder under /gcs that AIP_MODEL_DIR specifies."""
    code = """
import os, pathlib
folder = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
folder.mkdir(parents=True, exist_ok=True)
(folder / "model.bin").write_bytes(b"weights")
"""
    printed(vertex, code)
    assert (vertex.state_dir / "gcs/b/replica/model/model.bin").read_bytes() == b"weights"


@usage(f"{NOTEBOOKS}/migration/sdk-custom-xgboost-prebuilt-container.ipynb")
def storage_client(vertex: Service) -> None:
    """Use Cloud Storage's client in the container."""
    put("data/rows.csv", "1,2\n")
    code = """
from google.cloud import storage
print(storage.Client(project="p").bucket("b").blob("data/rows.csv").download_as_text())
"""
    assert printed(vertex, code)[0] == "1,2"


@usage(
    f"{NOTEBOOKS}/ml_metadata/sdk-metric-parameter-tracking-for-custom-jobs.ipynb",
)
def sdk(vertex: Service) -> None:
    """Use the Vertex AI SDK in the container, with the job's service account."""
    code = """
from google.cloud import aiplatform
aiplatform.init(project="p", location="us-central1")
print(aiplatform.CustomJob.list(filter="display_name=none"))
"""
    assert printed(vertex, code) == ["[]"]


@usage(f"{NOTEBOOKS}/training/multi_node_ddp_gloo_vertex_training_with_custom_container.ipynb")
def ranks(vertex: Service) -> None:
    """Connect to the other replicas at MASTER_ADDR and MASTER_PORT."""
    chief = """
import os, socket
server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
print(os.environ["RANK"], os.environ["WORLD_SIZE"], server.accept()[0].recv(9).decode())
"""
    worker = """
import os, socket, time
for _ in range(300):
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).send(b"hello")
        break
    except OSError:
        time.sleep(0.05)
time.sleep(30)
"""
    assert printed(vertex, chief, pool(*script(worker))) == ["0 2 hello"]


@usage(f"{NOTEBOOKS}/training/sdk_pytorch_torchrun_custom_container_training_imagenet.ipynb")
def host_names(vertex: Service) -> None:
    """Find every replica under its own host name, as torchrun requires."""
    show = script("import socket; print(socket.gethostname()); import time; time.sleep(0.5)")
    job = aiplatform.CustomJob("hosts", worker_pool_specs=[pool(*show), pool(*show, count=2)])
    job.run()
    assert len({line.partition(": ")[2] for line in vertex.log(job.resource_name)}) >= 2


@usage(f"{DOCS}: Training code requirements, fault tolerance")
def restarted(vertex: Service) -> None:
    """Restart after a machine is lost, and resume from a checkpoint."""
    code = """
import os, pathlib
checkpoint = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"].replace("gs://", "/gcs/"))
if checkpoint.exists():
    print("resumed")
else:
    checkpoint.mkdir(parents=True)
    os._exit(75)
"""
    assert printed(vertex, code)[-1] == "resumed"  # behind the line that says why it starts again


@usage(f"{DOCS}: Use Spot VMs with training, preemption")
def preempted(vertex: Service) -> None:
    """Save a checkpoint on SIGTERM, when a job is canceled."""
    code = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("/gcs/b/saved").write_text("saved")
    sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path("/gcs/b/ready").touch()
while True: time.sleep(0.1)
"""
    job = aiplatform.CustomJob("terminated", worker_pool_specs=[pool(*script(code))])
    job.submit()
    ready = vertex.state_dir / "gcs/b/ready"
    assert eventually(ready.exists)
    job.cancel()
    vertex.wait(job.resource_name, "CANCELLED")
    assert (vertex.state_dir / "gcs/b/saved").read_text() == "saved"


@usage(f"{DOCS}: Containerize and run training code, the working directory")
def working_directory(vertex: Service) -> None:
    """Start in a folder to which no other job has written."""
    code = "import pathlib; print(pathlib.Path('left').exists()); pathlib.Path('left').touch()"
    assert [printed(vertex, code)[0], printed(vertex, code)[0]] == ["False", "False"]


@usage(f"{DOCS}: Exit codes of containers")
def user_error(vertex: Service) -> None:
    """End immediately with the traceback of a user's error."""
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        printed(vertex, "open('/none')")
