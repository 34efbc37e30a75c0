"""The torchvision of PyPI is made for the torch of PyPI; beside a torch for CPUs its operators do not load, and it cannot be
imported because two of them are unknown. timm uses neither: declared they are enough."""
import sys

import torch


def allow() -> None:
    """Before timm is imported. Does nothing where torchvision is not there, or loads."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    except RuntimeError:
        for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            try:
                torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            except RuntimeError:
                pass
