"""Multi-Head Linear Attention on the CPU, for NumPy and PyTorch.

``attention``, ``causal_attention``, ``linear_attention``, ``softmax_attention`` and the baselines of vision models
(``focused_attention``, ``inline_attention``, ``mala_attention``, ``rala_attention``) take NumPy arrays or torch tensors;
with torch they are custom ops with gradients that torch.compile does not break at. ``CausalState`` carries a sequence from
call to call, ``State`` and ``step`` stream.
``load`` opens a model that the program has trained or that others have published, ``create`` makes one: classifiers,
diffusion models, and language models with tokenizer, sequences and generation. ``mhla.diffusion`` has samplers.
``mhla.nn`` has modules that load the released checkpoints, and ours. ``mhla.ops`` has the operators of language models under the
names of flash-linear-attention, mamba_ssm and causal_conv1d.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:  # before our own library: its OpenMP runtime then serves both (see bench/threads.py)
    import torch as _torch_first  # noqa: F401
except ImportError:
    pass

from . import _mhla, diffusion
from ._carry import CausalState
from ._mhla import Error, FileError
from .functional import (attention, causal_attention, focused_attention, inline_attention, linear_attention, mala_attention,
                         rala_attention, softmax_attention)
from .mixing import mix_clip, mix_init, mix_names, rope_table
from .autoencoder import Autoencoder
from .language import Generation, LanguageModel, Piece, Sequence, Tokenizer
from .model import Model, create, load
from .pipeline import Pipeline
from .streaming import State, step


if TYPE_CHECKING:
    from . import nn as nn, ops as ops


def _openmp_runtimes() -> list[str]:
    """Files of the OpenMP runtimes in this process."""
    try:
        with open("/proc/self/maps") as maps:
            names = {line.split()[-1] for line in maps if "/" in line}
    except OSError:
        return []
    return sorted(n for n in names if n.rsplit("/", 1)[-1].startswith(("libgomp", "libiomp", "libomp")))


def _share_openmp(runtimes: list[str]) -> str:
    """Whose threads our loops use: with more than one runtime, those of the one that is not ours."""
    foreign = [path for path in runtimes if not path.rsplit("/", 1)[-1].startswith("libgomp.so")]
    if len(runtimes) > 1:
        for path in foreign:
            if _mhla.use_openmp(path):
                return path
    return runtimes[0] if runtimes else ""


def info() -> dict[str, Any]:
    """What the library runs on: version, instruction set and why, CPU, caches, threads; the OpenMP runtimes in the
    process (`openmp`) and the one whose threads do our work (`openmp_used`).

    >>> import mhla
    >>> mhla.info()["isa"] in mhla.info()["available"]
    True
    """
    return _mhla.cpu_info() | {"openmp": _openmp_runtimes(), "openmp_used": _openmp_used}


def set_num_threads(threads: int) -> None:
    """Threads of every later call; 0 = as many as OpenMP would use (torch.set_num_threads then decides, if torch is
    there). Results do not depend on it.

    >>> import mhla
    >>> mhla.set_num_threads(0)
    """
    _mhla.set_threads(threads)


def set_isa(name: str | None) -> None:
    """Chooses the kernels: "plain", "avx2", "avx512", "avx512bf16" or "neon"; None = the best of this CPU. Not while
    other calls run.

    >>> import mhla
    >>> mhla.set_isa(None)
    """
    _mhla.set_isa(name)


def __getattr__(name: str) -> Any:
    """mhla.nn and mhla.ops without an import of their own; they need torch, which mhla does not."""
    if name in ("nn", "ops"):
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_openmp_used = _share_openmp(_openmp_runtimes())
__version__: str = _mhla.cpu_info()["version"]
__all__ = ["Autoencoder", "CausalState", "Error", "FileError", "Generation", "LanguageModel", "Model", "Piece", "Pipeline", "Sequence", "State", "Tokenizer",
           "attention", "causal_attention", "create", "diffusion", "focused_attention", "info", "inline_attention",
           "linear_attention", "load", "mala_attention", "mix_clip", "mix_init", "mix_names", "rala_attention", "rope_table",
           "set_isa", "set_num_threads", "softmax_attention", "step"]
