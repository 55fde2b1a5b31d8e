"""The images of both frameworks, built for real without CUDA and run as Vertex AI runs them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from launcher.tests.running import eventually
from tests import engine
from tests.conftest import bake
from tests.engine import Engine
from tests.kept import FIGURES
from vertex_launch.job.contract import Replica, replicas
from vertex_launch.job.spec import Job, parse

pytestmark = [pytest.mark.slow, pytest.mark.proof, pytest.mark.skipif(bool(engine.why_not()), reason=engine.why_not())]
# What is the launcher's, or the same file in both images.
of_one = pytest.mark.parametrize("built", ["pytorch"], indirect=True)

Record = Callable[[str, object], None]
NETWORK, SUBNET = "vertex-dist-template", "172.29.77.0/24"
STEPS = ("--global-batch", "24", "--warmup", "5", "--rollcall-timeout", "300")
FOREVER = ("--steps", "1000000", *STEPS)
ENDED = 600.0  # seconds; a guard against hanging


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    with engine.googles_packages(folder), engine.engine(folder) as running:
        engine.make_base(running, folder, "ubuntu:24.04")  # what `vertex-launch image cpu` begins with
        running.docker("network", "create", "--internal", "--subnet", SUBNET, NETWORK)
        yield running
        running.docker("network", "rm", NETWORK)  # the engine would leave its bridge on this machine


@pytest.fixture(autouse=True)
def no_containers(docker: Engine) -> Iterator[None]:
    """Whatever a test leaves is removed; the engine has no others."""
    yield
    if there := docker.docker("ps", "--all", "--quiet").split():
        docker.docker("rm", "--force", *there)


@dataclass(frozen=True)
class Built:
    """An image of a project."""

    docker: Engine
    project: Path
    figures: list[str] = field(default_factory=list)  # what its first build took

    @property
    def image(self) -> str:
        spec = yaml.safe_load((self.project / "jobs/smoke.yaml").read_text(encoding="utf-8"))
        return str(spec["workerPoolSpecs"][0]["containerSpec"]["imageUri"])

    def build(self, *kind: str) -> str:
        """Run `vertex-launch image`; returns what it says."""
        google = f"--add-host={engine.GOOGLES}:{engine.ADDRESS}"
        words = ("-m", "vertex_launch", "image", *kind, "--network=host", google, engine.NOWHERE)
        done = self.docker.run(sys.executable, *words, cwd=self.project)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, name: str, *words: str, options: tuple[str, ...] = ()) -> str:
        """A container in the background; its id."""
        return self.docker.docker("run", "--detach", f"--name={name}", *options, self.image, *words)

    def end(self, name: str) -> tuple[int, str]:
        """Exit code and log of a container that ends by itself; it is removed."""
        code = int(self.docker.docker("wait", name, seconds=ENDED))
        done = self.docker.run("docker", "logs", name)
        self.docker.docker("rm", name)
        return code, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["pytorch", "tensorflow"])
def built(docker: Engine, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from the unchanged Dockerfile."""
    one = Built(docker, bake(tmp_path_factory.mktemp(request.param), framework=request.param).project)
    for words in (
        ("init", "--quiet"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"),
    ):
        subprocess.run(("git", *words), cwd=one.project, check=True)
    began = time.monotonic()
    one.build("cpu")
    size = int(docker.docker("image", "inspect", "--format={{.Size}}", one.image)) // 10**6
    one.figures.append(f"{request.param}: built in {time.monotonic() - began:.0f} s, {size} MB")
    return one


@pytest.mark.skipif("CUDA_IMAGES" not in os.environ, reason="takes gigabytes: CUDA_IMAGES=1 nox -s image-test")
@pytest.mark.parametrize(("framework", "base"), [("pytorch", "13.0.1"), ("tensorflow", "12.9.1")])
def test_an_image_with_cuda_says_whether_its_nccl_can_use_reducers(
    docker: Engine, tmp_path: Path, framework: str, base: str
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM ubuntu:24.04\nRUN rm -r /wheels && mkdir /wheels\n")  # without CUDA
    docker.docker("build", "--network=host", f"--tag=nvidia/cuda:{base}-base-ubuntu24.04", str(tmp_path))
    one, began = Built(docker, bake(tmp_path, framework=framework).project), time.monotonic()
    said = one.build("--build-arg=REDUCTION_SERVER=required")
    name = one.image.removesuffix("-cpu")
    size = int(docker.docker("image", "inspect", "--format={{.Size}}", name)) // 10**6
    print(f"{framework} with CUDA: built in {time.monotonic() - began:.0f} s, {size} MB")
    verdict = "NCCL can load the plug-in of the reducers, net v6, CollNet v6"
    assert f"\n{verdict}\n" in said
    assert docker.docker("image", "inspect", '--format={{index .Config.Labels "reducers"}}', name) == verdict
    docker.docker("rmi", name)


def test_a_change_of_code_builds_nothing_but_the_code_anew(built: Built, record_property: Record) -> None:
    with (built.project / "trainer/task.py").open("a", encoding="utf-8") as file:
        file.write("\n# changed\n")
    began = time.monotonic()
    said = built.build("cpu")
    figures = f"{', '.join(built.figures)}, built again in {time.monotonic() - began:.1f} s"
    print(figures)
    record_property(FIGURES, figures)  # for the page
    for step in ("apt-get install", "pip install"):
        numbers = set(re.findall(rf"^#(\d+) \[.*RUN .*{step}", said, re.MULTILINE))
        assert numbers
        assert [number for number in numbers if f"#{number} CACHED" not in said] == []


def test_the_image_says_what_it_was_built_from(built: Built) -> None:
    labels = json.loads(built.docker.docker("image", "inspect", "--format={{json .Config.Labels}}", built.image))
    assert labels["cuda"] == ""
    assert labels["reduction-server"] == "google-reduction-server 1.0"
    assert labels["reducers"].startswith("NCCL isn't installed, as in an image for CPUs")
    revision = labels["org.opencontainers.image.revision"]
    clean = revision.removesuffix("-dirty")  # another test changes the code
    assert re.fullmatch("[0-9a-f]{12}", clean)
    assert built.docker.docker("image", "inspect", f"{built.image.removesuffix(':1-cpu')}:{clean}-cpu")


def test_what_it_has_is_what_the_lock_names(built: Built) -> None:
    freeze = ("run", "--rm", "--network=none", "--entrypoint=pip", built.image, "freeze", "--all", "--exclude=pip")
    there = dict(line.split("==") for line in built.docker.docker(*freeze).lower().replace("_", "-").splitlines())
    lines = (built.project / "requirements/lock.txt").read_text(encoding="utf-8").splitlines()
    held = dict(line.split("==") for line in lines if "==" in line)
    # The build for processors has another name in TensorFlow, and another end of its version in PyTorch.
    other = {"tensorflow-cpu", "tensorflow"}
    assert {
        name: version for name, version in there.items() if version.partition("+")[0] != held.get(name)
    }.keys() <= other


def test_it_runs_as_its_user_and_names_its_flags(built: Built) -> None:
    said = built.docker.docker("run", "--rm", "--network=none", built.image, "--help")
    assert "--global-batch" in said
    user = built.docker.docker("run", "--rm", "--network=none", "--entrypoint=id", built.image, "-u")
    assert user == "0"  # as Vertex AI starts it


def pair() -> tuple[Replica, Replica]:
    """A chief and a worker with the host names of the service."""
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 1, "containerSpec": {"imageUri": "i"}}
    spec = {"workerPoolSpecs": [pool, pool], "baseOutputDirectory": {"outputUriPrefix": "gs://b/run"}}
    job = Job(Path("run.yaml"), "run", parse(json.dumps(spec), "run.yaml"))
    chief, worker = replicas(job, "123", lambda pool, index: f"{host(pool)}:2222", commands={"i": ["-"]})
    return chief, worker


def host(pool: int) -> str:
    return f"cmle-training-workerpool{pool}-ab-0"


def options(replica: Replica, gcs: Path, mode: str = "rw") -> tuple[str, ...]:
    """How the service starts its container, on a private network."""
    ips: Mapping[int, str] = {pool: f"172.29.77.{10 + pool}" for pool in (0, 1)}
    env = {**replica.env, "OMP_NUM_THREADS": "1"}
    return (
        *(f"--env={name}={value}" for name, value in env.items()),
        *(f"--network={NETWORK}", f"--ip={ips[replica.pool]}", f"--hostname={host(replica.pool)}"),
        *(f"--add-host={host(pool)}:{ip}" for pool, ip in ips.items()),
        f"--volume={gcs}:/gcs:{mode}",
    )


def test_two_containers_train_export_and_serve(built: Built, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    names = [f"train-{replica.pool}" for replica in pair()]
    for name, replica in zip(names, pair(), strict=True):
        built.start(name, "--steps", "40", *STEPS, options=options(replica, tmp_path))
    code, said = built.end(names[0])
    assert code == 0, said
    assert "step 40/40" in said
    assert built.end(names[1])[0] == 0
    serves = ("--network=none", "--entrypoint=python", f"--volume={tmp_path}:/gcs:ro", "--env=AIP_HTTP_PORT=8080")
    built.start("serves", "-m", "trainer.serving", "/gcs/b/run/model", options=serves)
    ask = """import json, time, urllib.request as http
for _ in range(600):
    try:
        http.urlopen("http://127.0.0.1:8080/health"); break
    except OSError: time.sleep(0.2)
body = json.dumps({"instances": [[[[0.5]] * 8] * 8]}).encode()
print(len(json.load(http.urlopen(http.Request("http://127.0.0.1:8080/predict", body)))["predictions"][0]))"""
    assert built.docker.docker("exec", "serves", "python", "-c", ask, seconds=ENDED) == "10"
    built.docker.docker("stop", "--time=60", "serves")
    assert built.end("serves")[0] == 0


@of_one
def test_a_model_that_cannot_be_fetched_is_said(built: Built) -> None:
    built.start("nowhere", "-m", "trainer.serving", "gs://b/model", options=("--network=none", "--entrypoint=python"))
    code, said = built.end("nowhere")
    assert code == 1
    assert "gs://b/model can't be read: " in said
    assert "Traceback" not in said


def test_sigterm_ends_a_container_whose_step_its_peer_has_saved(built: Built, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    names = [f"stop-{replica.pool}" for replica in pair()]
    for name, replica in zip(names, pair(), strict=True):
        built.start(name, *FOREVER, options=options(replica, tmp_path))
    assert eventually(lambda: "step 50/" in built.docker.run("docker", "logs", names[0]).stdout, ENDED)
    built.docker.docker("kill", "--signal=TERM", names[1])
    assert built.end(names[1])[0] == 143
    code, said = built.end(names[0])
    assert code == 75, said
    assert "saved step" in said
    assert "was asked to stop; after a restart, training resumes from this step" in said


@of_one
def test_a_bucket_that_cannot_be_written_is_said_before_the_training(built: Built, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    alone = pair()[0]
    built.start("denied", "--steps", "10", "--warmup", "2", options=options(alone, tmp_path, "ro"))
    code, said = built.end("denied")
    assert code == 1
    assert "/gcs/b/run/model can't be written (Read-only file system" in said
    assert "Traceback" not in said


def containers_of(built: Built) -> str:
    """Those of `run`, whatever has become of them."""
    return built.docker.docker("ps", "--all", "--quiet", "--filter=name=vertex-")


def run_words(built: Built, *flags: str) -> list[str]:
    """`run --containers` of a chief, whose image knows its command, and of a worker."""
    chief = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": built.image},
    }
    worker = {**chief, "containerSpec": {"imageUri": built.image, "command": ["python", "-m", "trainer.task"]}}
    name = built.docker.docker("image", "inspect", "--format={{.Id}}", built.image)[7:15]
    spec = {"workerPoolSpecs": [chief, worker], "baseOutputDirectory": {"outputUriPrefix": f"gs://b/{name}"}}
    (built.project / "pair.yaml").write_text(json.dumps(spec))
    return [sys.executable, "-m", "vertex_launch", "run", "pair.yaml", "--fresh", "--containers", "--", *STEPS, *flags]


@of_one
def test_run_starts_the_images_themselves(built: Built) -> None:
    done = built.docker.run(*run_words(built, "--steps", "40"), cwd=built.project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 40/40" in done.stdout
    output = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("output:"))
    assert any((built.project / output / "model").iterdir())
    assert containers_of(built) == ""


HOST = """
import json, os, pathlib, socket
spec = json.loads(os.environ["CLUSTER_SPEC"])
names = [address.partition(":")[0] for pool in spec["cluster"].values() for address in pool]
share = pathlib.Path("/mnt/nfs/share")
print("host", socket.gethostname(), *sorted(map(socket.gethostbyname, names)), share.is_dir(), flush=True)
"""


@of_one
def test_containers_are_hosts_that_resolve_each_other_and_have_their_mounts(built: Built) -> None:
    chief = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": built.image, "command": ["python", "-c", f"{HOST}import time; time.sleep(10)"]},
        "nfsMounts": [{"server": "10.0.0.2", "path": "/share", "mountPoint": "share"}],
    }
    worker = {**chief, "replicaCount": 2, "nfsMounts": []}
    spec = {"workerPoolSpecs": [chief, worker], "network": "projects/1/global/networks/n"}
    (built.project / "hosts.yaml").write_text(json.dumps(spec))
    words = (sys.executable, "-m", "vertex_launch", "run", "hosts.yaml", "--containers")
    done = built.docker.run(*words, cwd=built.project)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.partition("] host ")[2].split() for line in done.stdout.splitlines() if "] host " in line]
    assert len({name for name, *_ in told}) == 3
    assert all(name.startswith("cmle-training-workerpool") for name, *_ in told)
    assert len({tuple(addresses) for _, *addresses, _ in told}) == 1
    assert sorted(mounted for *_, mounted in told) == ["False", "False", "True"]


RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(total := torch.ones(1))
line = f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():g}\\n"
os.write(1, line.encode())  # in one piece: the processes of a container share its output
dist.barrier()
dist.destroy_process_group()
"""


@of_one
def test_torchrun_takes_three_containers_for_three_machines(built: Built) -> None:
    options = [
        "--nnodes=3",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)",
    ]
    container = {
        "imageUri": built.image,
        "command": ["torchrun", "--rdzv-id=1", *options, "--no-python"],
        "args": ["python", "-c", RANKS],
    }
    chief = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 1, "containerSpec": container}
    spec = {"workerPoolSpecs": [chief, {**chief, "replicaCount": 2}], "scheduling": {"timeout": "300s"}}
    (built.project / "ranks.yaml").write_text(json.dumps(spec))
    words = (sys.executable, "-m", "vertex_launch", "run", "ranks.yaml", "--containers")
    done = built.docker.run(*words, cwd=built.project)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.partition("] ")[2] for line in done.stdout.splitlines() if "] rank " in line]
    assert sorted(told) == [f"rank {rank} of 6: 6" for rank in range(6)]


@of_one
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_however_run_ends_no_container_is_left(built: Built, number: signal.Signals, tmp_path: Path) -> None:
    words, said = run_words(built, "--steps", "1000000"), tmp_path / "said"
    with said.open("w") as output:
        process = subprocess.Popen(words, cwd=built.project, env=built.docker.environ, stdout=output, stderr=output)
    assert eventually(lambda: "step 50/" in said.read_text(), ENDED)
    assert len(containers_of(built).split()) == 2
    process.send_signal(number)
    process.wait(ENDED)
    assert eventually(lambda: containers_of(built) == "", ENDED)


@of_one
def test_an_image_that_cannot_be_had_is_told(built: Built) -> None:
    words = (sys.executable, "-m", "vertex_launch", "run", "jobs/single.yaml", "--containers")
    done = built.docker.run(*words, cwd=built.project)
    assert done.returncode == 1
    assert "training/distributed-training:1 isn't local and can't be pulled (" in done.stderr
    assert "Traceback" not in done.stderr
