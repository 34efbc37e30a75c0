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
    layouts, or Wan's AutoencoderKLWan of clips, from either of its two. ``Autoencoder.load(path)`` is :func:`mhla.load` that refuses
    other kinds of models.

    Latents are as a diffusion model sees them: (z - shift) * scale of what the network makes, or (z - mean) / deviation channel by
    channel. An autoencoder of clips makes 1 + n frames of latents of 1 + n * frames frames; an image is a clip of one frame.

    Attributes:
        info: besides the sizes of every model: latents (channels), factor (pixels of a side per latent), scale, shift, encodes,
            decodes, frames (of pixels per frame of latents; 0: images alone), mean and deviation (per channel of latents; empty:
            scale and shift).

    >>> import numpy as np, mhla
    >>> vae = mhla.create("sd_vae_nano")
    >>> mean, deviation = vae.encode(np.zeros((1, 3, 32, 48), np.float32))
    >>> mean.shape, vae.decode(mean).shape
    ((1, 4, 8, 12), (1, 3, 32, 48))
    >>> clips = mhla.create("wan_vae_nano")
    >>> mean, _ = clips.encode(np.zeros((1, 3, 5, 16, 16), np.float32))
    >>> mean.shape, clips.decode(mean).shape
    ((1, 16, 2, 2, 2), (1, 3, 5, 16, 16))
    """

    def __init__(self, native: _mhla.Model, origin: Tuple[Any, ...]):
        super().__init__(native, origin)
        self.info.update(native.codec_info())

    def _check(self, x: Any, what: str, channels: int) -> "NDArray[np.float32]":
        a = _as_numpy(x)
        dtype = getattr(x, "dtype", a.dtype)
        clips = self.info["frames"] > 0
        if a.dtype != np.float32 or a.ndim not in (4, 4 + clips) or a.shape[1] != channels:
            axes = f"[n, {channels}, frames, H, W] or [n, {channels}, H, W]" if clips else f"[n, {channels}, H, W]"
            raise Error(f"{what} are {dtype} {list(a.shape)}: expected float32 {axes}")
        return np.ascontiguousarray(a)

    def encode(self, images: Any, memory: int = 0) -> Tuple[Any, Any]:
        """(mean, deviation), each [n,latents,H/factor,W/factor], of images [n,channels,H,W] with values -1..1: a latent is
        mean + deviation * noise, of an AutoencoderDC the mean alone (deviation 0). Clips have their frames in front of H, both. NumPy arrays give arrays, torch tensors tensors;
        without gradients.

        Args:
            memory: bytes that the network and its work may take; where a whole image needs more, it goes through in overlapping
                tiles, which changes the result slightly. 0: no bound.
        """
        x = self._check(images, "images", self.info["channels"])
        n, H, W, f = len(x), x.shape[-2], x.shape[-1], self.info["factor"]
        frames = x.shape[2] if x.ndim == 5 else 0
        counts = (1 + max(frames - 1, 0) // self.info["frames"],) if frames else ()
        mean = np.empty((n, self.info["latents"], *counts, H // f, W // f), np.float32)
        deviation = np.empty_like(mean)
        self._native.encode(mean.ctypes.data, deviation.ctypes.data, x.ctypes.data, n, frames, H, W, memory)
        return _result_like(images, mean), _result_like(images, deviation)

    def decode(self, latents: Any, memory: int = 0) -> Any:
        """Images [n,outputs,H,W], about -1..1, not clipped, of latents [n,latents,H/factor,W/factor]; clips of latents with their
        frames. `memory` as in :meth:`encode`."""
        z = self._check(latents, "latents", self.info["latents"])
        n, H, W = len(z), z.shape[-2] * self.info["factor"], z.shape[-1] * self.info["factor"]
        frames = 1 + (z.shape[2] - 1) * self.info["frames"] if z.ndim == 5 else 0
        images = np.empty((n, self.info["outputs"], *((frames,) if frames else ()), H, W), np.float32)
        self._native.decode(images.ctypes.data, z.ctypes.data, n, frames, H, W, memory)
        return _result_like(latents, images)
