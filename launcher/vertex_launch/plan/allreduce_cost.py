"""Computes the network traffic and the transfer time of one all-reduce of the gradients across machines.

S bytes of gradients on M machines with G GPUs each (N = M x G) can be all-reduced in three ways:

* Flat ring: one ring connects all GPUs, which is NCCL's default. Each machine sends 2 (N - 1) / N x S bytes,
  which is the traffic on each link of the ring. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009.
* Hierarchical ring: the GPUs of each machine first add their gradients, and then one ring connects the machines. Each
  machine sends 2 (M - 1) / M x S bytes.
* Reducers: each machine sends S bytes of gradients once and receives S bytes of sums once. Each of R reducers receives
  and sends M x S / R bytes. Source: Vertex AI, "Distributed training", Reduction Server; launcher/docs/planner.md.

The transfer time is the time during which the slowest network card is busy. The transfer time is a lower bound that
excludes latency, traffic between the GPUs of a machine, and the time for additions. Network cards send and receive at
the same time.
"""

import math
from dataclasses import dataclass

VPC_MTU = 1460  # bytes; the default of Google's networks. Source: Google Cloud, "Maximum transmission unit"
IP_AND_TCP, ETHERNET = 52, 14  # header bytes in each packet; TCP with timestamps
HOP = 20e-6  # seconds from one machine to the next in one zone; a rough figure to detect when latency dominates


@dataclass(frozen=True)
class Machines:
    """The machines that train a model together."""

    count: int
    gpus: float  # per machine, on average; 1 for a machine without GPUs, which runs one process
    gbps: float  # of one machine's network card, in Gbit/s; if the machines differ, the lowest speed
    fabric_gbps: float | None = None  # of the GPUs' own network, which rings use if the image has its plug-in

    @property
    def members(self) -> int:
        """The number of GPUs in a ring across all machines."""
        return round(self.count * self.gpus)


@dataclass(frozen=True)
class AllReduce:
    """The network traffic and the transfer time of one all-reduce method."""

    bytes: float  # sent by each machine per step
    seconds: float  # without any overlap


def payload(mtu: int) -> float:
    """Return the fraction of the bandwidth that is available for payload rather than headers.

    Example: the fraction is 0.956 for an MTU of 1500 bytes.
    """
    return (mtu - IP_AND_TCP) / (mtu + ETHERNET)


def ring(size: float, machines: Machines, members: int, mtu: int = VPC_MTU) -> AllReduce:
    """Return the cost of an all-reduce of `size` bytes in a ring with this many members.

    In a large ring, each machine sends almost 2 x `size` bytes.
    """
    sent = 2 * (members - 1) / members * size if machines.count > 1 else 0.0
    return AllReduce(sent, seconds(sent, machines.fabric_gbps or machines.gbps, mtu))


def by_reducers(size: float, machines: Machines, count: int, gbps: float, mtu: int = VPC_MTU) -> AllReduce:
    """Return the cost of an all-reduce of `size` bytes with `count` reducers.

    The slower transfer, either by a machine or by a reducer, determines the transfer time.
    """
    sent = size if machines.count > 1 else 0.0
    of_a_reducer = sent * machines.count / count
    return AllReduce(sent, max(seconds(sent, machines.gbps, mtu), seconds(of_a_reducer, gbps, mtu)))


def seconds(sent: float, gbps: float, mtu: int = VPC_MTU) -> float:
    """Return the time, in seconds, to send `sent` bytes at `gbps` Gbit/s."""
    return 8 * sent / (payload(mtu) * gbps * 1e9)


def break_even_reducers(machines: Machines, reducer_gbps: float) -> float:
    """Return the number of reducers at which an all-reduce is as fast as with a ring of all GPUs.

    For a single machine, return infinity. The formula solves M x S / (R x r) = 2 (N - 1) / N x S / w for R. With two
    GPUs, reducers are never faster than the ring.
    """
    if machines.count < 2:
        return math.inf
    return machines.count * machines.gbps * machines.members / (2 * (machines.members - 1) * reducer_gbps)
