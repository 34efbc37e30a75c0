"""Whole models, trained by the program or made here: open, look into, run, classify images."""
from __future__ import annotations

import ctypes
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple, Type, TypeVar, Union, overload

import numpy as np

from . import _mhla
from ._plans import Error
from .streaming import _as_numpy, _result_like

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Path = Union[str, "os.PathLike[str]"]
_DEBIAN = {"libpng": "libpng-dev", "libjpeg": "libjpeg-dev", "zlib": "zlib1g-dev", "jansson": "libjansson-dev",
           "libpcre2-8": "libpcre2-dev", "libutf8proc": "libutf8proc-dev"}


def native_type() -> Type[_mhla.Model]:
    """The extension's Model, or the sentence that says why there is none."""
    missing = _mhla.MODELS_MISSING
    if missing is None:
        return _mhla.Model
    if not missing:
        raise Error("mhla was built without models (MHLA_NN=OFF): build it again without that")
    packages = " ".join(_DEBIAN.get(name, name) for name in missing.split(", "))
    raise Error(f"mhla was built without models, because pkg-config did not find {missing}: install them (Debian: apt-get "
                f"install pkg-config {packages}), then pip install mhla again")


class Model:
    """A model of :func:`load` or :func:`create`. Calling it runs it; one thread at a time may.

    A model pickles, copies and goes to other processes as what it was made of: the absolute path and the options of
    :func:`load`, or the arguments of :func:`create`. No weights are in a pickle: whoever reads it needs the same files at the
    same path.

    Attributes:
        config: the content of its config.json.
        classes: the names of its classes; "0", "1", ... where it knows none.
        info: sizes: parameters, tokens, multiply_adds, ...; weights: the file that they were read from.

    >>> import numpy as np, mhla
    >>> model = mhla.create("deit_nano", classes=10, channels=1)
    >>> model(np.zeros((2, 1, 28, 28), np.float32)).shape
    (2, 10)
    >>> model.state_dict()["blocks.0.attn.piece_attn.conv.weight"].shape
    (4, 4, 1, 1)
    """

    def __init__(self, native: _mhla.Model, origin: Tuple[Any, ...]):
        self._native, self._origin = native, origin
        self.info: Dict[str, Any] = native.info()
        self.config: Dict[str, Any] = json.loads(self.info.pop("config"))
        self.classes: List[str] = [native.class_name(i) or str(i) for i in range(self.info["classes"])]

    def __repr__(self) -> str:
        return f"mhla.Model({self.info['name']}, {self.config.get('attention')}, {self.info['parameters']:,} parameters)"

    @classmethod
    def load(cls: Type[M], path: Path, weights: Optional[str] = None, storage: Optional[str] = None) -> M:
        """:func:`mhla.load` for a model of this class: ``mhla.LanguageModel.load`` refuses all but language models."""
        model = load(path, weights, storage)
        if not isinstance(model, cls):
            raise Error(f"{os.fspath(path)}: {model.info['name']} is a {model.info['kind']} model: mhla.{cls.__name__}.load does not take it")
        return model

    def __reduce__(self) -> Any:
        return _again, self._origin

    @overload
    def forward(self, images: "NDArray[Any]", times: Any = None, labels: Any = None) -> "NDArray[np.float32]": ...
    @overload
    def forward(self, images: "Tensor", times: Any = None, labels: Any = None) -> "Tensor": ...
    def forward(self, images: Any, times: Any = None, labels: Any = None) -> Any:
        """Of a classifier: logits [n,classes] of images [n,C,H,W], float32, normalised as in training (config: mean,
        deviation). Of a diffusion model: its answer [n,C,H,W], with learned sigma [n,2C,H,W], to noisy images at times [n]
        (0 to 1000) with labels [n] (the number of classes stands for none); H and W are any multiples of the patch. A NumPy
        array gives an array, a torch tensor a tensor; without gradients: for those see :class:`mhla.nn.DeiT`."""
        x = _as_numpy(images)
        dtype = getattr(images, "dtype", x.dtype)  # x has torch's bfloat16 as uint16
        i = self.info
        if i["kind"] == "autoencoder":
            raise Error(f"{i['name']} is an autoencoder: encode and decode run it")
        if i["kind"] == "diffusion":
            return _result_like(images, self._denoise(x, dtype, times, labels))
        if times is not None or labels is not None:
            raise Error(f"{i['name']} is not a diffusion model: it takes images alone")
        want = (i["channels"], i["height"], i["width"])
        if x.dtype != np.float32 or x.ndim != 4 or x.shape[1:] != want:
            raise Error(f"images are {dtype} {list(x.shape)}: expected float32 "
                        f"[n, {want[0]}, {want[1]}, {want[2]}]")
        x = np.ascontiguousarray(x)
        logits = np.empty((len(x), i["classes"]), np.float32)
        if len(x):
            self._native.forward(logits.ctypes.data, x.ctypes.data, len(x))
        return _result_like(images, logits)

    def _denoise(self, x: "NDArray[Any]", dtype: Any, times: Any, labels: Any) -> "NDArray[np.float32]":
        C = self.info["channels"]
        if x.dtype != np.float32 or x.ndim != 4 or x.shape[1] != C:
            raise Error(f"images are {dtype} {list(x.shape)}: expected float32 [n, {C}, H, W]")
        if times is None or labels is None:
            raise Error(f"{self.info['name']} is a diffusion model: it takes images, times and labels")
        x = np.ascontiguousarray(x)
        given = []
        for name, values, kind in (("times", times, np.float32), ("labels", labels, np.int32)):
            bfloat16 = str(getattr(values, "dtype", "")) == "torch.bfloat16"
            a = _as_numpy(values.float() if bfloat16 else values)  # not its bits
            if name == "labels" and a.size and (a.dtype.kind not in "iu" or not 0 <= a.min() <= a.max() < 2**31):
                raise Error(f"labels are {a.dtype}: expected whole numbers, 0 or more")
            a = np.ascontiguousarray(a, kind)
            if a.shape != (len(x),):
                raise Error(f"{name} has shape {list(a.shape)}: expected [{len(x)}]")
            given.append(a)
        y = np.empty((len(x), 2 * C if self.config["learn_sigma"] else C, *x.shape[2:]), np.float32)
        if len(x):
            t, k = given
            self._native.denoise(y.ctypes.data, x.ctypes.data, t.ctypes.data, k.ctypes.data, len(x), *x.shape[2:])
        return y

    __call__ = forward

    def classify(self, image: Union[Path, bytes], top: int = 5) -> List[Tuple[str, float]]:
        """The `top` likeliest classes of a PNG or JPEG, a path or its bytes, each with its probability. The image is resized,
        cropped and normalised as for evaluation."""
        if top < 1:
            raise ValueError(f"top is {top}: expected 1 or more")
        p = np.empty(self.info["classes"], np.float32)
        if isinstance(image, (bytes, bytearray, memoryview)):
            self._native.classify_bytes(p.ctypes.data, image, "image")
        else:
            self._native.classify(p.ctypes.data, image)
        return [(self.classes[i], float(p[i])) for i in np.argsort(-p, kind="stable")[:top]]

    def state_dict(self) -> Dict[str, "NDArray[np.float32]"]:
        """Copies of the parameters, under the names of the published checkpoints and in their order."""
        found = {}
        for i in range(self.info["tensors"]):
            name, shape, address = self._native.tensor(i)
            if address == 0:
                raise Error(f"{name} is not kept as float32: mhla.load(path, storage=\"float32\") keeps it so")
            count = int(np.prod(shape, dtype=np.int64))
            found[name] = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).reshape(shape).copy()
        return found

    def parameters(self) -> Iterator["NDArray[np.float32]"]:
        """The values of :meth:`state_dict`."""
        return iter(self.state_dict().values())

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, which :func:`load`, the program, and the `safetensors` library read."""
        self._native.save(folder)


M = TypeVar("M", bound=Model)


def _wrap(native: _mhla.Model, origin: Tuple[Any, ...]) -> Model:
    from .autoencoder import Autoencoder  # which are made of this file
    from .language import LanguageModel

    return {"language": LanguageModel, "autoencoder": Autoencoder}.get(native.info()["kind"], Model)(native, origin)


def _again(how: str, *arguments: Any) -> Model:
    """What a pickle calls."""
    if how == "load":
        return load(*arguments)
    if how == "pipeline":
        from .pipeline import Pipeline

        folder, transformer, vae, text_encoder, tokenizer, scheduler, storage, texts = arguments
        return Pipeline(folder, transformer=transformer, vae=vae, text_encoder=text_encoder, tokenizer=tokenizer,
                        scheduler=scheduler, storage=storage, texts=texts)
    return _wrap(native_type().create(*arguments), (how, *arguments))


def load(path: Path, weights: Optional[str] = None, storage: Optional[str] = None) -> Model:
    """Opens the folder of a run (its best checkpoint, or its last one), a folder with config.json and model.safetensors or
    pytorch_model.bin, or a .safetensors file with config.json in the same folder. Also timm's DeiT as timm saves it, and a state_dict
    (.pt, .safetensors) of facebookresearch's DiT, which needs no config.json. A language model is a folder as transformers writes it,
    a run, or a .gguf file; it opens as a :class:`LanguageModel`. An AutoencoderKL of diffusers or of latent diffusion (a folder, a .ckpt or
    .safetensors file) opens as an :class:`Autoencoder`, and so do AutoencoderDC and AutoencoderKLWan. The folder of a pipeline, SANA's or
    Wan's, opens as a :class:`Pipeline`.

    Args:
        weights: "raw" or "ema" (the average, if training kept one); by default whichever scored better.
        storage: type in which matrices are stored and multiplied, "float32", "bfloat16" or "q8_0"; default: float32, for a language
            model the type of the file.

    The weights are copied: what happens to the files later changes nothing. If another program shortens one during the call, it
    raises :class:`mhla.FileError`.

    >>> import mhla, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mhla.create("deit_nano", attention="softmax", classes=10).save(folder)
    ...     model = mhla.load(folder)
    >>> model.config["attention"], len(model.classes)
    ('softmax', 10)
    """
    if native_type() and weights is None and _mhla.is_pipeline(path):
        return _again("pipeline", os.path.abspath(os.fsdecode(path)), None, None, None, None, None, storage, None)
    return _wrap(native_type()(path, weights, storage), ("load", os.path.abspath(os.fsdecode(path)), weights, storage))


def create(preset: str, seed: int = 0, **settings: Any) -> Model:
    """A fresh model: "deit_nano", "deit_tiny", "deit_small" or "deit_base", a diffusion model from "dit_micro" and "dit_nano"
    to "dit_xl_2" or "dig_micro" to "dig_xl", a language model "lm_micro", "lm_nano", "lm_340m" or "lm_480m" (without a tokenizer), an
    autoencoder "sd_vae", "sd_vae_nano", "dc_ae" or "dc_ae_nano", changed by settings, which are
    the keys of config.json; weights are drawn from the seed.

    >>> import mhla
    >>> mhla.create("deit_tiny", structure="released").info["parameters"]
    5793832
    """
    def text(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return ",".join(map(text, value))
        return value if isinstance(value, str) else json.dumps(value)

    return _again("create", preset, [f"{key}={text(value)}" for key, value in settings.items()], seed)
