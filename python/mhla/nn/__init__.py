"""Modules that load the released modules' state_dict unchanged, and the program's checkpoints; they need torch."""
from .deit import DeiT
from .image import DeiTAttention, DiTAttention, LinearAttention, SoftmaxAttention, VLTAttention
from .lm import LMAttention, LMLinearAttention, LMSoftmaxAttention, ShortConvolution
from .wan import WanAttention, WanCrossAttention, WanLinearAttention, WanSoftmaxAttention

__all__ = ["DeiT", "DeiTAttention", "DiTAttention", "LMAttention", "LMLinearAttention", "LMSoftmaxAttention", "LinearAttention",
           "ShortConvolution", "SoftmaxAttention", "VLTAttention", "WanAttention", "WanCrossAttention", "WanLinearAttention",
           "WanSoftmaxAttention"]
