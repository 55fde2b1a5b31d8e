"""Each GPU holds the whole model, as with the ddp strategy, but Horovod averages the gradients.

This strategy doesn't use horovodrun or SSH. Instead, the supervisor starts the processes, as with other strategies. The
processes exchange the port of Horovod's rendezvous server through their process group. Sums, barriers, and checkpoints
also use this process group. To limit the size of an all-reduce, set HOROVOD_FUSION_THRESHOLD in the job file.
Source: Horovod 0.28.1, horovod/runner/gloo_run.py and horovod/common/gloo/gloo_context.cc.
"""

import contextlib
import functools
import importlib.util
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.cluster.world import Mesh, World
from trainer.parallel.strategy import Strategy, StrategyFlags, compile_and_recompute
from trainer.vertex.errors import LostPeerError


def environment(ranks: Mapping[str, str], port: int, timeout: float) -> dict[str, str]:
    """Return the environment variables that horovodrun would set for this process.

    The values are based on the ranks of this process in `torch.distributed`.
    """
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": ranks["MASTER_ADDR"],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": ranks["GLOO_SOCKET_IFNAME"],
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(timeout)),
        # A name for the processes that share a machine. Local replicas would all have the same hostname.
        "HOROVOD_HOSTNAME": f"replica-{ranks['GROUP_RANK']}",
        "HOROVOD_RANK": ranks["RANK"],
        "HOROVOD_SIZE": ranks["WORLD_SIZE"],
        "HOROVOD_LOCAL_RANK": ranks["LOCAL_RANK"],
        "HOROVOD_LOCAL_SIZE": ranks["LOCAL_WORLD_SIZE"],
        "HOROVOD_CROSS_RANK": ranks["GROUP_RANK"],
        "HOROVOD_CROSS_SIZE": ranks["GROUP_WORLD_SIZE"],
    }


class Averaged(nn.Module):
    """A wrapper that averages a model's gradients before `backward` returns, as DistributedDataParallel does.

    Every parameter must receive a gradient in every backward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        import horovod.torch as hvd

        super().__init__()
        self.module = module
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        self.averages = True  # whether the next backward pass averages gradients
        self._handles: list[int] = []
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._count = len(named)
        for name, parameter in named:
            parameter.register_post_accumulate_grad_hook(functools.partial(self._average, name))

    def forward(self, *args: Tensor) -> Tensor:
        output: Tensor = self.module(*args)
        return output

    def _average(self, name: str, parameter: Tensor) -> None:
        """Start the all-reduce of a parameter's gradient.

        If this is the last gradient of the backward pass, wait until all gradients are all-reduced.
        """
        import horovod.torch as hvd

        if not self.averages:
            return
        self._handles.append(hvd.allreduce_async_(parameter.grad, name=name, op=hvd.Average))
        if len(self._handles) == self._count:
            for handle in self._handles:
                hvd.synchronize(handle)
            self._handles.clear()


class Horovod(Strategy):
    def findings(self, config: StrategyFlags, mesh: Mesh, net: Any) -> Iterator[str]:
        if importlib.util.find_spec("horovod") is None:  # for example, in an image that is built without Horovod
            yield (
                "--strategy horovod requires Horovod, which isn't installed; run requirements/horovod.sh, build the"
                " image with --build-arg HOROVOD=1, or use --strategy ddp"
            )

    def wrap(self, config: StrategyFlags, net: nn.Module, world: World) -> Averaged:
        """Initialize Horovod and wrap the model. Every process must call this method."""
        import horovod.torch as hvd
        from horovod.runner.http.http_server import RendezvousServer

        server = RendezvousServer()
        port = server.start() if world.is_chief else 0
        port = int(world.sum(torch.tensor(port, device=world.device)))
        os.environ.update(environment(os.environ, port, config.collective_timeout))
        hvd.init()
        world.wait()
        if world.is_chief:
            server.stop()
        compile_and_recompute(config, net)
        with lost_peers():
            wrapped = Averaged(net.to(world.device))
        weakref.finalize(wrapped, hvd.shutdown)  # the model is deleted before the process group
        return wrapped

    def bare(self, net: Any) -> nn.Module:
        return cast(nn.Module, net.module)

    @contextlib.contextmanager
    def sync(self, net: Any, last: bool) -> Iterator[None]:
        net.averages = last
        with lost_peers():
            yield


@contextlib.contextmanager
def lost_peers() -> Iterator[None]:
    """Raise LostPeerError if another process exits or doesn't respond for --collective-timeout seconds."""
    import horovod.torch as hvd

    try:
        yield
    except hvd.HorovodInternalError as error:
        if "Mismatched" in str(error):  # tensors differ between processes, which is an error in the program
            raise
        said = "Horovod lost a process; see the output of the replica that failed first"
        raise LostPeerError(said, lost_peer="") from None


STRATEGY = Horovod()
