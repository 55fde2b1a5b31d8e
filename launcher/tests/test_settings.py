import re
from pathlib import Path

import pytest

from vertex_launch.errors import FaultError
from vertex_launch.facts import labels
from vertex_launch.settings import Settings, load, passing, require

GOOD = """
project = "demo"
region = "us-central1"
bucket = "demo-data"
image = "us-central1-docker.pkg.dev/demo/training/trainer:1"
"""

# What is wrong, the file, and words that its one sentence must hold.
MALFORMED = [
    ("misspelt key", GOOD + 'regoin = "us-east1"', ['unknown key "regoin"', "did you mean region?"]),
    ("strange key", GOOD + 'color = "red"', ['unknown key "color"', "use one of project, region"]),
    (
        "a table",
        GOOD + "[vertex]",
        [
            'unknown key "vertex"',
            "the valid tables are [commands], [env], [labels], [prices], [machines], [rules]",
            "[vertex]",
        ],
    ),
    ("no table", GOOD + 'commands = "python"', ["commands: must be a table, not text", "write [commands]"]),
    (
        "a command in one text",
        GOOD + '[commands]\n"trainer:1" = "python x.py"',
        ['commands: "trainer:1": must be a list of strings', '"trainer:1" = ["python", "-m", "trainer.task"]'],
    ),
    ("an empty command", GOOD + '[commands]\n"trainer:1" = []', ['"trainer:1": must be a list of strings']),
    ("a number in a command", GOOD + '[commands]\n"trainer:1" = ["x", 1]', ['"trainer:1": must be a list of strings']),
    ("an image without quotes", GOOD + '[commands]\ngcr.io = ["x"]', ["the image gcr... isn't in quotes"]),
    ("a number in the environment", GOOD + "[env]\nSEED = 7", ['env: "SEED": must be text, or true', "SEED = true"]),
    ("no value of the shell", GOOD + "[env]\nTOKEN = false", ['env: "TOKEN": must be text, or true']),
    ("a number that equals true", GOOD + "[env]\nSEED = 1", ['env: "SEED": must be text, or true']),
    ("a machine with true as its size", GOOD + "[machines.n1-highcpu-16]\ngbps = true", ["gbps must be a number"]),
    ("a price without end", GOOD + '[prices]\n"n1-highcpu-16" = inf', ["must be a number in USD per hour"]),
    ("a variable of the service", GOOD + '[env]\nAIP_MODEL_DIR = "x"', ["env: only the service can set AIP_MODEL_DIR"]),
    ("no name of a variable", GOOD + '[env]\n"my-token" = true', ['env: "my-token" is not a valid variable name']),
    (
        "a price in words",
        GOOD + '[prices]\n"n1-highcpu-16" = "cheap"',
        ["prices:", "USD per hour", '"n1-highcpu-16" = 1.25'],
    ),
    (
        "a price of a GPU that comes with its machine",
        GOOD + '[prices]\n"NVIDIA_L4" = 1',
        ["is not billed separately", "such as g2-standard-"],
    ),
    ("a price below zero", GOOD + '[prices]\n"n1-highcpu-16" = -1', ["must be a number in USD per hour"]),
    (
        "a price of nothing",
        GOOD + '[prices]\n"n1-highcpu16" = 1',
        ["not a known machine type or GPU", "did you mean n1-highcpu-16?"],
    ),
    ("a label in capitals", GOOD + '[labels]\nTeam = "x"', ['labels: "Team" isn\'t a valid label key; begin with']),
    (
        "a label of a dash",
        GOOD + '[labels]\n-x = "x"',
        ['labels: "-x" isn\'t a valid label key', "a letter or a digit, and use"],
    ),
    (
        "a label of many words",
        GOOD + '[labels]\nteam = "a b"',
        ['"a b" isn\'t a valid label value', "lowercase letters, digits"],
    ),
    ("a long label", GOOD + f'[labels]\nteam = "{"a" * 64}"', ["isn't a valid label value", "63 characters and"]),
    ("a number as a label", GOOD + "[labels]\nteam = 7", ['labels: "team": must be text; write team = "vision"']),
    ("a label with a dot", GOOD + '[labels]\ncost.center = "7"', ['labels: "cost": must be text; write cost = ']),
    ("many labels", GOOD + "[labels]\n" + "".join(f'l{i} = ""\n' for i in range(65)), ["have 65 labels", "at most 64"]),
    ("a machine half told", GOOD + "[machines.c9-standard-8]\nvcpus = 8", ["is a new type", "memory_gb, and gbps"]),
    (
        "a machine of strange keys",
        GOOD + "[machines.n1-highcpu-16]\ncpu = 8",
        ["unknown key cpu", "did you mean vcpus?"],
    ),
    ("a machine of no size", GOOD + "[machines.n1-highcpu-16]\ngbps = 0", ["gbps must be a number above 0"]),
    ("GPUs without counts", GOOD + "[machines.n1-highcpu-16]\ngpus = {NVIDIA_L4 = 1}", ["lists of counts", "[1, 2]"]),
    ("a machine in a word", GOOD + '[machines]\nn1 = "big"', ['machines: "n1": must be a table']),
    (
        "missing key",
        GOOD.replace('bucket = "demo-data"', ""),
        ["the key bucket is missing", 'bucket = "..."'],
    ),
    ("number", GOOD.replace('"demo"', "42"), ["project: must be text, not a number", 'project = "..."']),
    ("boolean", GOOD.replace('"demo"', "true"), ["project: must be text, not a boolean"]),
    ("list", GOOD.replace('"demo-data"', '["a", "b"]'), ["bucket: must be text, not a list"]),
    ("date", GOOD.replace('"demo"', "2026-11-20"), ["project: must be text, not a date"]),
    ("empty", GOOD.replace('"demo"', '""'), ["project: is empty"]),
    (
        "bucket with gs://",
        GOOD.replace('"demo-data"', '"gs://demo-data"'),
        ["bucket: starts with gs://", "only the bucket name"],
    ),
    ("no quotes", GOOD.replace('"demo"', "demo"), ["is not valid TOML", "line 2"]),
    ("key twice", GOOD + 'region = "us-east1"', ["is not valid TOML", "overwrite", "line"]),
    ("YAML", "project: demo", ["is not valid TOML", "line 1"]),
]


