"""What one all-reduce of the gradients puts on the network between machines: bytes and seconds.

Three ways, for S bytes of gradients and M machines with G GPUs each, N = M x G:

* flat ring: one ring through every GPU, NCCL's default. A machine sends 2 (N - 1) / N x S, which is what crosses
  each link of the ring. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009.
* hierarchical ring: first a reduction inside each machine, then a ring of machines: 2 (M - 1) / M x S.
* reducers: a machine sends its gradients once, S, and receives the result once. Each of R reducers receives, and
  sends, M x S / R. Source: Vertex AI, "Distributed training", Reduction Server; formulas in docs/launcher/planner.md.

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

    @property
    def members(self) -> int:
        """GPUs in a ring through all of them."""
        return round(self.count * self.gpus)


@dataclass(frozen=True)
class Reducers:
    """Machines that only reduce."""

    count: int
    gbps: float  # of one machine's network card, in Gbit/s


def payload(mtu: int) -> float:
    """The share of a network's rate that carries data, the rest being headers; 0.956 for an MTU of 1500 bytes."""
    return (mtu - IP_AND_TCP) / (mtu + ETHERNET)


def ring_bytes(size: float, members: int) -> float:
    """Bytes that each member of a ring sends to all-reduce `size` bytes: 0 alone, almost 2 x size among many."""
    return 2 * (members - 1) / members * size


def flat_ring_bytes(size: float, machines: Machines) -> float:
    """Bytes that each machine sends when every GPU is a member of the ring; 0 for a machine alone."""
    return ring_bytes(size, machines.members) if machines.count > 1 else 0.0


def hierarchical_ring_bytes(size: float, machines: Machines) -> float:
    """Bytes that each machine sends when each machine reduces the gradients of its own GPUs first."""
    return ring_bytes(size, machines.count)


def reducers_bytes(size: float, machines: Machines) -> float:
    """Bytes that each machine sends to all reducers together; 0 for a machine alone."""
    return size if machines.count > 1 else 0.0


def seconds(sent: float, gbps: float, mtu: int = VPC_MTU) -> float:
    """Seconds to send so many bytes at so many Gbit/s."""
    return 8 * sent / (payload(mtu) * gbps * 1e9)


def hops_seconds(members: int) -> float:
    """Seconds that the hops of a ring take, however little is sent; where this is longer, the wire does not matter."""
    return 2 * (members - 1) * HOP


def reducers_seconds(size: float, machines: Machines, reducers: Reducers, mtu: int = VPC_MTU) -> float:
    """Seconds until all machines have the result: the slower of a machine's card and a reducer's."""
    sent = reducers_bytes(size, machines)
    of_a_reducer = sent * machines.count / reducers.count
    return max(seconds(sent, machines.gbps, mtu), seconds(of_a_reducer, reducers.gbps, mtu))


def break_even_reducers(machines: Machines, reducer_gbps: float, members: int) -> float:
    """The count of reducers that is as fast as a ring of `members`; infinite for a machine alone.

    From M x S / (R x r) = 2 (n - 1) / n x S / w. No count beats a ring of two.
    """
    if machines.count < 2:
        return math.inf
    return machines.count * machines.gbps * members / (2 * (members - 1) * reducer_gbps)
