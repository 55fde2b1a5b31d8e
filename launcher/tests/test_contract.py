import json
from pathlib import Path
from typing import Any

import pytest

from vertex_launch.errors import FaultError
from vertex_launch.job.contract import Replica, limit, project_number, replicas, require_commands, with_arguments
from vertex_launch.job.spec import Job, parse

TRAINER = {
    "imageUri": "registry/trainer:1",
    "command": ["python", "-m", "trainer.task"],
    "args": ["--steps", "5"],
    "env": [{"name": "SEED", "value": "7"}, {"name": "RANK", "value": "mine"}, {"name": "NOTE", "value": ""}],
}
MACHINE = {"machineType": "n1-standard-4"}
CHIEF = {"machineSpec": MACHINE, "replicaCount": 1, "containerSpec": TRAINER}
WORKERS = CHIEF | {"replicaCount": 2}
REDUCERS = {
    "machineSpec": MACHINE,
    "replicaCount": 2,
    "containerSpec": {"imageUri": "registry/reductionserver:latest"},
}
EVALUATOR = CHIEF
EVERYBODY = [CHIEF, WORKERS, REDUCERS, EVALUATOR]
PACKAGE = {
    "executorImageUri": "image",
    "packageUris": ["gs://b/p.tar.gz"],
    "pythonModule": "trainer.task",
    "args": ["--steps", "5"],
}


def job(*pools: dict[str, Any], output: str = "gs://b/run") -> Job:
    document = {"workerPoolSpecs": pools} | ({"baseOutputDirectory": {"outputUriPrefix": output}} if output else {})
    return Job(Path("jobs/run.yaml"), "run", parse(json.dumps(document), "jobs/run.yaml"))


def package(**more: Any) -> dict[str, Any]:
    return {"machineSpec": MACHINE, "replicaCount": 1, "pythonPackageSpec": PACKAGE | more}


def address(pool: int, index: int) -> str:
    return f"machine-{pool}-{index}:2222"


def started(job: Job) -> dict[str, Replica]:
    return {replica.name: replica for replica in replicas(job, "123", address)}


def read(replica: Replica, variable: str) -> Any:
    return json.loads(replica.env[variable])


ADDRESSES = {
    "workerpool0": ["machine-0-0:2222"],
    "workerpool1": ["machine-1-0:2222", "machine-1-1:2222"],
    "workerpool2": ["machine-2-0:2222", "machine-2-1:2222"],
    "workerpool3": ["machine-3-0:2222"],
}
ROLES = {
    "chief": ADDRESSES["workerpool0"],
    "worker": ADDRESSES["workerpool1"],
    "ps": ADDRESSES["workerpool2"],
}


def test_there_is_one_replica_a_machine_chief_first() -> None:
    names = [f"workerpool{pool}-{i}" for pool, count in enumerate((1, 2, 2, 1)) for i in range(count)]
    everyone = started(job(*EVERYBODY))
    assert list(everyone) == names
    assert [name for name, replica in everyone.items() if replica.trains] == names[:3]
    assert [name for name, replica in everyone.items() if replica.reduces] == names[3:5]


def test_the_command_is_the_files_command_and_arguments() -> None:
    everyone = started(job(*EVERYBODY))
    assert everyone["workerpool1-1"].command == ("python", "-m", "trainer.task", "--steps", "5")
    assert everyone["workerpool2-0"].command == ()


