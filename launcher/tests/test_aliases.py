"""Names that people write for machines, accelerators, disks, strategies and regions."""

import pytest
from google.cloud.aiplatform_v1.types.machine_resources import MachineSpec

from launcher.tests.casebook import CATALOG
from vertex_launch.facts import aliases

KIND = MachineSpec.pb(MachineSpec()).DESCRIPTOR.fields_by_name["accelerator_type"].enum_type
ACCELERATORS = [value.name for value in KIND.values if value.number]
STRATEGIES = ["ON_DEMAND", "LOW_COST", "STANDARD", "SPOT", "FLEX_START"]

MEANT = {
    "NVIDIA_TESLA_T4": ("T4", "nvidia-tesla-t4", "NvidiaTeslaT4", "NVIDA_TESLA_T4", "4xT4", "TESLA-T4"),
    "NVIDIA_TESLA_V100": ("V100", "NVIDIA_V100", "v100-sxm2-16gb", "nvidia-tesla-v100", "tesla_v100_16gb"),
    "NVIDIA_TESLA_P4": ("P4", "nvidia-tesla-p4"),
    "NVIDIA_L4": ("L4", "nvidia-l4", "NVIDIA_TESLA_L4", "l4:1", "NVIDIA L4 24GB", "GPU_L4", "nvidia-l4-vws"),
    "NVIDIA_TESLA_A100": (
        "A100",
        "NVIDIA_A100",
        "nvidia-tesla-a100",
        "NVIDIA_A100_40GB",
        "A100:8",
        "8x A100",
        "a100-40",
    ),
    "NVIDIA_A100_80GB": (
        "A100_80GB",
        "nvidia-tesla-a100-80gb",
        "nvidia-a100-80gb",
        "NVIDIA_TESLA_A100_80GB",
        "a10080gb",
        "a100-80",
        "A100 80GB PCIe",
    ),
    "NVIDIA_H100_80GB": ("H100", "NVIDIA_TESLA_H100", "nvidia-h100-80gb", "H100-SXM5", "H100x8", "h100-80gb-hbm3"),
    "NVIDIA_H100_MEGA_80GB": (
        "H100_MEGA",
        "nvidia-h100-mega-80gb",
        "h100mega",
        "NVIDIA_H100_80GB_MEGA",
        "nvidia-h100-mega",
    ),
    "NVIDIA_H200_141GB": ("H200", "nvidia-h200-141gb", "NVIDIA_H200", "H200-SXM"),
    "NVIDIA_B200": ("B200", "nvidia-b200", "NVIDIA_TESLA_B200", "B200_180GB"),
    "NVIDIA_GB200": ("GB200", "nvidia-gb200", "gb200-nvl72"),
    "NVIDIA_RTX_PRO_6000": (
        "RTX PRO 6000",
        "nvidia-rtx-pro-6000",
        "rtx6000pro",
        "RTXPRO6000",
        "rtx-pro-6000-blackwell",
    ),
    "TPU_V2": ("v2", "v2-8", "tpu-v2", "TPU_V2_POD"),
    "TPU_V3": ("TPU-v3", "v3-32", "TPU_V3_POD", "TPUv3-8"),
    "TPU_V4_POD": ("TPU_V4", "v4-8", "tpu-v4-podslice", "ct4p-hightpu-4t"),
    "TPU_V5_LITEPOD": ("TPU_V5E", "v5e", "v5litepod-4", "tpu-v5-lite-podslice", "V5LITE", "ct5lp-hightpu-4t"),
}
NOT_OFFERED = (
    "NVIDIA_TESLA_V4",
    "L40S",
    "L40",
    "A10",
    "A10G",
    "A30",
    "T40",
    "RTX_A6000",
    "RTX_6000",
    "RTX_4090",
    "NVIDIA_A40",
    "NVIDIA_TESLA_M60",
    "GH200",
    "H20",
    "L20",
    "B300",
    "GB300",
    "MI300X",
    "V5P",
)
RETIRED = ("K80", "nvidia-tesla-p100")
NO_MODEL = ("GPU", "TPU", "AMPERE", "NVIDIA_TESLA", "")


@pytest.mark.parametrize(("word", "name"), [(word, name) for name, words in MEANT.items() for word in words])
def test_a_name_of_an_accelerator_is_the_one_of_its_model(word: str, name: str) -> None:
    assert aliases.accelerator_cure(word, ACCELERATORS) == f"did you mean {name}?"


@pytest.mark.parametrize("name", [name for name in ACCELERATORS if name not in CATALOG.retired_accelerators])
def test_each_accelerator_is_found_by_its_own_name_in_gcloud(name: str) -> None:
    assert aliases.accelerator(name.lower().replace("_", "-"), ACCELERATORS) == name


@pytest.mark.parametrize("word", [*NOT_OFFERED, *RETIRED, *NO_MODEL])
def test_a_model_that_is_not_offered_stands_for_no_other(word: str) -> None:
    cure = aliases.accelerator_cure(word, ACCELERATORS)
    assert cure.startswith("use one of NVIDIA_TESLA_V100, ")
    assert "K80" not in cure


