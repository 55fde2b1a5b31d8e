"""Each GPU holds a shard of the model, as in fsdp, and each machine all of them."""

from trainer.parallel.fsdp import FullyShard


class HybridShard(FullyShard):
    dimensions = ("replicate", "shard")
    flags = ("degree", "reshard")


STRATEGY = HybridShard()