def test_the_file_is_read_into_settings(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(GOOD + 'service_account = "trainer@demo.iam.gserviceaccount.com"\n')
    assert load(path) == Settings(
        project="demo",
        region="us-central1",
        bucket="demo-data",
        image="us-central1-docker.pkg.dev/demo/training/trainer:1",
        service_account="trainer@demo.iam.gserviceaccount.com",
    )


def test_images_are_mapped_to_what_they_run(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(GOOD + '[commands]\n"gcr.io/demo/trainer:1" = ["python", "-m", "trainer.task"]\n')
    assert load(path).commands == {"gcr.io/demo/trainer:1": ["python", "-m", "trainer.task"]}
    path.write_text(GOOD)
    assert load(path).commands == {}


def test_variables_have_a_value_or_the_shells(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(GOOD + '[env]\nNCCL_DEBUG = "INFO"\nTOKEN = true\n')
    assert passing(load(path), ["OTHER", "NCCL_DEBUG"]).env == {"NCCL_DEBUG": True, "TOKEN": True, "OTHER": True}


@pytest.mark.parametrize("name", ["RANK", "AIP_X", "CLOUD_ML_X", "TOKEN=secret", "1ST", ""])
def test_not_every_variable_can_be_passed(name: str) -> None:
    with pytest.raises(FaultError, match=r"^--pass-env: "):
        passing(Settings("p", "r", "b", "i"), ["GOOD", name])


def test_labels_are_googles(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    longest = "a" * 63
    path.write_text(
        GOOD + f'[labels]\nteam = "vision"\ncost-center_1 = "4711"\n"été" = ""\n{longest} = "{longest}"\n',
        encoding="utf-8",
    )
    assert load(path).labels == {"team": "vision", "cost-center_1": "4711", "été": "", longest: longest}


def test_typed_labels_have_a_key_and_a_value() -> None:
    assert labels.typed(["team=vision", "stage=", "team=speech"]) == {"team": "speech", "stage": ""}
    with pytest.raises(FaultError) as caught:
        labels.typed(["team", "stage"])
    assert str(caught.value).splitlines() == [f"--label: {key} has no =; write KEY=VALUE" for key in ("team", "stage")]
    with pytest.raises(FaultError, match=r'^--label: "Vision" isn\'t a valid label value; use only lowercase '):
        labels.typed(["team=Vision"])


def test_what_is_known_better_here_goes_into_the_catalog(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(GOOD + '[prices]\n"n1-highcpu-16" = 0.5\n[machines.n1-highcpu-16]\ngbps = 20\n')
    machine = load(path).catalog.machines["n1-highcpu-16"]
    assert machine.price is not None
    assert machine.price.usd == 0.5
    assert machine.gbps == 20


def test_the_examples_in_our_own_file_are_right(tmp_path: Path, project: Path) -> None:
    ours = (project / "vertex.toml").read_text()
    path = tmp_path / "vertex.toml"
    path.write_text(re.sub(r'^# (?=\[|"|\w+ = )', "", ours, flags=re.MULTILINE))
    settings = load(path)
    assert settings.prices.keys() == {"a2-highgpu-8g", "NVIDIA_TESLA_T4"}
    assert settings.catalog.network_gbps("c3-standard-8") == 23
    assert settings.labels.keys() == {"team", "cost_center"}
    assert settings.env == {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": True}


@pytest.mark.parametrize("line", ["", 'service_account = ""'])
def test_without_an_account_it_is_the_service_agent(tmp_path: Path, line: str) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(GOOD + line)
    assert load(path).service_account == ""


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_a_malformed_file_is_refused_in_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(text)
    with pytest.raises(FaultError) as caught:
        load(path)
    (sentence,) = str(caught.value).splitlines()
    assert sentence.startswith(f"{path}: ")
    assert [word for word in words if word not in sentence] == []


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text("projct = 1\nregion = 2\n")
    with pytest.raises(FaultError) as caught:
        load(path)
    assert len(caught.value.findings) == 5  # an unknown key, a wrong type, three missing keys


def test_faults_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text("color = 1\nbucket = 2\nproject = 3\n" + '[env]\n"a-b" = 4\n[commands]\n"a:1" = 5\n')
    with pytest.raises(FaultError) as caught:
        load(path)
    words = ("color", "bucket: ", "project: ", '"a-b": must', '"a-b" is not', '"a:1"', "region", "image")
    assert [word for word, line in zip(words, str(caught.value).splitlines(), strict=True) if word not in line] == []


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert load(tmp_path / "vertex.toml") == Settings()


def test_a_flag_goes_before_the_file_and_the_file_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(GOOD)
    environ = {"VERTEX_PROJECT": "mine", "VERTEX_SERVICE_ACCOUNT": "a@demo"}
    ours = load(path, environ, {"region": "us-east1", "image": ""})
    assert (ours.project, ours.region, ours.service_account) == ("demo", "us-east1", "a@demo")
    origins = {key: ours.origin(key) for key in ("project", "region", "service_account", "image")}
    assert [*origins.values()] == ["vertex.toml", "--region", "VERTEX_SERVICE_ACCOUNT", "vertex.toml"]


@pytest.mark.parametrize("name", ["VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"])
def test_the_project_may_come_from_a_variable_of_ours_or_of_googles(name: str, tmp_path: Path) -> None:
    ours = load(tmp_path / "vertex.toml", {"VERTEX_REGION": "", "CLOUDSDK_AI_REGION": "us-east1", name: "mine"})
    assert (ours.project, ours.region, ours.origin("project")) == ("mine", "us-east1", name)


def test_our_variable_goes_before_googles(tmp_path: Path) -> None:
    environ = {"CLOUDSDK_CORE_PROJECT": "theirs", "GOOGLE_CLOUD_PROJECT": "theirs", "VERTEX_PROJECT": "ours"}
    assert load(tmp_path / "vertex.toml", environ).project == "ours"


@pytest.mark.parametrize(
    ("environ", "flags", "sentence"),
    [
        ({}, {"bucket": "gs://b"}, "--bucket: starts with gs://; write only the bucket name"),
        ({"VERTEX_BUCKET": "gs://b"}, {}, "VERTEX_BUCKET: starts with gs://; write only the bucket name"),
    ],
)
def test_a_flag_or_a_variable_is_held_to_the_same_and_named(
    environ: dict[str, str], flags: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(FaultError, match=f"^{sentence}$"):
        load(tmp_path / "vertex.toml", environ, flags)


def test_a_variable_may_complete_a_file(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_text(GOOD.replace('bucket = "demo-data"', ""))
    assert load(path, {"VERTEX_BUCKET": "mine"}).bucket == "mine"


def test_what_a_command_needs_and_nobody_gave_is_asked_for_in_a_sentence_each() -> None:
    with pytest.raises(FaultError) as caught:
        require(Settings(bucket="b"), "project", "region", "bucket")
    assert str(caught.value).splitlines() == [
        'the project isn\'t set; add --project, set VERTEX_PROJECT, or write project = "..." in vertex.toml',
        'the region isn\'t set; add --region, set VERTEX_REGION, or write region = "..." in vertex.toml',
    ]


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vertex.toml"
    path.write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(FaultError, match="byte 0 isn't valid UTF-8; save the file as UTF-8"):
        load(path)
