"""What Vertex AI offers for training, as dated facts: machines.yaml holds them, and vertex.toml may add to them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

Certainty = Literal["documented", "inferred", "uncertain"]
CERTAINTIES: tuple[Certainty, ...] = ("documented", "inferred", "uncertain")  # the best first

FRESH_DAYS = 180  # facts that are older deserve a look at their sources
OWN = "vertex.toml"


@dataclass(frozen=True)
class Price:
    """USD per hour, how sure it is, and where it comes from."""

    usd: float
    certainty: Certainty
    source: str


@dataclass(frozen=True)
class Accelerator:
    """One kind of GPU; quota is "" where the name of its metric is not known."""

    name: str
    memory_gb: float  # of one
    precision: str  # that the trainer uses on it
    tflops: float  # 10^12 operations per second in that precision, dense, at its peak
    quota: str
    source: tuple[str, ...]
    certainty: Certainty
    price: Price | None  # of one, as Vertex AI bills it


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
    quota: str = ""  # "" where the name of its family's metric is not known
    source: tuple[str, ...] = ()
    certainty: Certainty = "documented"
    price: Price | None = None  # with the GPUs that it comes with, as Vertex AI bills it

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def needs_gpus(self) -> bool:
        """True where the GPUs come with the machine: only an N1 can also go without."""
        return bool(self.gpus) and self.family != "n1"


Entry = TypeVar("Entry", Machine, Accelerator)


@dataclass(frozen=True)
class Limits:
    """What the service refuses beyond; seconds and GB."""

    pools: int
    env: int
    package_uris: int
    disk_types: tuple[str, ...]
    disk_gb: tuple[int, int]
    deprecated_strategies: Mapping[str, str]  # and what to write instead
    flex_start_seconds: int
    flex_start_accelerators: tuple[str, ...]


@dataclass(frozen=True)
class Catalog:
    """Everything that is known of the service, on one date."""

    compiled: date
    sources: Mapping[str, str]  # the key that entries name -> the page
    machines: Mapping[str, Machine]
    accelerators: Mapping[str, Accelerator]
    regions: Mapping[str, tuple[str, ...]]  # the accelerators to train on; a region that is not listed has none
    retired_accelerators: Mapping[str, str]  # that the API still names, and what became of each
    cuda_dropped: Mapping[int, tuple[str, ...]]  # CUDA's major version -> the accelerators it has no code for any more
    reduction_server_images: Mapping[str, str]  # by continent
    reducer_types: tuple[str, ...]  # machine types for reducers, the documented choice first
    prebuilt_registries: tuple[str, ...]
    prebuilt_images: Mapping[str, date]  # without registry and tag -> the day on which it may go
    limits: Limits

    def machine(self, name: str) -> Machine | None:
        """The machine type of that name, or None if it is not known to be offered for training."""
        return self.machines.get(name)

    def is_old(self, today: date) -> bool:
        return (today - self.compiled).days > FRESH_DAYS

    def network_gbps(self, machine_type: str, accelerator: str = "", count: int = 0) -> float | None:
        """What one machine can send at once, in Gbit/s; None if the type or its figure is unknown.

        On an N1 the GPUs set the bound: min(2 x vCPUs, a cap for their type and count).
        Source: Compute Engine, "GPU network bandwidth"; n1-highmem-96 with 8 V100 -> 100.
        """
        known = self.machine(machine_type)
        if known is None:
            return None
        network = _facts()["n1_gpu_network"]
        cap = network["cap_gbps"].get(accelerator, {}).get(count)
        if known.family != "n1" or cap is None:
            return known.gbps
        return float(min(network["gbps_per_vcpu"] * known.vcpus, cap))

    def network_certainty(self, machine_type: str, accelerator: str = "", count: int = 0) -> Certainty:
        """How sure `network_gbps` is."""
        known = self.machine(machine_type)
        if known is None:
            return "uncertain"
        network = _facts()["n1_gpu_network"]
        bound_by_gpus = known.family == "n1" and count in network["cap_gbps"].get(accelerator, {})
        if bound_by_gpus and count not in network["documented"].get(accelerator, ()) and known.source != (OWN,):
            return "uncertain"
        return known.certainty

    def price(self, machine_type: str, accelerator: str = "", count: int = 0) -> Price | None:
        """What one machine with its GPUs costs per hour; None if a part of it has no public price."""
        known = self.machine(machine_type)
        if known is None or known.price is None:
            return None
        if known.needs_gpus or not count:
            return known.price
        gpu = self.accelerators.get(accelerator)
        if gpu is None or gpu.price is None:
            return None
        certainty = least_certain(known.price.certainty, gpu.price.certainty)
        return Price(known.price.usd + count * gpu.price.usd, certainty, known.price.source)

    def reduction_server_image(self, region: str) -> str:
        """The reduction server's image nearest to a region.

        Raises:
            ValueError: the region is on no known continent.
        """
        continent = _facts()["reduction_server"]["nearest"].get(region.partition("-")[0])
        if continent is None:
            raise ValueError(f'region "{region}": is on no known continent; use one such as us-central1')
        return self.reduction_server_images[continent]

    def quota_metric(self, quota: str, preemptible: bool) -> str:
        """The whole name of a quota metric from its last word, such as n2_cpus."""
        quotas = _facts()["quotas"]
        infix = quotas["preemptible"] if preemptible else ""
        return f"{quotas['service']}/{quotas['prefix']}{infix}{quota}"


def least_certain(*certainties: Certainty) -> Certainty:
    """How sure a figure is that was made of several."""
    return max(certainties, key=CERTAINTIES.index)


def reducers_needed(worker_count: int, worker_gbps: float, reducer_gbps: float) -> int:
    """Smallest number of reducers that together send as much as the workers (both in Gbit/s).

    Source: Vertex AI, "Distributed training", Reduction Server; 5 x 100 / 32 -> 16, 8 x 100 / 32 -> 25.
    """
    return math.ceil(worker_count * worker_gbps / reducer_gbps)


@cache
def standard() -> Catalog:
    """The catalog as this project comes with it."""
    facts, prebuilt = _facts(), _read("prebuilt.yaml")
    accelerators = {name: _accelerator(name, row) for name, row in facts["accelerators"].items()}
    return Catalog(
        compiled=date.fromisoformat(facts["compiled"]),
        sources=facts["sources"],
        machines={name: _machine(name, row, accelerators) for name, row in facts["machines"].items()},
        accelerators=accelerators,
        regions={region: tuple(kinds) for region, kinds in facts["regions"].items()},
        retired_accelerators=facts["retired_accelerators"],
        cuda_dropped={version: tuple(kinds) for version, kinds in facts["cuda_dropped"].items()},
        reduction_server_images=facts["reduction_server"]["images"],
        reducer_types=tuple(facts["reduction_server"]["candidates"]),
        prebuilt_registries=tuple(prebuilt["registries"]),
        prebuilt_images={name: date.fromisoformat(day) for name, day in prebuilt["end_of_availability"].items()},
        limits=_limits(facts),
    )


def with_own(catalog: Catalog, machines: Mapping[str, Mapping[str, Any]], prices: Mapping[str, float]) -> Catalog:
    """The catalog with the user's machine types, whole or in part, and with what the user pays per hour by type."""
    own = {name: Price(usd, "documented", OWN) for name, usd in prices.items()}
    known = dict(catalog.machines)
    for name, row in machines.items():
        known[name] = replace(known.get(name) or Machine(name, 0, 0), **_typed(row), source=(OWN,))
    return replace(catalog, machines=_priced(known, own), accelerators=_priced(catalog.accelerators, own))