# A replica, its task in TF_CONFIG, and its rank among the machines that train.
@pytest.mark.parametrize(
    ("name", "role", "rank"),
    [
        ("workerpool0-0", {"type": "chief", "index": 0}, "0"),
        ("workerpool1-1", {"type": "worker", "index": 1}, "2"),
        ("workerpool2-1", {"type": "ps", "index": 1}, None),
        ("workerpool3-0", {"type": "evaluator", "index": 0}, None),
    ],
)
def test_the_environment_is_exactly_that_of_the_service(name: str, role: dict[str, Any], rank: str | None) -> None:
    replica = started(job(*EVERYBODY))[name]
    pool, _, index = name.rpartition("-")
    cluster_spec, tf_config = read(replica, "CLUSTER_SPEC"), read(replica, "TF_CONFIG")
    own = {} if pool == "workerpool2" else {"SEED": "7", "NOTE": "", "RANK": "mine"}
    node_level = {"RANK": rank, "WORLD_SIZE": "3", "MASTER_ADDR": "machine-0-0", "MASTER_PORT": "2222"}
    assert cluster_spec.pop("job")["workerPoolSpecs"][0]["containerSpec"]["imageUri"] == "registry/trainer:1"
    assert json.loads(tf_config.pop("job"))["workerPoolSpecs"][1]["replicaCount"] in ("2", 2)
    assert cluster_spec == {
        "cluster": ADDRESSES,
        "environment": "cloud",
        "task": {"type": pool, "index": int(index)},
    }
    assert tf_config == {"cluster": ROLES, "environment": "cloud", "task": role | {"cloud": tf_config["task"]["cloud"]}}
    rest = {key: value for key, value in replica.env.items() if key not in ("CLUSTER_SPEC", "TF_CONFIG")}
    assert rest == own | (node_level if rank else {}) | {
        "CLOUD_ML_JOB_ID": "123",
        "CLOUD_ML_PROJECT_ID": project_number("local-project"),
        "CLOUD_ML_REGION": "us-central1",
        "AIP_MODEL_DIR": "gs://b/run/model/",
        "AIP_CHECKPOINT_DIR": "gs://b/run/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": "gs://b/run/logs/",
    }


def test_only_a_job_with_a_tensorboard_names_one() -> None:
    board = "projects/p/locations/us-central1/tensorboards/1"
    own, plain = job(*EVERYBODY), job(*EVERYBODY)
    own.spec.tensorboard = board
    assert {replica.env["AIP_TENSORBOARD_RESOURCE_NAME"] for replica in started(own).values()} == {board}
    assert not any("AIP_TENSORBOARD_RESOURCE_NAME" in replica.env for replica in started(plain).values())


def test_a_single_replica_has_a_cluster_of_one_and_no_tf_config() -> None:
    (replica,) = started(job(CHIEF, output="")).values()
    assert read(replica, "CLUSTER_SPEC")["cluster"] == {"workerpool0": ["machine-0-0:2222"]}
    assert sorted(replica.env) == [
        *("CLOUD_ML_JOB_ID", "CLOUD_ML_PROJECT_ID", "CLOUD_ML_REGION", "CLUSTER_SPEC", "NOTE", "RANK", "SEED")
    ]


def test_a_pool_that_is_left_out_is_in_no_list() -> None:
    replica = started(job(CHIEF, {}, REDUCERS))["workerpool0-0"]
    assert list(read(replica, "CLUSTER_SPEC")["cluster"]) == ["workerpool0", "workerpool2"]
    assert list(read(replica, "TF_CONFIG")["cluster"]) == ["chief", "ps"]
    assert replica.env["WORLD_SIZE"] == "1"


@pytest.mark.parametrize("output", ["gs://b/run", "gs://b/run/"])
def test_a_slash_at_the_end_of_the_output_folder_is_one_slash(output: str) -> None:
    (replica,) = started(job(CHIEF, output=output)).values()
    assert replica.env["AIP_MODEL_DIR"] == "gs://b/run/model/"


def test_a_variable_of_the_job_file_stays_unless_the_service_sets_it() -> None:
    env = [{"name": name, "value": "mine"} for name in ("CLUSTER_SPEC", "AIP_MODEL_DIR", "CLOUD_ML_JOB_ID", "OTHER")]
    (replica,) = started(job(CHIEF | {"containerSpec": TRAINER | {"env": env}})).values()
    assert [name for name, value in replica.env.items() if value == "mine"] == ["OTHER"]


