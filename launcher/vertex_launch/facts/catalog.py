"""Facts about the machines, prices, and limits of Vertex AI training, with their dates, from machines.yaml."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml

Certainty = Literal["documented", "inferred", "uncertain"]
CERTAINTIES: tuple[Certainty, ...] = ("documented", "inferred", "uncertain")  # best first

OWN = "vertex.toml"
PLATFORM = "linux/amd64"  # the platform of Vertex AI's machines, even if another platform builds the image
FACTS = Path(__file__).with_name("machines.yaml")


@dataclass(frozen=True)
class Price:
    """A price in USD per hour, with its certainty level and source."""

    usd: float
    certainty: Certainty
    source: str


@dataclass(frozen=True)
class Accelerator:
    """A type of GPU. `quota` is "" if the quota metric's name is unknown."""

    name: str
    memory_gb: float  # of one GPU
    precision: str  # the precision that the trainer uses on this GPU
    tflops: float  # 10^12 operations per second in that precision, dense, at its peak
    quota: str
    source: tuple[str, ...]
    certainty: Certainty
    price: Price | None  # of one GPU, as Vertex AI bills it


@dataclass(frozen=True)
class Machine:
    """A machine type. A field is 0 if Google doesn't publish its value."""

    name: str
    vcpus: int
    memory_gb: float
    gbps: float | None = None  # default egress, without the GPUs' own fabric
    fabric_gbps: float | None = None  # the GPUs' own network, which only the NCCL plug-in of GPUDirect uses
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # GPU type -> the supported counts
    tpu: str = ""
    topologies: tuple[str, ...] = ()
    quota: str = ""  # "" if the name of its family's metric isn't known
    source: tuple[str, ...] = ()
    certainty: Certainty = "documented"
    price: Price | None = None  # with its built-in GPUs, as Vertex AI bills it

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def needs_gpus(self) -> bool:
        """True if the machine always has GPUs. Only N1 machines can run both with and without GPUs."""
        return bool(self.gpus) and self.family != "n1"


Entry = TypeVar("Entry", Machine, Accelerator)


@dataclass(frozen=True)
class Limits:
    """The limits of a job, in seconds and GB. The service rejects a job that exceeds a limit."""

    pools: int
    env: int
    package_uris: int
    disk_types: tuple[str, ...]
    disk_gb: tuple[int, int]
    deprecated_strategies: Mapping[str, str]  # deprecated strategy -> its replacement
    flex_start_seconds: int
    flex_start_accelerators: tuple[str, ...]


@dataclass(frozen=True)
class N1Network:
    """The network limits of N1 machines, which depend on the type and number of GPUs."""

    gbps_per_vcpu: float
    cap_gbps: Mapping[str, Mapping[int, float]]
    documented: Mapping[str, tuple[int, ...]]  # GPU type -> the counts whose cap is documented

    def cap(self, machine: Machine | None, accelerator: str, count: int) -> float | None:
        """Return the network cap of an N1 machine with GPUs, in Gbit/s. Return None if no cap is known."""
        return self.cap_gbps.get(accelerator, {}).get(count) if machine and machine.family == "n1" else None


@dataclass(frozen=True)
class Catalog:
    """All facts about the service as of one date. The fields match the keys of machines.yaml and prebuilt.yaml."""

    compiled: date
    sources: Mapping[str, str]  # the key that entries refer to -> the page
    machines: Mapping[str, Machine]
    accelerators: Mapping[str, Accelerator]
    regions: Mapping[str, tuple[str, ...]]  # the accelerators for training; a region that isn't listed has none
    retired_accelerators: Mapping[str, str]  # accelerator that the API still accepts -> its status
    cuda_dropped: Mapping[int, tuple[str, ...]]  # CUDA major version -> the accelerators it no longer supports
    n1_gpu_network: N1Network
    reduction_server_images: Mapping[str, str]  # by continent
    nearest_continent: Mapping[str, str]  # by the first word of a region
    reducer_types: tuple[str, ...]  # machine types for reducers, the documented choice first
    prebuilt_registries: tuple[str, ...]
    prebuilt_images: Mapping[str, date]  # name without registry and tag -> the day on which it may be removed
    limits: Limits
    quotas: Mapping[str, Any]  # the parts of a quota metric's name

    def machine(self, name: str) -> Machine | None:
        """Return the machine type with the given name. Return None if the catalog doesn't contain the machine type."""
        return self.machines.get(name)

    def network_gbps(self, machine_type: str, accelerator: str = "", count: int = 0) -> float | None:
        """Return the egress rate of one machine in Gbit/s. Return None if the machine type or the rate is unknown.

        For N1 machines with GPUs, the rate is the smaller of 2 x vCPUs and the cap for the type and number of GPUs. For
        example, the rate of n1-highmem-96 with 8 V100 GPUs is 100 Gbit/s.
        Source: Compute Engine, "GPU network bandwidth".
        """
        machine = self.machine(machine_type)
        cap = self.n1_gpu_network.cap(machine, accelerator, count)
        if machine is None or cap is None:
            return machine.gbps if machine else None
        return min(self.n1_gpu_network.gbps_per_vcpu * machine.vcpus, cap)

    def network_certainty(self, machine_type: str, accelerator: str = "", count: int = 0) -> Certainty:
        """Return the certainty level of the rate that `network_gbps` returns."""
        machine, network = self.machine(machine_type), self.n1_gpu_network
        if machine is None:
            return "uncertain"
        documented = count in network.documented.get(accelerator, ()) or machine.source == (OWN,)
        return machine.certainty if documented or network.cap(machine, accelerator, count) is None else "uncertain"

    def price(self, machine_type: str, accelerator: str = "", count: int = 0) -> Price | None:
        """Return the hourly price of one machine with its GPUs. Return None if the machine or GPU price is unknown."""
        machine, gpu = self.machine(machine_type), self.accelerators.get(accelerator)
        parts = [(1, machine.price if machine else None)]
        if machine and count and not machine.needs_gpus:
            parts.append((count, gpu.price if gpu else None))
        return total(parts)

    def reduction_server_image(self, region: str) -> str:
        """Return the reduction server image nearest to a region. Return "" if the region's continent is unknown."""
        continent = self.nearest_continent.get(region.partition("-")[0], "")
        return self.reduction_server_images.get(continent, "")

    def quota_metric(self, quota: str, preemptible: bool) -> str:
        """Return the full name of the quota metric that ends in `quota`, a suffix such as n2_cpus."""
        infix = self.quotas["preemptible"] if preemptible else ""
        return f"{self.quotas['service']}/{self.quotas['prefix']}{infix}{quota}"