def _priced(entries: Mapping[str, Entry], prices: Mapping[str, Price]) -> dict[str, Entry]:
    return {name: replace(entry, price=prices.get(name, entry.price)) for name, entry in entries.items()}


def _machine(name: str, row: Mapping[str, Any], accelerators: Mapping[str, Accelerator]) -> Machine:
    family = _facts()["families"][name.partition("-")[0]]
    common = {"quota": family["quota"], "source": tuple(family["source"]), "certainty": family["certainty"]}
    machine = Machine(name, **{**common, **_typed(row)})
    return replace(machine, price=_price(machine, family, accelerators))


def _price(machine: Machine, family: Mapping[str, Any], accelerators: Mapping[str, Accelerator]) -> Price | None:
    """List rates times Vertex AI's factor; with the GPUs, unless the machine can also go without."""
    if "usd_per_vcpu" not in family:
        return None
    bare = machine.vcpus * family["usd_per_vcpu"] + machine.memory_gb * family["usd_per_gb"]
    price = _billed(bare, family["price_certainty"])
    if not machine.needs_gpus:
        return price
    kind, (count,) = next(iter(machine.gpus.items()))
    gpu = accelerators[kind].price
    if gpu is None:
        return None
    return Price(price.usd + count * gpu.usd, least_certain(price.certainty, gpu.certainty), price.source)


def _accelerator(name: str, row: Mapping[str, Any]) -> Accelerator:
    price = _billed(row["usd"], row["price_certainty"]) if "usd" in row else None
    known = {key: row[key] for key in ("memory_gb", "precision", "tflops", "quota", "certainty")}
    return Accelerator(name, **known, source=tuple(row["source"]), price=price)


def _billed(usd: float, certainty: Certainty) -> Price:
    """What Vertex AI bills for something with this list price."""
    facts = _facts()["prices"]
    return Price(
        usd * facts["factor"], certainty, f"list price in {facts['region']} x {facts['factor']}, {facts['read']}"
    )


def _typed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's lists as tuples."""
    typed = dict(row)
    if "gpus" in row:
        typed["gpus"] = {kind: tuple(counts) for kind, counts in row["gpus"].items()}
    if "topologies" in row:
        typed["topologies"] = tuple(row["topologies"])
    return typed


def _limits(facts: Mapping[str, Any]) -> Limits:
    limits, disk, scheduling = facts["limits"], facts["disk"], facts["scheduling"]
    return Limits(
        pools=limits["pools"],
        env=limits["env"],
        package_uris=limits["package_uris"],
        disk_types=tuple(disk["types"]),
        disk_gb=(disk["min_gb"], disk["max_gb"]),
        deprecated_strategies=scheduling["deprecated_strategies"],
        flex_start_seconds=scheduling["flex_start_max_timeout_seconds"],
        flex_start_accelerators=tuple(scheduling["flex_start_accelerators"]),
    )


@cache
def _facts() -> dict[str, Any]:
    return _read("machines.yaml")


def _read(name: str) -> dict[str, Any]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    # Written in C where PyYAML was built with it: four times faster.
    facts: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return facts
