import re

import pytest
from google.cloud.aiplatform_v1.types import AcceleratorType

from vertex_launch.facts import catalog
from vertex_launch.facts.catalog import Accelerator, Machine

KNOWN = catalog.standard()


def test_a_machine_is_known_by_its_name() -> None:
    machine = KNOWN.machine("a2-highgpu-8g")
    assert machine is not None
    assert (machine.vcpus, machine.memory_gb, machine.gbps) == (96, 680, 100)
    assert machine.gpus == {"NVIDIA_TESLA_A100": (8,)}
    assert machine.needs_gpus


@pytest.mark.parametrize("name", ["a2-megagpu-8g", "n1-standard-2", "c3-standard-8", ""])
def test_a_machine_that_training_does_not_offer_is_none(name: str) -> None:
    assert KNOWN.machine(name) is None


def test_an_n1_may_have_gpus_and_may_go_without() -> None:
    machine = KNOWN.machine("n1-standard-16")
    assert machine is not None
    assert machine.gpus["NVIDIA_TESLA_V100"] == (2, 4, 8)
    assert not machine.needs_gpus


def test_machines_that_come_with_gpus_come_with_the_number_in_their_name() -> None:
    for machine in KNOWN.machines.values():
        if machine.needs_gpus:
            assert [len(counts) for counts in machine.gpus.values()] == [1], machine
        if match := re.fullmatch(r"a\w+-\w+-([0-9]+)g", machine.name):
            assert list(machine.gpus.values()) == [(int(match[1]),)], machine


def test_every_gpu_in_the_file_is_a_name_of_the_api() -> None:
    of_machines = {kind for machine in KNOWN.machines.values() for kind in machine.gpus}
    of_regions = {kind for kinds in KNOWN.regions.values() for kind in kinds}
    gpus = {kind for kind in of_regions if kind.startswith("NVIDIA")} | KNOWN.retired_accelerators.keys()
    gpus |= KNOWN.accelerators.keys()
    gpus |= set(KNOWN.limits.flex_start_accelerators)
    assert of_machines | gpus <= set(AcceleratorType.__members__)


def test_every_accelerator_of_a_machine_is_in_some_region_and_the_reverse() -> None:
    machines = KNOWN.machines.values()
    of_machines = {kind for machine in machines for kind in (*machine.gpus, machine.tpu) if kind}
    of_regions = {kind for kinds in KNOWN.regions.values() for kind in kinds}
    assert of_machines <= of_regions
    assert {kind for kind in of_regions - of_machines if kind.startswith("NVIDIA")} == set()


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "count", "gbps"),
    [
        ("n1-highmem-96", "NVIDIA_TESLA_V100", 8, 100),  # documented
        ("a2-megagpu-16g", "NVIDIA_TESLA_A100", 16, 100),  # documented
        ("a2-megagpu-16g", "", 0, 100),
        ("a2-highgpu-4g", "NVIDIA_TESLA_A100", 4, 50),
        ("n1-highcpu-16", "", 0, 32),
        ("n1-standard-16", "NVIDIA_TESLA_V100", 2, 32),  # 2 x 16 vCPUs, and the cap
        ("n1-standard-4", "NVIDIA_TESLA_T4", 4, 8),  # 2 x 4 vCPUs, below the cap
        ("n1-standard-32", "NVIDIA_TESLA_P4", 4, 32),
        ("a3-highgpu-8g", "NVIDIA_H100_80GB", 8, 200),  # the machine's own, beside 800 of its GPUs
        ("cloud-tpu", "TPU_V2", 8, None),
        ("no-such-machine", "", 0, None),
    ],
)
def test_the_network_of_a_machine_follows_its_type_and_on_n1_its_gpus(
    machine_type: str, accelerator: str, count: int, gbps: float | None
) -> None:
    assert KNOWN.network_gbps(machine_type, accelerator, count) == gbps


def test_only_machines_with_gpudirect_have_a_fabric_of_their_own() -> None:
    machines = KNOWN.machines.values()
    assert {machine.name: machine.fabric_gbps for machine in machines if machine.fabric_gbps} == {
        "a3-highgpu-8g": 800,
        "a3-megagpu-8g": 1600,
        "a3-ultragpu-8g": 3200,
        "a4-highgpu-8g": 3200,
        "a4x-highgpu-4g": 1600,
    }


@pytest.mark.parametrize(
    ("worker_count", "worker_gbps", "reducer_gbps", "reducers"),
    [(5, 100, 32, 16), (8, 100, 32, 25), (2, 50, 32, 4), (3, 32, 32, 3), (1, 32, 50, 1)],
)
def test_reducers_send_at_least_what_the_workers_send(
    worker_count: int, worker_gbps: float, reducer_gbps: float, reducers: int
) -> None:
    assert catalog.reducers_needed(worker_count, worker_gbps, reducer_gbps) == reducers


