"""Each GPU holds a shard of the model, as in fsdp, and each machine all of them."""

from dataclasses import replace

from trainer.strategies import fsdp

STRATEGY = replace(fsdp.STRATEGY, dimensions=("replicate", "shard"), flags=("degree", "reshard"))
