"""Samplers of diffusion models: from noise to data with a network of your own, or with one of :func:`mhla.load`."""
from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence, Tuple, overload

import numpy as np

from . import _mhla
from ._plans import Error
from .model import native_type
from .streaming import _as_numpy, _result_like

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["Sampler", "noise"]


def _float32(x: Any, name: str) -> "NDArray[np.float32]":
    a = _as_numpy(x)
    if a.dtype != np.float32 or str(getattr(x, "dtype", "")) == "torch.bfloat16":
        raise Error(f"{name} is {getattr(x, 'dtype', a.dtype)}: expected float32")
    return np.ascontiguousarray(a)


class Sampler:
    """Says at which times a network is asked, takes its answers, and moves x from noise to data.

    Args:
        process: what the network was trained for: "linear" or "cosine", diffusions of 1000 noise levels whose network tells the
            noise; "flow", whose network tells the velocity noise - data.
        method: "ddpm" (default of diffusions), "ddim"; "euler" (default of flows); "dpm++" and "unipc" of both.
        steps: 0 is 250 with ddpm, 50 otherwise.
        table: which noise levels, where the default is not wanted: "250", "10,15,20", "ddim50", "solver25"; of flows "wan".
        eta: of ddim, noise that is added, 0 to 1.
        shift: of flows, towards the noise; 0 is none.
        clip: keeps predicted data within [-1, 1] at every step.
        learned_sigma: the network's answer has twice the channels, noise, then variance.

    Attributes:
        method, times: the method, and the time input [steps] of the network at each step, 0 to 1000.

    A loop takes the times in order and answers each by one :meth:`step`; starting another loop starts anew.

    >>> import numpy as np, mhla
    >>> model = mhla.create("dit_micro", depth=1, image=8, blocks=2)
    >>> sampler = mhla.diffusion.Sampler(method="ddim", steps=5)
    >>> x, labels = mhla.diffusion.noise([7, 8], (3, 8, 8)), [0, 1]
    >>> for time in sampler:
    ...     x = sampler.step(x, model(x, [time, time], labels))
    >>> x.shape, sampler.times.astype(int).tolist()
    ((2, 3, 8, 8), [800, 600, 400, 200, 0])
    """

    def __init__(self, process: str = "linear", method: Optional[str] = None, steps: int = 0, *, table: Optional[str] = None,
                 eta: float = 0.0, shift: float = 0.0, clip: bool = False, learned_sigma: bool = False):
        native_type()
        self._how = (process, method, table, steps, eta, shift, clip, learned_sigma)
        self._native, self._next = _mhla.Sampler(*self._how, 1, 1, 1), 0
        self._shape: Tuple[int, ...] = (1, 1, 1)
        found: Tuple[str, List[float], List[bool]] = self._native.info()
        self.method, self._noisy = found[0], found[2]
        self.times: NDArray[np.float64] = np.array(found[1], np.float64)
        self._last: Any = None

    def __len__(self) -> int:
        """How many steps."""
        return len(self.times)

    def __iter__(self) -> Iterator[float]:
        self._next = 0
        for i, time in enumerate(self.times):
            if self._next != i:
                raise Error(f"step {i - 1} of the sampler was taken {self._next - i + 1} times: each time takes one call of step()")
            yield float(time)

    @property
    def wants_noise(self) -> bool:
        """Whether the next step adds noise, which you give."""
        return self._next < len(self) and self._noisy[self._next]

    @overload
    def step(self, x: "NDArray[np.float32]", prediction: Any, noise: Any = None) -> "NDArray[np.float32]": ...
    @overload
    def step(self, x: "Tensor", prediction: Any, noise: Any = None) -> "Tensor": ...
    def step(self, x: Any, prediction: Any, noise: Any = None) -> Any:
        """x after the next step; the x that is given stays as it is.

        Args:
            x: float32 [n,C,...], NumPy or torch; what comes back is of the same kind.
            prediction: the network's answer at this step's time, shaped like x; with learned_sigma [n,2C,...].
            noise: standard normal, shaped like x, where :attr:`wants_noise` says so; otherwise it is not looked at.
        """
        if self._next >= len(self):
            raise Error(f"all {len(self)} steps are taken: begin another loop over the sampler")
        a, answer = _float32(x, "x"), _float32(prediction, "prediction")
        if a.ndim < 2 or a.size == 0:
            raise Error(f"x has shape {list(a.shape)}: expected [n,C,...]")
        want = (a.shape[0], a.shape[1] * (2 if self._how[-1] else 1), *a.shape[2:])
        if answer.shape != want:
            raise Error(f"prediction has shape {list(answer.shape)}: expected {list(want)}")
        given = None
        if self.wants_noise:
            if noise is None:
                raise Error(f"noise is missing: step {self._next} of {self.method} adds some")
            given = _float32(noise, "noise")
            if given.shape != a.shape:
                raise Error(f"noise has shape {list(given.shape)}: expected {list(a.shape)}")
        self._prepare(a.shape)
        moved = a.copy()
        self._native.step(self._next, moved.ctypes.data, answer.ctypes.data, 0 if given is None else given.ctypes.data)
        self._next, self._last = self._next + 1, x
        return _result_like(x, moved)

    def _prepare(self, shape: Tuple[int, ...]) -> None:
        """A sampler of the library's for this shape: the first step makes it, the others keep it."""
        if self._shape == shape:
            return
        if self._next:
            raise Error(f"x has shape {list(shape)}: it was {list(self._shape)} at the step before")
        self._native = _mhla.Sampler(*self._how, shape[0], shape[1], int(np.prod(shape[2:], dtype=np.int64)))
        self._shape = shape

    @property
    def predicted(self) -> Any:
        """The data that the last step saw behind the noise, like x; None before the first."""
        data = self._native.predicted() if self._last is not None else None
        return None if data is None else _result_like(self._last, np.frombuffer(data, np.float32).reshape(self._shape).copy())

    def __reduce__(self) -> Any:
        """Also what copy and deepcopy go by: the settings."""
        if 0 < self._next < len(self):
            raise TypeError(f"this sampler has taken {self._next} of its {len(self)} steps: it is copied or pickled before the first")
        return _again, self._how

    def __repr__(self) -> str:
        return f"<mhla.diffusion.Sampler {self.method} of {self._how[0]}, {len(self)} steps>"


def _again(process: str, method: Optional[str], table: Optional[str], steps: int, eta: float, shift: float, clip: bool,
           learned_sigma: bool) -> Sampler:
    """What a pickle calls."""
    return Sampler(process, method, steps, table=table, eta=eta, shift=shift, clip=clip, learned_sigma=learned_sigma)


def noise(seeds: Sequence[int], shape: Sequence[int], step: int = 0) -> "NDArray[np.float32]":
    """The standard normal noise [n,*shape] that ``mhla sample`` draws for images of these seeds, each a function of its seed
    alone: step 0 is what it begins with, step i + 1 goes to step i of the sampler.

    >>> import mhla
    >>> x = mhla.diffusion.noise([0, 1], (1, 2, 2))
    >>> x.shape, bool((x[1] == mhla.diffusion.noise([1], (1, 2, 2))[0]).all())
    ((2, 1, 2, 2), True)
    """
    native_type()
    found = np.empty((len(seeds), *shape), np.float32)
    for seed, one in zip(seeds, found):
        if not 0 <= operator.index(seed) < 2**64:
            raise Error(f"seed is {seed}: expected 0 to 2**64 - 1")
        _mhla.sample_noise(one.ctypes.data, one.size, int(seed), step)
    return found
