"""Each GPU holds the model, and gradients are averaged over all of them."""

import math

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.parallel import apply_compile_and_recompute
from trainer.processes import World
from trainer.strategies import Strategy


def replicate(config: Config, net: nn.Module, world: World) -> DistributedDataParallel:
    """The model, its gradients averaged over the world.

    64 MB buckets: fewer, larger all-reduces are what Reduction Server and the 100 Gbps network want.
    Source: Vertex AI documentation, "Distributed training", mid 2026.
    """
    apply_compile_and_recompute(config, net)
    net = DistributedDataParallel(net.to(world.device), bucket_cap_mb=64, gradient_as_bucket_view=True)
    # It times only the steps that are reported, as it waits for a GPU to do so.
    every = math.gcd(config.log_every, config.checkpoint_every, config.evaluate_every)
    net._set_ddp_runtime_logging_sample_rate(min(every, config.steps))
    return net


STRATEGY = Strategy(parallelize=replicate)