@pytest.mark.parametrize(
    ("region", "continent"),
    [
        ("us-central1", "us"),
        ("northamerica-northeast1", "us"),
        ("southamerica-east1", "us"),
        ("europe-west4", "europe"),
        ("me-west1", "europe"),
        ("asia-east1", "asia"),
        ("australia-southeast1", "asia"),
    ],
)
def test_the_reduction_server_comes_from_the_nearest_registry(region: str, continent: str) -> None:
    image = f"{continent}-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
    assert KNOWN.reduction_server_image(region) == image


def test_every_region_has_a_nearest_reduction_server() -> None:
    for region in KNOWN.regions:
        assert KNOWN.reduction_server_image(region).endswith("/reductionserver:latest")


def test_a_region_on_no_continent_has_none() -> None:
    assert KNOWN.reduction_server_image("mars-east1") == ""


def test_regions_list_what_they_offer_for_training() -> None:
    assert "NVIDIA_TESLA_A100" in KNOWN.regions["europe-west4"]
    assert "NVIDIA_TESLA_A100" not in KNOWN.regions["asia-east1"]


def test_every_entry_has_a_source_that_the_file_explains_and_a_certainty() -> None:
    entries: list[Machine | Accelerator] = [*KNOWN.machines.values(), *KNOWN.accelerators.values()]
    assert all(entry.source and set(entry.source) <= KNOWN.sources.keys() for entry in entries)
    assert {entry.certainty for entry in entries} <= set(catalog.CERTAINTIES)


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "count", "usd", "certainty"),
    [
        ("n1-standard-4", "", 0, 0.21849885, "inferred"),  # as read in the public table
        ("n1-highmem-96", "NVIDIA_TESLA_V100", 8, 29.346, "inferred"),
        ("a2-highgpu-8g", "NVIDIA_TESLA_A100", 8, 33.795, "inferred"),
        ("a2-megagpu-16g", "NVIDIA_TESLA_A100", 16, 64.100, "inferred"),
        ("a3-highgpu-8g", "NVIDIA_H100_80GB", 8, 101.007, "inferred"),
        ("g2-standard-4", "NVIDIA_L4", 1, 0.8129, "uncertain"),
        ("n1-standard-8", "NVIDIA_TESLA_P4", 1, 1.127, "uncertain"),
    ],
)
def test_a_machine_has_a_price_with_its_gpus(
    machine_type: str, accelerator: str, count: int, usd: float, certainty: str
) -> None:
    price = KNOWN.price(machine_type, accelerator, count)
    assert price is not None
    assert price.usd == pytest.approx(usd, rel=5e-4)
    assert price.certainty == certainty
    assert "us-central1 x 1.15" in price.source


@pytest.mark.parametrize("machine_type", ["n4-standard-8", "g4-standard-48", "a4x-highgpu-4g", "no-such-machine"])
def test_what_has_no_public_price_has_none(machine_type: str) -> None:
    assert KNOWN.price(machine_type) is None


def test_a_price_that_is_partly_ones_own_names_both_sources() -> None:
    price = catalog.with_own(KNOWN, {}, {"NVIDIA_TESLA_T4": 0.1}).price("n1-standard-8", "NVIDIA_TESLA_T4", 1)
    assert price is not None
    assert re.fullmatch(r"list price in us-central1 .*; vertex.toml", price.source)


def test_users_know_their_own_prices_and_machines_better() -> None:
    prices = {"a2-highgpu-8g": 20.0, "NVIDIA_TESLA_T4": 0.1, "n1-standard-8": 0.3}
    rows = {"c9-standard-8": {"vcpus": 8, "memory_gb": 32, "gbps": 40}, "n1-highcpu-16": {"gbps": 30}}
    own = catalog.with_own(KNOWN, rows, prices)
    assert own.price("a2-highgpu-8g", "NVIDIA_TESLA_A100", 8) == catalog.Price(20.0, "documented", "vertex.toml")
    assert own.price("n1-standard-8", "NVIDIA_TESLA_T4", 2) == catalog.Price(0.5, "documented", "vertex.toml")
    assert own.network_gbps("c9-standard-8") == 40
    assert own.machines["n1-highcpu-16"].gbps == 30
    assert own.machines["n1-highcpu-16"].vcpus == 16
    assert KNOWN.machine("c9-standard-8") is None


def test_a_quota_metric_is_named_in_full() -> None:
    prefix = "aiplatform.googleapis.com/custom_model_training_"
    assert KNOWN.quota_metric("nvidia_h100_gpus", preemptible=False) == f"{prefix}nvidia_h100_gpus"
    assert KNOWN.quota_metric("cpus", preemptible=True) == f"{prefix}preemptible_cpus"


def test_only_the_frameworks_own_prebuilt_images_are_known() -> None:
    assert KNOWN.prebuilt_images
    assert all(re.fullmatch(r"[a-z]+-[a-z]+[.0-9-]+([.][a-z]+310)?", name) for name in KNOWN.prebuilt_images)