@pytest.mark.parametrize(
    ("word", "machine"), [("v6e", "ct6e-standard-4t"), ("trillium", "ct6e"), ("TPU_7X", "tpu7x-s")]
)
def test_a_tpu_without_an_accelerator_type_is_in_its_machine_type(word: str, machine: str) -> None:
    cure = aliases.accelerator_cure(word, ACCELERATORS)
    assert cure.startswith("remove it: ")
    assert machine in cure


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("n1-standard8", "did you mean n1-standard-8?"),
        ("n1standard-8", "did you mean n1-standard-8?"),
        ("N1_STANDARD_8", "did you mean n1-standard-8?"),
        ("n1-standart-8", "did you mean n1-standard-8?"),
        ("zones/us-central1-a/machineTypes/n1-standard-8", "did you mean n1-standard-8?"),
        ("n1-8", "use one of n1-standard-8, n1-highmem-8"),
        ("n1-standard-2", "use one of n1-standard-4, n1-highmem-2"),
        ("n1-standard-128", "did you mean n1-standard-96?"),
        ("n1", "use one such as n1-standard-4, n1-standard-8, n1-standard-16"),
        ("a2-highgpu-8", "did you mean a2-highgpu-8g?"),
        ("a2ultragpu1g", "did you mean a2-ultragpu-1g?"),
        ("a2-ultra", "use one of a2-ultragpu-1g, a2-ultragpu-2g, a2-ultragpu-4g, a2-ultragpu-8g"),
        ("a2-highgpu-16g", "use one of a2-highgpu-8g, a2-megagpu-16g"),
        ("a3-high", "use one of a3-highgpu-1g, a3-highgpu-2g, a3-highgpu-4g, a3-highgpu-8g"),
        ("a3-mega", "did you mean a3-megagpu-8g?"),
        ("a3-edgegpu-8g", "use one of a3-highgpu-8g, a3-megagpu-8g, a3-ultragpu-8g"),
        ("a4x", "did you mean a4x-highgpu-4g?"),
        ("g2-8", "did you mean g2-standard-8?"),
        ("g2-standard-64", "use one of g2-standard-48, g2-standard-96"),
        ("ct5lp-hightpu-4", "did you mean ct5lp-hightpu-4t?"),
        ("v5litepod-4", "use one of ct5lp-hightpu-1t, ct5lp-hightpu-4t, ct5lp-hightpu-8t"),
        ("nvidia-b200", "did you mean a4-highgpu-8g?"),
        ("c2d-highcpu-16", "use one of n1-highcpu-16, e2-highcpu-16, n2-highcpu-16, n4-highcpu-16"),
        ("p4d.24xlarge", "use one such as n1-standard-4, n1-standard-8, n1-standard-16"),
        ("Standard_NC6", "use one such as n1-standard-4, n1-standard-8, n1-standard-16"),
    ],
)
def test_a_machine_type_keeps_its_family(word: str, cure: str) -> None:
    assert aliases.machine_cure(word, CATALOG) == cure


@pytest.mark.parametrize("word", ["ct5p-hightpu-4t", "cloud-tpu-v4-podslice", "v5p-8"])
def test_a_tpu_that_is_not_offered_is_no_other(word: str) -> None:
    assert {*aliases.machine_types(word, CATALOG)} == {name for name, one in CATALOG.machines.items() if one.tpu}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SPOT", ("spot", "PREEMPTIBLE", "preemptable", "LOW_COST", "SPOT_VM")),
        ("STANDARD", ("standard", "STANDRAD", "ON_DEMAND", "on-demand", "ONDEMAND", "REGULAR")),
        ("FLEX_START", ("flex-start", "FLEXSTART", "FLEX", "DWS", "DWS_FLEX_START", "QUEUED")),
    ],
)
def test_a_strategy_by_another_name(name: str, words: tuple[str, ...]) -> None:
    assert {aliases.strategy_cure(word, STRATEGIES) for word in words} == {f"did you mean {name}?"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pd-ssd", ("ssd", "PD_SSD", "pd-sdd", "pdssd")),
        ("pd-standard", ("pd-standart", "standard", "hdd", "pd-hdd")),
        ("hyperdisk-balanced", ("hyperdisk", "hyperdisk_balanced", "hyperdisk-balancd")),
    ],
)
def test_a_disk_by_another_name(name: str, words: tuple[str, ...]) -> None:
    assert {aliases.disk_cure(word, CATALOG.limits.disk_types) for word in words} == {f"did you mean {name}?"}


@pytest.mark.parametrize(
    "word", ["pd-balanced", "pd-extreme", "hyperdisk-extreme", "hyperdisk-ml", "local-ssd", "disk"]
)
def test_a_disk_that_training_lacks_is_no_other(word: str) -> None:
    cure = aliases.disk_cure(word, CATALOG.limits.disk_types)
    assert cure == "use one of pd-ssd, pd-standard, hyperdisk-balanced"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "us-central1",
            ("us-central-1", "us-central", "us-central1-a", "us-central1a", "USCENTRAL1", "usc1", "us-centrl1"),
        ),
        ("us-west1", ("uswest1", "us-weast1", "us_west1")),
        ("us-west4", ("us-west-4b", "usw4")),
        ("us-east1", ("us-east-1",)),
        ("europe-west4", ("europe-west-4", "eu-west4", "euw4", "europe_west4", "europe-wset4")),
        ("asia-southeast1", ("asia-south-east1", "ap-southeast-1")),
        ("southamerica-east1", ("sa-east-1", "south-america-east1")),
        ("northamerica-northeast1", ("northamerica-northeast1-a",)),
    ],
)
def test_a_region_by_another_name(name: str, words: tuple[str, ...]) -> None:
    assert {aliases.region_cure(word, CATALOG.regions) for word in words} == {f"did you mean {name}?"}


def test_half_a_region_is_all_that_begin_so() -> None:
    cure = "use one of europe-west1, europe-west2, europe-west3, europe-west4"
    assert {aliases.region_cure(word, CATALOG.regions) for word in ("europe-west", "westeurope", "eu-west")} == {cure}
    assert aliases.region_cure("us", CATALOG.regions).startswith("use one of us-central1, us-east1, ")
    assert aliases.region_cure("global", CATALOG.regions).startswith("use one such as ")
