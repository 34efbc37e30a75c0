"""Mixing matrices and rotary tables."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, List, Sequence, Tuple, Union, overload

import numpy as np

from . import _mhla
from ._plans import Error

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def mix_names() -> List[str]:
    """The names that :func:`mix_init` knows.

    >>> import mhla
    >>> "paper" in mhla.mix_names()
    True
    """
    return _mhla.mix_names()


def mix_init(name: str, blocks: Union[int, Sequence[int]], param: float = 0.0, *,
             key_blocks: Union[int, Sequence[int], None] = None) -> "NDArray[np.float32]":
    """An initial mixing matrix [M,M], M the product of blocks; row i = query block i. For cross attention [Mq,Mk].

    Args:
        name: "paper", "released-linear", "cos", "exp", "gaussian", "local", "uniform" or "causal".
        blocks: pieces per axis, 1 to 3 axes.
        param: of "exp" (sigma, default 3) and "local" (radius, default 1.5).
        key_blocks: pieces of the keys' grid, with the same number of axes; default: those of the queries. Both grids are scaled to the same
            extent, and along each axis a block of the coarser one is the unit of distances. Only "uniform" takes grids with
            different numbers of axes.

    >>> import mhla
    >>> mhla.mix_init("causal", 2).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    >>> mhla.mix_init("paper", 1, key_blocks=3).round(3).tolist()
    [[0.0, 1.0, 0.0]]
    """
    blocks = _pieces(blocks, "blocks")
    keys = blocks if key_blocks is None else _pieces(key_blocks, "key_blocks")
    if name == "uniform" and len(keys) != len(blocks):
        blocks, keys = (math.prod(blocks),), (math.prod(keys),)
    mix = np.empty((math.prod(blocks), math.prod(keys)), np.float32)
    _mhla.mix_fill(mix.ctypes.data, name, blocks, keys, float(param))
    return mix


def _pieces(blocks: Union[int, Sequence[int]], name: str) -> Tuple[int, ...]:
    blocks = (blocks,) if isinstance(blocks, int) else tuple(blocks)
    if not blocks or min(blocks) < 1:
        raise Error(f"{name} is {blocks}: expected 1 to 3 positive numbers")
    return blocks


@overload
def mix_clip(mix: "NDArray[np.float32]", low: float = ..., high: float = ..., renormalise: bool = ...,
             causal: bool = ...) -> "NDArray[np.float32]": ...
@overload
def mix_clip(mix: "Tensor", low: float = ..., high: float = ..., renormalise: bool = ..., causal: bool = ...) -> "Tensor": ...
def mix_clip(mix: Any, low: float = 1e-6, high: float = 1.0, renormalise: bool = False, causal: bool = False) -> Any:
    """After an optimiser step: clips mix [M,M] or [H,M,M] to [low, high] in place, then perhaps makes its rows sum to 1.

    causal: only the lower triangle is touched. Returns mix (a NumPy array, or a torch tensor, whose version is bumped).

    >>> import numpy as np, mhla
    >>> mhla.mix_clip(np.array([[2, -1], [0.5, 0.5]], np.float32), low=0).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    if not isinstance(mix, np.ndarray):  # torch
        import torch

        if mix.dtype != torch.float32:
            raise Error(f"mix has dtype {mix.dtype}: expected float32")
        with torch.no_grad():
            work = mix.detach().cpu().clone(memory_format=torch.contiguous_format).resolve_neg()
            mix_clip(work.numpy(), low, high, renormalise, causal)
            mix.copy_(work)
        return mix
    if mix.dtype != np.float32 or not mix.flags.c_contiguous or not mix.flags.writeable:
        raise Error("mix is not a contiguous, writable float32 array")
    if mix.ndim not in (2, 3):
        raise Error(f"mix has shape {mix.shape}: expected [M,M] or [H,M,M]")
    for matrix in mix if mix.ndim == 3 else (mix,):
        rows, columns = matrix.shape
        _mhla.mix_clip(matrix.ctypes.data, rows, columns, low, high, renormalise, causal)
    return mix


def rope_table(grid: Union[int, Sequence[int]], dims: Union[int, Sequence[int]], base: float = 10000.0) -> "Tuple[NDArray[np.float32], NDArray[np.float32]]":
    """A rotary table (cos, sin), each [positions, sum(dims)/2], positions in raster order of the grid.

    Args:
        grid: positions per axis, 1 to 3 axes.
        dims: how many dims each axis turns, all even; pair j of axis a turns by position * base^(-2j/dims[a]).

    >>> import mhla
    >>> cos, sin = mhla.rope_table(16, 8)
    >>> cos.shape, float(cos[0, 0])
    ((16, 4), 1.0)
    """
    grid = (grid,) if isinstance(grid, int) else tuple(grid)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if not grid or min(grid) < 1 or not dims or min(dims) < 1:
        raise Error(f"grid is {grid}, dims {dims}: expected 1 to 3 positive numbers each")
    shape = (math.prod(grid), sum(dims) // 2)
    cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
    _mhla.rope_table(cos.ctypes.data, sin.ctypes.data, grid, dims, float(base))
    return cos, sin


__all__ = ["mix_clip", "mix_init", "mix_names", "rope_table"]
