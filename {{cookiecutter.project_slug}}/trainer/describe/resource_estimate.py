"""Resources of a run, as one value: with --describe the trainer prints it as JSON and does not train."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class ResourceEstimate:
    """Counts, and bytes on one GPU, all from the model and the optimizer as they are; nothing is allocated for it.

    On a GPU, memory is about the sum of all the bytes here, those per sample times the samples of one micro-batch.
    A framework's own buffers come on top.
    """

    parameters: int
    """Trained parameters."""
    parameter_bytes: int
    gradient_bytes: int
    """Bytes that each step all-reduces."""
    optimizer_bytes: int
    """Moments of AdamW."""
    flops_per_sample: int
    """Floating point operations of matrix products and convolutions, forward and backward, a multiply-add being two."""
    precision: str
    """Compute dtype of GPUs that have it: bfloat16 from A100 and L4 on; the other GPUs compute in float32."""
    weight_copy_bytes: int
    """Copies of weights in `precision`; GPUs that compute in float32 need none."""
    activation_bytes_per_sample: int
    """Estimate of the tensors that the forward pass keeps for the backward pass, in `precision`."""
    activation_bytes_per_sample_float32: int
    """Likewise where the GPU computes in float32."""
    global_batch: int
    """Samples of one step, over all GPUs."""
    micro_batches: int
    """Micro-batches of one step, on each GPU."""

    def to_json(self) -> str:
        """Return one line, without a line end."""
        return json.dumps(asdict(self))
