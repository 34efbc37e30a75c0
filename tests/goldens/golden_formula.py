"""Parameters of the real-size goldens, which carry none: their README has the formula."""
import math

import numpy as np
import torch

from golden_case import Skip


def formula_parameters(case):
    """{name: tensor} by the list of names that the case mentions, somewhere above it."""
    names = next((p / case["names"] for p in case.path.parents if (p / case["names"]).is_file()), None)
    if names is None:
        raise Skip(f"no {case['names']} around")
    rows = [line.split() for line in names.read_text().splitlines() if not line.startswith("#")]
    return {name: values(j, name, [int(n) for n in shape.split("x")]) for j, (name, shape) in enumerate(rows)}


def values(j, name, shape):
    """Tensor j of the list."""
    z = (np.uint64(j) << np.uint64(32)) + np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    u = ((z >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(np.float32)
    base, amp = 0.0, math.sqrt(3 / math.prod(shape[1:])) if len(shape) > 1 else 0.0
    if "piece_attn" in name or "mixing_matrix" in name:
        base, amp = 1 / shape[0], 0.5 / shape[0]
    elif name.endswith("bias"):
        amp = 0.1
    elif len(shape) == 1:
        base, amp = 1.0, 0.1
    elif name == "pos_embed":
        amp = 0.5
    return torch.from_numpy((np.float32(base) + np.float32(amp) * u).reshape(shape))
