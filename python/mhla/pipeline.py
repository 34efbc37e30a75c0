"""Pipelines: from sentences to images or clips."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _mhla
from ._plans import Error
from .model import Model, Path, native_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

Progress = Callable[[str, int, int, Optional[str]], Any]


class Pipeline(Model):
    """A pipeline of :func:`mhla.load`: the folder of a SANA or a Wan 2.1 as diffusers writes it, or components by name. Each component
    is opened, used and released in turn during a call, so that the largest decides how much memory it takes.

    Args:
        folder: with model_index.json, or Wan's own; None: transformer, vae and text_encoder are named.
        transformer, vae, text_encoder, tokenizer, scheduler: instead of the folder's; a text encoder may be a .gguf file.
        storage: "float32" or "bfloat16"; None: float32, and of the text encoder the type of its file.
        texts: a folder that keeps what the text encoder makes of each prompt.

    Attributes:
        info: name, paths of the components, negative (the negative prompt unless another one is given), weights (tells them from
            others'), clips, outputs (channels of pixels), factor (height and width are multiples of it), frames (of a clip are 1 and a
            multiple of it more; 0: images), seconds (that a frame is shown).

    >>> import json, mhla, pathlib, tempfile
    >>> words = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     encoder = pathlib.Path(folder) / "encoder"
    ...     mhla.create("sana_nano", caption_channels=64).save(folder + "/transformer")
    ...     mhla.create("sd_vae_nano").save(folder + "/vae")
    ...     mhla.create("umt5_nano").save(encoder)
    ...     _ = (encoder / "tokenizer.json").write_text(json.dumps(words))
    ...     pipeline = mhla.Pipeline(transformer=folder + "/transformer", vae=folder + "/vae", text_encoder=encoder)
    ...     images = pipeline("ab", count=2, steps=2)
    >>> images.shape
    (2, 3, 32, 32)
    """

    def __init__(self, folder: Optional[Path] = None, *, transformer: Optional[Path] = None, vae: Optional[Path] = None,
                 text_encoder: Optional[Path] = None, tokenizer: Optional[Path] = None, scheduler: Optional[Path] = None,
                 storage: Optional[str] = None, texts: Optional[Path] = None):
        native_type()  # or says why there are no models
        given = (folder, transformer, vae, text_encoder, tokenizer, scheduler, texts)
        paths = [None if p is None else os.path.abspath(os.fsdecode(p)) for p in given]
        arguments: Any = (*paths[:6], storage, paths[6])
        self._pipeline = _mhla.Pipeline(*arguments)
        self._origin = ("pipeline", *arguments)
        self.info: Dict[str, Any] = self._pipeline.info()
        self.config: Dict[str, Any] = {}
        self.classes: List[str] = []

    def _parts(self) -> Error:
        return Error(f"{self.info['name']} is a pipeline: calling it with prompts runs it; mhla.load opens a component")

    def state_dict(self) -> "Dict[str, NDArray[np.float32]]":
        raise self._parts()

    def __getattr__(self, name: str) -> Any:
        if name == "_native":  # of Model's own calls
            raise self._parts()
        raise AttributeError(f"mhla.Pipeline has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"mhla.Pipeline({self.info['name']}, {self.info['transformer']})"

    def __call__(  # type: ignore[override]
            self, prompts: Union[str, Sequence[str]], negative: Optional[str] = None, count: int = 1, seed: int = 0, *,
            size: Optional[Tuple[int, int]] = None, frames: int = 0, steps: int = 0, guidance: float = 0.0,
            sampler: Optional[str] = None, shift: float = 0.0, instruction: Optional[str] = None, exact: bool = False,
            batch: int = 0, memory: int = 0, progress: Optional[Progress] = None) -> "NDArray[np.float32]":
        """Images [n,outputs,height,width], or clips [n,outputs,frames,height,width], with values about -1..1, not clipped: `count` of
        each prompt, with the seeds `seed`, `seed` + 1, ... An image depends on its prompt, its seed and the settings, not on the others or on the
        number of threads, and is the one that `mhla sample` makes.

        Args:
            negative: what guidance leads away from; None: the pipeline's own.
            size: (height, width) in pixels; None: as in training. `exact`: see `mhla sample --exact-size`.
            frames, steps, guidance, sampler, shift: 0 or None: as the pipeline does; guidance 1: none.
            instruction: in front of prompts for the text encoder; None: the pipeline's own, "": none.
            batch: images that the transformer takes at once; memory: bytes that decoding may take, 0: no bound.
            progress: called with the component at work, what is done, of how much, and None or a sentence to be read.
        """
        if count < 1:
            raise ValueError(f"count is {count}: expected 1 or more")
        texts: List[str] = [prompts] if isinstance(prompts, str) else list(prompts)
        every = [text for text in texts for _ in range(count)]
        seeds = [seed + i for _ in texts for i in range(count)]
        height, width = size or (0, 0)
        call = (every, seeds, negative, instruction, 0, float(guidance), sampler, steps, float(shift), height, width, frames, exact,
                batch, memory, progress)
        settled = self._pipeline.settle(*call)
        clip = (settled["frames"],) if self.info["clips"] else ()
        pixels = np.empty((len(every), self.info["outputs"], *clip, settled["height"], settled["width"]), np.float32)
        self._pipeline.make(pixels.ctypes.data, *call)
        return pixels

    forward = __call__  # type: ignore[assignment]
