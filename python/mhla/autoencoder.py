"""Autoencoders: images to latents, which diffusion models make, and back."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple

import numpy as np

from . import _mhla
from ._plans import Error
from .model import Model
from .streaming import _as_numpy, _result_like

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Autoencoder(Model):
    """An autoencoder of :func:`mhla.load` or :func:`mhla.create`: Stable Diffusion's AutoencoderKL, from any of its three published
    layouts. ``Autoencoder.load(path)`` is :func:`mhla.load` that refuses other kinds of models.

    Latents are as a diffusion model sees them: (z - shift) * scale of what the network makes.

    Attributes:
        info: besides the sizes of every model: latents (channels), factor (pixels of a side per latent), scale, shift, encodes,
            decodes.

    >>> import numpy as np, mhla
    >>> vae = mhla.create("sd_vae_nano")
    >>> mean, deviation = vae.encode(np.zeros((1, 3, 32, 48), np.float32))
    >>> mean.shape, vae.decode(mean).shape
    ((1, 4, 8, 12), (1, 3, 32, 48))
    """

    def __init__(self, native: _mhla.Model, origin: Tuple[Any, ...]):
        super().__init__(native, origin)
        self.info.update(native.codec_info())

    def _check(self, x: Any, what: str, channels: int) -> "NDArray[np.float32]":
        a = _as_numpy(x)
        dtype = getattr(x, "dtype", a.dtype)
        if a.dtype != np.float32 or a.ndim != 4 or a.shape[1] != channels:
            raise Error(f"{what} are {dtype} {list(a.shape)}: expected float32 [n, {channels}, H, W]")
        return np.ascontiguousarray(a)

    def encode(self, images: Any, memory: int = 0) -> Tuple[Any, Any]:
        """(mean, deviation), each [n,latents,H/factor,W/factor], of images [n,channels,H,W] with values -1..1: a latent is
        mean + deviation * noise. NumPy arrays give arrays, torch tensors tensors; without gradients.

        Args:
            memory: bytes that the network and its work may take; where a whole image needs more, it goes through in overlapping
                tiles, which changes the result slightly. 0: no bound.
        """
        x = self._check(images, "images", self.info["channels"])
        n, H, W, f = len(x), x.shape[2], x.shape[3], self.info["factor"]
        mean = np.empty((n, self.info["latents"], H // f, W // f), np.float32)
        deviation = np.empty_like(mean)
        self._native.encode(mean.ctypes.data, deviation.ctypes.data, x.ctypes.data, n, H, W, memory)
        return _result_like(images, mean), _result_like(images, deviation)

    def decode(self, latents: Any, memory: int = 0) -> Any:
        """Images [n,outputs,H,W], about -1..1, not clipped, of latents [n,latents,H/factor,W/factor]. `memory` as in
        :meth:`encode`."""
        z = self._check(latents, "latents", self.info["latents"])
        n, H, W = len(z), z.shape[2] * self.info["factor"], z.shape[3] * self.info["factor"]
        images = np.empty((n, self.info["outputs"], H, W), np.float32)
        self._native.decode(images.ctypes.data, z.ctypes.data, n, H, W, memory)
        return _result_like(latents, images)
