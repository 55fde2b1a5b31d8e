"""DistributedDataParallel sends the gradients in buckets, whose size is a flag."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from trainer.cluster.world import World
from trainer.parallel import choice, ddp
from trainer.vertex.errors import TrainerError

MIB = 2**20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The only process of a process group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield World(rank=0, size=1, device=torch.device("cpu"))
    dist.destroy_process_group()


def kept(sizes: list[int], bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Note the bytes of a bucket, in place of its all-reduce."""
    sizes.append(bucket.buffer().nbytes)
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


@pytest.mark.parametrize(("cap", "sizes"), [(1, [MIB] * 4), (2, [2 * MIB] * 2), (64, [4 * MIB])])
def test_gradients_travel_in_buckets_of_at_most_the_cap(cap: int, sizes: list[int], world: World) -> None:
    layers = (nn.Linear(512, 512, bias=False) for _ in range(4))  # 1 MiB of gradients each
    net, found = ddp.STRATEGY.wrap(ddp.Flags(bucket_cap_mb=cap), nn.Sequential(*layers), world), list[int]()
    net.register_comm_hook(found, kept)
    for _ in range(2):  # the first step shows in which order gradients come
        found.clear()
        net(torch.ones(1, 512)).sum().backward()
    assert found == sizes


def test_a_bucket_holds_a_mebibyte_or_more() -> None:
    with pytest.raises(TrainerError, match=r"^--bucket-cap-mb is 0, but it must be at least 1$"):
        choice.parse(["--bucket-cap-mb", "0"])
