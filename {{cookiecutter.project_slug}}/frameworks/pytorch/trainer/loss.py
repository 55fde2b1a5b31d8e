"""The loss, minimized as its mean over the samples, and the count of correct answers."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from trainer.config import Config
from trainer.data import NO_LABEL, Batch

PRECISION = torch.bfloat16  # of the forward pass, on GPUs that have it; weights and gradients stay float32


def precision(config: Config, device: torch.device) -> torch.dtype:
    """Compute dtype of the forward pass; `auto` is bfloat16 on GPUs that have it, from A100 and L4 on."""
    if config.precision == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return PRECISION if has_it else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.precision]


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """A context in which matrix products have that precision."""
    return torch.autocast(device.type, PRECISION, enabled=precision(config, device) != torch.float32)


def tensors(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    images, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss, summed over the samples; those labelled NO_LABEL count for nothing."""
    return cross_entropy(logits.float(), labels, reduction="sum", ignore_index=NO_LABEL)


def totals(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """The sums of loss, correct answers and samples, shape (3,), without gradients."""
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack((loss.detach(), correct, (labels != NO_LABEL).sum()))


def means(totals: Tensor) -> dict[str, float]:
    loss, correct, samples = totals.tolist()
    return {"loss": loss / samples, "accuracy": correct / samples}
