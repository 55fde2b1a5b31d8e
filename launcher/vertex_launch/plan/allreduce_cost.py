"""Bytes and seconds of one all-reduce of the gradients on the network between machines.

Three ways, for S bytes of gradients and M machines with G GPUs each, N = M x G:

* flat ring: one ring through every GPU, NCCL's default. A machine sends 2 (N - 1) / N x S, which is what crosses
  each link of the ring. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009.
* hierarchical ring: first a reduction inside each machine, then a ring of machines: 2 (M - 1) / M x S.
* reducers: a machine sends its gradients once, S, and receives the result once. Each of R reducers receives, and
  sends, M x S / R. Source: Vertex AI, "Distributed training", Reduction Server; formulas in launcher/docs/planner.md.

Seconds are the time that the slowest network card is busy: a lower bound, without latency, without the traffic among
the GPUs of a machine, and without the time to add. Network cards send and receive at once.
"""

import math
from dataclasses import dataclass

VPC_MTU = 1460  # bytes; the default of Google's networks. Source: Google Cloud, "Maximum transmission unit"
IP_AND_TCP, ETHERNET = 52, 14  # bytes of headers in each packet; TCP with timestamps
HOP = 20e-6  # seconds from one machine to the next, in one zone; a rough figure, only to see where latency rules


@dataclass(frozen=True)
class Machines:
    """Machines that train together."""

    count: int
    gpus: float  # of one machine, on average; 1 for a machine without GPUs, which runs one process
    gbps: float  # of one machine's network card, in Gbit/s; where they differ, the least
    fabric_gbps: float | None = None  # of the GPUs' own network, which rings use, if the image has its plug-in

    @property
    def members(self) -> int:
        """GPUs in a ring through all of them."""
        return round(self.count * self.gpus)


@dataclass(frozen=True)
class AllReduce:
    """One way to all-reduce the gradients."""

    bytes: float  # sent by each machine per step
    seconds: float  # without any overlap


def payload(mtu: int) -> float:
    """The share of a network's rate that carries data, the rest being headers; 0.956 for an MTU of 1500 bytes."""
    return (mtu - IP_AND_TCP) / (mtu + ETHERNET)


def ring(size: float, machines: Machines, members: int, mtu: int = VPC_MTU) -> AllReduce:
    """Return the cost by a ring of so many members: a machine sends almost 2 x size among many, and nothing alone."""
    sent = 2 * (members - 1) / members * size if machines.count > 1 else 0.0
    return AllReduce(sent, seconds(sent, machines.fabric_gbps or machines.gbps, mtu))


def by_reducers(size: float, machines: Machines, count: int, gbps: float, mtu: int = VPC_MTU) -> AllReduce:
    """Return the cost by so many reducers: the slower one of a machine's and a reducer's network card sets the time."""
    sent = size if machines.count > 1 else 0.0
    of_a_reducer = sent * machines.count / count
    return AllReduce(sent, max(seconds(sent, machines.gbps, mtu), seconds(of_a_reducer, gbps, mtu)))


def seconds(sent: float, gbps: float, mtu: int = VPC_MTU) -> float:
    """Seconds to send so many bytes at so many Gbit/s."""
    return 8 * sent / (payload(mtu) * gbps * 1e9)


def break_even_reducers(machines: Machines, reducer_gbps: float) -> float:
    """The count of reducers that is as fast as a ring of all GPUs; infinite for a machine alone.

    From M x S / (R x r) = 2 (N - 1) / N x S / w. No count beats a ring of two.
    """
    if machines.count < 2:
        return math.inf
    return machines.count * machines.gbps * machines.members / (2 * (machines.members - 1) * reducer_gbps)
