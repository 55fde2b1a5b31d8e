"""Model FLOPs utilization: the share of what the GPUs are built for that the model's own operations make use of.

Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.
"""

import re

# 10^12 operations a second, dense, by a word of the GPU's name, in the precision that the trainer uses there.
# Source: NVIDIA's data sheets.
PEAKS = {
    "bfloat16": {
        **{"GB200": 2500.0, "B200": 2250.0, "H200": 989.0, "H100": 989.0, "A100": 312.0},
        **{"RTX PRO 6000": 503.0, "L4": 121.0},
    },
    "float32": {"V100": 15.7, "P100": 9.3, "T4": 8.1, "P4": 5.5},
}


def peak_flops(device: str, precision: str) -> float:
    """Return the peak of one GPU, in operations a second; 0.0 where it is not known, as of a CPU.

    Args:
        device: `NVIDIA A100-SXM4-40GB`.
        precision: `bfloat16` or `float32`.
    """
    peaks = PEAKS.get(precision, {}).items()
    return next((peak * 1e12 for name, peak in peaks if re.search(rf"\b{name}\b", device)), 0.0)
