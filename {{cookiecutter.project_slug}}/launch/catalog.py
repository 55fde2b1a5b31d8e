"""What Vertex AI offers for training; machines.yaml holds it, with its sources and what is UNCERTAIN."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Machine:
    """One machine type; 0 stands for a figure that is not published."""

    name: str
    vcpus: int
    memory_gb: float
    gbps: float | None = None  # default egress, without the GPUs' own fabric
    fabric_gbps: float | None = None  # the network of the GPUs' own that GPUDirect uses
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # type to the counts allowed
    tpu: str = ""
    topologies: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def needs_gpus(self) -> bool:
        """True where the GPUs come with the machine: only an N1 can also go without."""
        return bool(self.gpus) and self.family != "n1"


@dataclass(frozen=True)
class Limits:
    """What the service refuses beyond; seconds and GB."""

    pools: int
    env: int
    disk_types: tuple[str, ...]
    disk_gb: tuple[int, int]
    deprecated_strategies: Mapping[str, str]  # and what to write instead
    flex_start_seconds: int
    flex_start_accelerators: tuple[str, ...]


def machine(name: str) -> Machine | None:
    """The machine type of that name, or None if it is not known to be offered for training."""
    return machines().get(name)


@cache
def machines() -> Mapping[str, Machine]:
    """Every machine type offered for training, by name."""
    return {name: _machine(name, row) for name, row in _facts()["machines"].items()}


def network_gbps(machine_type: str, accelerator: str = "", count: int = 0) -> float | None:
    """What one machine can send at once, in Gbit/s; None if the type or its figure is unknown.

    On an N1 the GPUs set the bound: min(2 x vCPUs, a cap for their type and count).
    Source: Compute Engine, "GPU network bandwidth"; n1-highmem-96 with 8 V100 -> 100.
    """
    known = machine(machine_type)
    if known is None:
        return None
    network = _facts()["n1_gpu_network"]
    cap = network["cap_gbps"].get(accelerator, {}).get(count)
    if known.family != "n1" or cap is None:
        return known.gbps
    return float(min(network["gbps_per_vcpu"] * known.vcpus, cap))


def reducers_needed(worker_count: int, worker_gbps: float, reducer_gbps: float) -> int:
    """Smallest number of reducers that together send as much as the workers (both in Gbit/s).

    Source: Vertex AI, "Distributed training", Reduction Server; 5 x 100 / 32 -> 16, 8 x 100 / 32 -> 25.
    """
    return math.ceil(worker_count * worker_gbps / reducer_gbps)


def reduction_server_image(region: str) -> str:
    """The reduction server's image nearest to a region.

    Raises:
        ValueError: the region is on no known continent.
    """
    continent = _facts()["reduction_server"]["nearest"].get(region.partition("-")[0])
    if continent is None:
        raise ValueError(f'region "{region}": is on no known continent; use one such as us-central1')
    return reduction_server_images()[continent]


def reduction_server_images() -> Mapping[str, str]:
    """All of them, by continent."""
    images: Mapping[str, str] = _facts()["reduction_server"]["images"]
    return images


@cache
def regions() -> Mapping[str, tuple[str, ...]]:
    """The accelerators to train on, by region; a region that is not listed has none."""
    return {region: tuple(accelerators) for region, accelerators in _facts()["regions"].items()}


def retired_accelerators() -> Mapping[str, str]:
    """Accelerators that the API still names, and what became of each."""
    retired: Mapping[str, str] = _facts()["retired_accelerators"]
    return retired


def compiled() -> str:
    """The date of all these facts."""
    return str(_facts()["compiled"])


@cache
def limits() -> Limits:
    facts, disk, scheduling = _facts()["limits"], _facts()["disk"], _facts()["scheduling"]
    return Limits(
        **facts,
        disk_types=tuple(disk["types"]),
        disk_gb=(disk["min_gb"], disk["max_gb"]),
        deprecated_strategies=scheduling["deprecated_strategies"],
        flex_start_seconds=scheduling["flex_start_max_timeout_seconds"],
        flex_start_accelerators=tuple(scheduling["flex_start_accelerators"]),
    )


@cache
def _facts() -> dict[str, Any]:
    text = Path(__file__).with_name("machines.yaml").read_text(encoding="utf-8")
    facts: dict[str, Any] = yaml.safe_load(text)
    return facts


def _machine(name: str, row: Mapping[str, Any]) -> Machine:
    gpus = {kind: tuple(counts) for kind, counts in row.get("gpus", {}).items()}
    return Machine(name, **{**row, "gpus": gpus, "topologies": tuple(row.get("topologies", ()))})