def total(parts: Sequence[tuple[int, Price | None]]) -> Price | None:
    """Return the total price of all parts, with their lowest certainty level.

    Return None if `parts` is empty or contains an unknown price.
    """
    priced = [(count, price) for count, price in parts if price]
    if len(priced) < len(parts) or not priced:
        return None
    worst = max((price.certainty for _, price in priced), key=CERTAINTIES.index)
    sources = sorted({price.source for _, price in priced})
    return Price(sum(count * price.usd for count, price in priced), worst, "; ".join(sources))


def reducers_needed(worker_count: int, worker_gbps: float, reducer_gbps: float) -> int:
    """Return the smallest number of reducers whose total bandwidth is at least that of the workers.

    Example: 5 workers with 100 Gbit/s each need 5 x 100 / 32 = 15.6, rounded up to 16 reducers with 32 Gbit/s each.
    Source: Vertex AI, "Distributed training", Reduction Server.
    """
    return math.ceil(worker_count * worker_gbps / reducer_gbps)


@cache
def standard() -> Catalog:
    """Return the catalog that this package contains."""
    facts = {**read(FACTS), **read(FACTS.with_name("prebuilt.yaml"))}
    listed = partial(_listed, facts["prices"])
    gpus = {name: {"name": name, "price": listed(row), **row} for name, row in facts["accelerators"].items()}
    machines = {}
    for name, row in facts["machines"].items():
        machine = {"name": name, **facts["families"][name.partition("-")[0]], **row}
        included = row.get("gpus", {}) if not name.startswith("n1-") else {}  # N1 machines can also run without GPUs
        with_it = [(count, gpus[kind]["price"]) for kind, (count,) in included.items()]
        machines[name] = machine | {"price": total([(1, listed(machine)), *with_it])}
    catalog: Catalog = _typed(Catalog, facts | {"accelerators": gpus, "machines": machines})
    return catalog


def _typed(kind: Any, value: Any) -> Any:
    """Convert a YAML value to a Python type. If the type is a dataclass, ignore keys that aren't its fields."""
    inner = get_args(kind) or (Any, Any)
    if isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        return kind(**{one.name: _typed(one.type, value[one.name]) for one in fields(kind) if one.name in value})
    if isinstance(value, dict):
        return {key: _typed(inner[1], one) for key, one in value.items()}
    if isinstance(value, list):
        return tuple(_typed(inner[0], one) for one in value)
    if kind is date:
        return date.fromisoformat(value)
    return float(value) if type(value) is int and float in (kind, *inner) else value


def with_own(catalog: Catalog, machines: Mapping[str, Mapping[str, Any]], prices: Mapping[str, float]) -> Catalog:
    """Return the catalog with the user's machine types and hourly prices.

    A user's machine type can override individual fields of one in the catalog.
    """
    own = {name: Price(usd, "documented", OWN) for name, usd in prices.items()}
    merged = dict(catalog.machines)
    for name, row in machines.items():
        before = merged.get(name) or Machine(name, 0, 0)
        gpus = {kind: tuple(counts) for kind, counts in row.get("gpus", before.gpus).items()}
        merged[name] = replace(before, **{**row, "gpus": gpus, "source": (OWN,)})
    return replace(catalog, machines=_priced(merged, own), accelerators=_priced(catalog.accelerators, own))


def _priced(entries: Mapping[str, Entry], prices: Mapping[str, Price]) -> dict[str, Entry]:
    return {name: replace(entry, price=prices.get(name, entry.price)) for name, entry in entries.items()}


def _listed(prices: Mapping[str, Any], row: Mapping[str, Any]) -> Price | None:
    """Return the hourly price that Vertex AI bills for a GPU, or for a machine excluding its GPUs.

    Return None if the resource doesn't have a list price.
    """
    usd = row.get("usd")
    if "usd_per_vcpu" in row:
        usd = row["vcpus"] * row["usd_per_vcpu"] + row["memory_gb"] * row["usd_per_gb"]
    if usd is None:
        return None
    source = f"list price in {prices['region']} x {prices['factor']}, {prices['read']}"
    return Price(prices["factor"] * usd, row["price_certainty"], source)


def read(path: Path) -> dict[str, Any]:
    """Read the facts from a YAML file."""
    # The C loader, if PyYAML has it, is four times faster.
    facts: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return facts
