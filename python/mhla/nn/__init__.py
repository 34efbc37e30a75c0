"""Modules that load the released modules' state_dict unchanged, and the program's checkpoints; they need torch."""
try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"mhla.nn needs PyTorch, the package torch ({error}): pip install torch") from error

from .cross import CrossAttention
from .deit import DeiT
from .dit import DiT
from .image import DeiTAttention, DiTAttention, LinearAttention, SoftmaxAttention, VLTAttention
from .lm import LMAttention, LMLinearAttention, LMSoftmaxAttention, LMState, ShortConvolution
from .recurrent import Cache, GatedDeltaNet, GatedLinearAttention, Mamba, Mamba2, MultiScaleRetention
from .vlt import VLT
from .wan import WanAttention, WanCrossAttention, WanLinearAttention, WanSoftmaxAttention

__all__ = ["Cache", "CrossAttention", "DeiT", "DeiTAttention", "DiT", "DiTAttention", "GatedDeltaNet", "GatedLinearAttention", "LMAttention", "LMLinearAttention", "LMSoftmaxAttention", "LMState",
           "LinearAttention", "Mamba", "Mamba2", "MultiScaleRetention", "ShortConvolution", "SoftmaxAttention", "VLT", "VLTAttention", "WanAttention", "WanCrossAttention", "WanLinearAttention",
           "WanSoftmaxAttention"]
