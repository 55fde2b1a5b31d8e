"""The planner's formulas, in the cases where the answer is known without them."""

import math

import pytest

from vertex_launch.plan import allreduce_cost
from vertex_launch.plan.allreduce_cost import AllReduce, Machines

SIZE = 1e9  # bytes of gradients
EIGHT = Machines(count=8, gpus=8, gbps=100)


def ring(machines: Machines) -> AllReduce:
    """A ring through every GPU."""
    return allreduce_cost.ring(SIZE, machines, machines.members)


def ring_of_machines(machines: Machines) -> AllReduce:
    """A ring after each machine has added the gradients of its own GPUs."""
    return allreduce_cost.ring(SIZE, machines, machines.count)


def test_a_machine_alone_sends_nothing() -> None:
    alone = Machines(count=1, gpus=8, gbps=100)
    assert ring(alone) == ring_of_machines(alone) == AllReduce(0, 0)
    assert allreduce_cost.by_reducers(SIZE, alone, 1, 32) == AllReduce(0, 0)
    assert allreduce_cost.break_even_reducers(alone, 32) == math.inf


def test_a_ring_without_end_sends_everything_twice() -> None:
    endless = Machines(count=10**9, gpus=1, gbps=100)
    assert ring(endless).bytes == pytest.approx(2 * SIZE)
    assert ring_of_machines(endless).bytes == pytest.approx(2 * SIZE)


@pytest.mark.parametrize(
    ("machines", "gpus", "share"),
    [(2, 1, 1.0), (2, 4, 1.75), (2, 8, 1.875), (8, 8, 1.96875), (4, 1, 1.5)],
)
def test_every_gpu_is_a_member_of_the_flat_ring(machines: int, gpus: int, share: float) -> None:
    assert ring(Machines(machines, gpus, 100)).bytes == pytest.approx(share * SIZE)


def test_a_reduction_inside_machines_first_makes_machines_the_members() -> None:
    assert ring_of_machines(Machines(2, 8, 100)).bytes == SIZE
    assert ring_of_machines(EIGHT).bytes == pytest.approx(1.75 * SIZE)


def test_rings_alone_use_the_network_of_the_gpus_themselves() -> None:
    fabric = Machines(count=8, gpus=8, gbps=100, fabric_gbps=800)
    assert ring(fabric).seconds == pytest.approx(ring(EIGHT).seconds / 8)
    assert allreduce_cost.by_reducers(SIZE, fabric, 25, 32) == allreduce_cost.by_reducers(SIZE, EIGHT, 25, 32)


def test_to_reducers_everything_is_sent_once_however_many_there_are() -> None:
    assert {allreduce_cost.by_reducers(SIZE, EIGHT, count, 32).bytes for count in (1, 25)} == {SIZE}


def test_reducers_without_end_leave_only_the_machines_own_cards_to_wait_for() -> None:
    wire = allreduce_cost.seconds(SIZE, EIGHT.gbps)
    assert allreduce_cost.by_reducers(SIZE, EIGHT, 10**9, 32).seconds == wire
    assert allreduce_cost.by_reducers(SIZE, EIGHT, 25, 32).seconds == wire  # 25 x 32 = 8 x 100


def test_too_few_reducers_are_waited_for() -> None:
    one = allreduce_cost.by_reducers(SIZE, EIGHT, 1, 32).seconds
    assert one == pytest.approx(25 * allreduce_cost.seconds(SIZE, EIGHT.gbps))


def test_at_the_break_even_reducers_are_as_fast_as_the_ring() -> None:
    count = allreduce_cost.break_even_reducers(EIGHT, 32)
    of_one = SIZE * EIGHT.count / count
    assert allreduce_cost.seconds(of_one, 32) == pytest.approx(ring(EIGHT).seconds)
    assert 12 < count < 13


def test_a_ring_of_two_is_only_equalled_by_all_reducers_that_are_useful() -> None:
    assert allreduce_cost.break_even_reducers(Machines(2, 1, 32), 32) == 2


def test_headers_take_their_share_of_the_wire() -> None:
    assert allreduce_cost.payload(1500) == pytest.approx(0.956, abs=5e-4)  # as tbf counts, measured with iperf3
    assert allreduce_cost.seconds(125e6, 1, mtu=1500) == pytest.approx(1 / allreduce_cost.payload(1500))