@pytest.mark.parametrize(("count", "workers"), [(1, 0), (2, 1), (3, 2), (4, 2), (100, 2)])
def test_limit_leaves_the_chief_and_fewer_workers(count: int, workers: int) -> None:
    original = job(*EVERYBODY)
    everyone = started(limit(original, count))
    assert sum(replica.pool == 1 for replica in everyone.values()) == workers
    assert everyone["workerpool0-0"].env["WORLD_SIZE"] == str(workers + 1)
    assert ("workerpool1" in read(everyone["workerpool0-0"], "CLUSTER_SPEC")["cluster"]) == (workers > 0)
    assert {"workerpool2-1", "workerpool3-0"} <= set(everyone)
    assert len(started(original)) == 6


@pytest.mark.parametrize("pools", [[CHIEF], [CHIEF, {}, REDUCERS]])
def test_limit_leaves_a_job_without_workers_alone(pools: list[dict[str, Any]]) -> None:
    assert list(started(limit(job(*pools), 2))) == list(started(job(*pools)))


def test_arguments_are_added_to_what_trains_and_to_an_evaluator_with_the_same_program() -> None:
    original = job(*EVERYBODY)
    everyone = started(with_arguments(original, ["--size", "base"]))
    longer = [name for name, replica in everyone.items() if replica.command[-2:] == ("--size", "base")]
    assert longer == ["workerpool0-0", "workerpool1-0", "workerpool1-1", "workerpool3-0"]
    assert started(original)["workerpool0-0"].command[-2:] == ("--steps", "5")


def test_arguments_are_added_to_the_trainers_own_evaluator() -> None:
    scorer = EVALUATOR | {"containerSpec": TRAINER | {"command": ["python", "-m", "trainer.evaluator"]}}
    everyone = started(with_arguments(job(CHIEF, WORKERS, REDUCERS, scorer), ["--size", "base"]))
    assert everyone["workerpool3-0"].command[2:] == ("trainer.evaluator", "--steps", "5", "--size", "base")


def test_arguments_are_not_added_to_another_program() -> None:
    other = EVALUATOR | {"containerSpec": TRAINER | {"command": ["python", "-m", "evaluate"]}}
    everyone = started(with_arguments(job(CHIEF, WORKERS, REDUCERS, other), ["--size", "base"]))
    assert everyone["workerpool3-0"].command == ("python", "-m", "evaluate", "--steps", "5")
    assert everyone["workerpool2-0"].command == ()


def test_arguments_reach_parameter_servers_too() -> None:
    everyone = started(with_arguments(job(CHIEF, CHIEF, WORKERS), ["--size", "base"]))
    assert {replica.command[-2:] for replica in everyone.values()} == {("--size", "base")}
    assert len(everyone) == 4


def test_no_arguments_change_nothing() -> None:
    original = job(CHIEF | {"containerSpec": {"imageUri": "image"}}, WORKERS)
    assert with_arguments(original, ()).spec == original.spec


def test_arguments_reach_a_package_too() -> None:
    original = job(package(), CHIEF)
    everyone = started(with_arguments(original, ["--size", "base"]))
    assert everyone["workerpool0-0"].command[-4:] == ("--steps", "5", "--size", "base")
    assert everyone["workerpool1-0"].command[-2:] == ("--size", "base")
    assert started(original)["workerpool0-0"].command[-2:] == ("--steps", "5")


def test_a_package_runs_as_its_module_with_its_environment() -> None:
    (replica,) = started(job(package(env=[{"name": "SEED", "value": "7"}]))).values()
    assert replica.command == ("python", "-P", "-m", "trainer.task", "--steps", "5")
    assert replica.env["SEED"] == "7"


