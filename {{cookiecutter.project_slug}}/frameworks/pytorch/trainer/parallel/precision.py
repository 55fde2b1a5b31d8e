"""The number format of the forward pass; weights and gradients stay float32."""

import torch

from trainer.config import Config

LOW = torch.bfloat16  # of GPUs that have it


def precision(config: Config, device: torch.device) -> torch.dtype:
    """Compute dtype of the forward pass; `auto` is bfloat16 on GPUs that have it, from A100 and L4 on."""
    if config.precision == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return LOW if has_it else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.precision]


def autocast(config: Config, device: torch.device, enabled: bool = True) -> torch.autocast:
    """Return a context in which matrix products have that precision."""
    return torch.autocast(device.type, LOW, enabled=enabled and precision(config, device) != torch.float32)
