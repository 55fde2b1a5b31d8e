"""Each GPU holds the whole model, and gradients are averaged over all GPUs."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer import flags
from trainer.cluster.world import World
from trainer.parallel.strategy import Strategy, StrategyFlags, compile_and_recompute
from trainer.vertex.errors import TrainerError

UNUSED = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
UNUSED_CURE = "remove these parameters, or call requires_grad_(False) on each of them"


@dataclass(frozen=True, kw_only=True)
class Flags(StrategyFlags):
    bucket_cap_mb: int = 64
    """Size of a gradient bucket in MiB. Each bucket is all-reduced as a whole. Large buckets make full use of a fast
    network and Reduction Server. The all-reduce of small buckets starts earlier, before all gradients are computed."""

    def findings(self) -> Iterator[str]:
        return flags.at_least(1, self, "bucket_cap_mb")


class DataParallel(Strategy):
    flags = Flags

    def wrap(self, config: Flags, net: nn.Module, world: World) -> DistributedDataParallel:
        """Wrap the model so that gradients are averaged over all processes, in buckets of --bucket-cap-mb MiB.

        Reduction Server and 100 Gbps networks work best with fewer, larger all-reduces.
        Source: Vertex AI documentation, "Distributed training", mid-2026.
        """
        compile_and_recompute(config, net)
        return self.distribute(config, net, world)

    def distribute(self, config: Flags, net: nn.Module, world: World) -> DistributedDataParallel:
        cap = config.bucket_cap_mb
        net = DistributedDataParallel(net.to(world.device), bucket_cap_mb=cap, gradient_as_bucket_view=True)
        # DDP measures only the steps that are reported, because each measurement waits for the GPU.
        every = math.gcd(config.log_every, config.checkpoint_every, config.evaluate_every)
        net._set_ddp_runtime_logging_sample_rate(min(every, config.steps))
        return net

    def bare(self, net: Any) -> nn.Module:
        return cast(nn.Module, net.module)

    @contextmanager
    def sync(self, net: Any, last: bool) -> Iterator[None]:
        try:
            with nullcontext() if last else net.no_sync():
                yield
        except RuntimeError as error:
            if not (found := UNUSED.search(str(error))):
                raise
            names = [name for name, parameter in net.module.named_parameters() if parameter.requires_grad]
            unused = ", ".join(names[int(index)] for index in found[1].split())
            raise TrainerError(f"losses() in trainer/model.py doesn't depend on {unused}; {UNUSED_CURE}") from None

    def communication(self, net: Any) -> dict[str, float]:
        """Return the computation and communication times that DDP measured in the latest timed step.

        Before the first timed step, return an empty dictionary.
        """
        if not net.logger:
            return {}
        net.logger.set_runtime_stats_and_log()  # otherwise the next forward pass would do this
        timed = net._get_ddp_logging_data()
        if "backward_comm_time" not in timed:
            return {}
        nanoseconds = {name: int(value) for name, value in timed.items() if name.endswith("_time")}
        computing = nanoseconds["forward_compute_time"] + nanoseconds["backward_compute_time"]
        communicating = nanoseconds["backward_comm_time"] - nanoseconds["backward_compute_comm_overlap_time"]
        return {"computing_seconds": computing / 1e9, "communication_seconds": communicating / 1e9}


STRATEGY = DataParallel()