@pytest.mark.parametrize(
    ("container", "command"),
    [
        ({"imageUri": "mapped"}, ("python", "train.py")),
        ({"imageUri": "mapped", "args": ["--steps", "5"]}, ("python", "train.py", "--steps", "5")),
        ({"imageUri": "mapped", "command": ["sh"], "args": ["-c", "x"]}, ("sh", "-c", "x")),
        ({"imageUri": "mapped:2", "args": ["--steps", "5"]}, ()),
    ],
    ids=["entry point", "its arguments", "a command of its own", "another image"],
)
def test_an_image_without_a_command_runs_what_vertex_toml_says(
    container: dict[str, Any], command: tuple[str, ...]
) -> None:
    one = CHIEF | {"containerSpec": container}
    (replica,) = replicas(job(one), "123", address, commands={"mapped": ["python", "train.py"]})
    assert replica.command == command


def test_a_job_whose_commands_are_known_can_run_without_its_images() -> None:
    require_commands(job(*EVERYBODY), {})
    require_commands(job(CHIEF, {}, REDUCERS), {})
    require_commands(job(package(), CHIEF | {"containerSpec": {"imageUri": "mapped"}}), {"mapped": ["python", "x.py"]})


def test_every_pool_whose_command_only_its_image_knows_is_named_at_once() -> None:
    only_arguments = CHIEF | {"containerSpec": {"imageUri": "image:1", "args": ["--steps", "5"]}}
    with pytest.raises(FaultError) as caught:
        require_commands(job(package(), only_arguments, REDUCERS, CHIEF | {"containerSpec": {"imageUri": "other"}}), {})
    assert [line.split(": ")[:2] for line in str(caught.value).splitlines()] == [
        ["jobs/run.yaml", "workerPoolSpecs[1].containerSpec"],
        ["jobs/run.yaml", "workerPoolSpecs[3].containerSpec"],
    ]
    line = '"image:1" = ["PROGRAM", "ARGUMENT"]'
    assert str(caught.value.findings[0]).endswith(f"set the image's command under [commands] in vertex.toml: {line}")


def variables(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def test_a_value_refers_to_the_variables_before_it_and_to_the_services() -> None:
    env = variables(LOGS="$(AIP_MODEL_DIR)logs", BEFORE="$(AFTER)", AFTER="$(LOGS) $$(LOGS)", RANK="$(AFTER)")
    chief, *_ = replicas(job(CHIEF | {"containerSpec": TRAINER | {"env": env}}, WORKERS), "123", address)
    written = {name: chief.env[name] for name in ("LOGS", "BEFORE", "AFTER", "RANK")}
    assert written == {
        "LOGS": "gs://b/run/model/logs",
        "BEFORE": "$(AFTER)",
        "AFTER": "gs://b/run/model/logs $(LOGS)",
        "RANK": "0",
    }


ARGUMENTS = ["--model_dir=$(AIP_MODEL_DIR)", "--seed", "$(SEED)", "$(AIP_X)", "$(PATH)", "$$(SEED)"]
EXPANDED = ("--model_dir=gs://b/run/model/", "--seed", "7", "of workerpool0-0", "$(PATH)", "$(SEED)")


@pytest.mark.parametrize(
    ("task", "start"),
    [
        ({"containerSpec": TRAINER | {"command": ["run", "$(SEED)"]}}, ("run", "7")),
        ({"containerSpec": TRAINER | {"command": []}}, ("entry", "$(SEED)")),  # an image's own is as it is
        ({"pythonPackageSpec": PACKAGE | {"env": TRAINER["env"]}}, ("python", "-P", "-m", "trainer.task")),
    ],
    ids=["command", "image", "package"],
)
def test_command_and_arguments_refer_to_everything_that_job_and_service_set(
    task: dict[str, Any], start: tuple[str, ...]
) -> None:
    ((kind, spec),) = task.items()
    wanted = job({"machineSpec": MACHINE, "replicaCount": 1, kind: spec | {"args": ARGUMENTS}})
    entry = {"registry/trainer:1": ["entry", "$(SEED)"]}
    (chief,) = replicas(wanted, "123", address, commands=entry, additions=lambda replica: {"AIP_X": f"of {replica}"})
    assert chief.command == (*start, *EXPANDED)
    assert chief.env["AIP_X"] == "of workerpool0-0"
