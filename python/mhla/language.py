"""Language models: tokens, sequences that remember, generation. NumPy in and out; torch is not needed."""
from __future__ import annotations

import operator
import os
import shutil
from dataclasses import dataclass, field
from typing import (TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Literal, Mapping, NamedTuple, Optional, Sequence as Seq, Tuple, TypedDict,
                    Union, overload)

import numpy as np

from . import _mhla
from ._plans import BEYONDS, Error
from .model import Model, Path, native_type
from .streaming import _as_numpy, _result_like

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

    Ids = Union[Seq[int], NDArray[Any], Tensor]
    Prompt = Union[str, Ids, Seq[Mapping[str, str]]]

_PART = 1024  # tokens between two looks for Ctrl-C; the program reads prompts in the same parts
_ENCODE_SPECIAL, _ENCODE_PLAIN, _DECODE_SKIP_SPECIAL = 1, 2, 1
_FINISHES = (None, "eos", "stop", "length")
_ORDERS = ("llama", "hf")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer.gguf", "vocab.json", "encoder.json", "qwen.tiktoken", "cl100k_base.tiktoken",
               "o200k_base.tiktoken", "r50k_base.tiktoken", "p50k_base.tiktoken", "bpe_simple_vocab_16e6.txt.gz", "bpe_simple_vocab_16e6.txt")
_BESIDE = ("merges.txt", "vocab.bpe", "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
           "generation_config.json")


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments that all ways to generate share; see :meth:`LanguageModel.generate`."""

    max_tokens: Optional[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last: int
    presence_penalty: float
    frequency_penalty: float
    bias: Optional[Mapping[int, float]]
    order: Literal["llama", "hf"]
    seed: Optional[int]
    stop: Union[str, Seq[str]]
    stop_ids: Seq[int]
    ignore_eos: bool
    logprobs: int


@dataclass(frozen=True)
class Piece:
    """What one step of a generation gave; see ``stream=True``."""

    index: int
    """Of the continuation, 0 .. n-1."""
    text: str
    """Whole characters that became certain by this step; may be empty."""
    id: Optional[int]
    """The token that was drawn."""
    logprob: float
    """Its log-probability at temperature 1, before any sampling option."""
    top: List[Tuple[int, float]]
    """The likeliest tokens with their log-probabilities, as many as ``logprobs`` asked for."""
    finish: Optional[str]
    """None, or why nothing follows: "eos", "stop" or "length"."""
    stopped_by: Optional[str]
    """The stop string that ended it."""


@dataclass
class Generation:
    """A finished continuation. ``str(generation)`` is its text."""

    text: str = ""
    """What follows the prompt, without special tokens and without the stop string."""
    ids: List[int] = field(default_factory=list)
    """Every token that was drawn, a final end token included."""
    finish: Optional[str] = None
    """"eos", "stop" or "length"."""
    stopped_by: Optional[str] = None
    """The stop string that ended it."""
    logprobs: List[float] = field(default_factory=list)
    """The log-probability of each token at temperature 1, before any sampling option."""
    top: List[List[Tuple[int, float]]] = field(default_factory=list)
    """For each token the likeliest ones, as many as ``logprobs`` asked for."""
    seed: int = 0
    """What it was drawn with."""

    def __str__(self) -> str:
        return self.text

    def _add(self, piece: Piece) -> None:
        self.text += piece.text
        if piece.id is not None:
            self.ids.append(piece.id)
            self.logprobs.append(piece.logprob)
            self.top.append(piece.top)
        self.finish, self.stopped_by = piece.finish, piece.stopped_by


def _ids(x: Any, name: str = "ids") -> "NDArray[np.int32]":
    """One list of tokens as int32, contiguous."""
    if isinstance(x, (str, bytes)):
        raise Error(f"{name} is text: expected token ids; tokenizer.encode(text) makes them")
    a = _as_numpy(x)
    if a.size == 0:
        a = a.astype(np.int32)
    if a.ndim != 1 or a.dtype.kind not in "iu":
        raise Error(f"{name} is {a.dtype} {list(a.shape)}: expected whole numbers [T]")
    if a.size and not 0 <= a.min() <= a.max() < 2**31:
        bad = int(np.flatnonzero((a < 0) | (a >= 2**31))[0])
        raise Error(f"{name}[{bad}] is {a[bad]}: token ids are 0 or more")
    return np.ascontiguousarray(a, np.int32)


def _is_batch(x: Any) -> bool:
    """A list of lists of ids, not a list of ids."""
    return isinstance(x, (list, tuple)) and len(x) > 0 and not isinstance(x[0], (int, np.integer)) and np.ndim(x[0]) > 0


class Tokenizer:
    """A tokenizer of a tokenizer.json, a SentencePiece tokenizer.model, a .gguf, or a folder that has one of them.

    A model's own is :attr:`LanguageModel.tokenizer`. It may be shared by threads, and pickles as its path.

    Attributes:
        info: kind, vocabulary, bos, eos, unk, pad (None where there is none), adds_bos, adds_eos, chat_template.

    >>> import mhla, json, os, tempfile
    >>> vocabulary = {"a": 0, "b": 1, "ab": 2, "</s>": 3}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(os.path.join(folder, "tokenizer.json"), "w") as file:
    ...         json.dump({"model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]},
    ...                    "added_tokens": [{"id": 3, "content": "</s>", "special": True}]}, file)
    ...     tokenizer = mhla.Tokenizer(folder)
    >>> tokenizer.encode("abba</s>"), tokenizer.encode("ab", special=False), len(tokenizer)
    ([2, 1, 0, 3], [2], 4)
    >>> tokenizer.decode([2, 1, 0, 3], skip_special=True).replace(" ", "")
    'abba'
    """

    def __init__(self, path: Path):
        native_type()
        self._setup(_mhla.Tokenizer(path), os.path.abspath(os.fsdecode(path)))

    def _setup(self, native: _mhla.Tokenizer, path: Optional[str]) -> None:
        self._native, self._path = native, path
        self.info: Dict[str, Any] = native.info()
        for name in ("bos", "eos", "unk", "pad"):
            if self.info[name] < 0:
                self.info[name] = None

    @classmethod
    def _of(cls, model: _mhla.Model, path: Optional[str]) -> "Tokenizer":
        self = cls.__new__(cls)
        self._setup(_mhla.Tokenizer(model), path)
        return self

    @property
    def bos(self) -> Optional[int]:
        """The token for the beginning, or None."""
        found: Optional[int] = self.info["bos"]
        return found

    @property
    def eos(self) -> Optional[int]:
        """The token for the end, or None."""
        found: Optional[int] = self.info["eos"]
        return found

    @property
    def chat_template(self) -> Optional[str]:
        """Jinja, or None."""
        found: Optional[str] = self.info["chat_template"]
        return found

    def __len__(self) -> int:
        return int(self.info["vocabulary"])

    def encode(self, text: str, *, special: bool = True, plain: bool = False) -> List[int]:
        """The ids of a text.

        Args:
            special: with the special tokens that the tokenizer puts around a text (``<s>`` in front).
            plain: special tokens that are spelled out in the text are text; for text of strangers.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}: expected str")
        flags = _ENCODE_SPECIAL * special | _ENCODE_PLAIN * plain
        return self._native.encode(text, flags)

    def decode(self, ids: "Union[int, Ids]", *, skip_special: bool = False) -> str:
        """The text of ids; `skip_special` leaves special tokens out."""
        a = _ids([ids] if isinstance(ids, (int, np.integer)) else ids)
        return self._native.decode(a.ctypes.data, len(a), _DECODE_SKIP_SPECIAL * skip_special)

    def piece(self, id: int) -> Optional[str]:
        """A token as the file spells it ("\\u2581the"), or None."""
        return self._native.piece(id)

    def id(self, piece: str) -> Optional[int]:
        """The id of a piece, or None."""
        found: int = self._native.id(piece)
        return found if found >= 0 else None

    def chat(self, messages: Seq[Mapping[str, str]], *, reply: bool = True) -> str:
        """The text that the chat template makes of messages ``{"role": ..., "content": ...}``; with `reply` it ends with the
        opening of the assistant's turn. Encode it with ``special=False``; :meth:`LanguageModel.generate` does both."""
        pairs = []
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                raise Error(f"message {i} is {message!r}: expected a dict with role and content")
            pairs.append((message["role"], message["content"]))
        return self._native.chat(pairs, reply)

    def __copy__(self) -> "Tokenizer":
        return self  # it never changes

    def __deepcopy__(self, memo: Any) -> "Tokenizer":
        return self

    def __reduce__(self) -> Any:
        if self._path is None:
            raise TypeError("this tokenizer was not opened from a separate file: it cannot be pickled")
        return type(self), (self._path,)

    def __repr__(self) -> str:
        return f"<mhla.Tokenizer {self.info['kind']}, {len(self)} tokens>"


class Sequence:
    """What a model remembers of some tokens: :meth:`LanguageModel.sequence` makes one. ``len(sequence)`` is their number.

    One thread at a time may use a model and its sequences. A sequence keeps its model alive. ``copy.copy`` and
    ``copy.deepcopy`` fork it; it does not pickle: :meth:`save` it.
    """

    def __init__(self, model: "LanguageModel", native: _mhla.Sequence):
        self._model, self._native = model, native

    @property
    def model(self) -> "LanguageModel":
        """Whose sequence it is."""
        return self._model

    @property
    def ids(self) -> "NDArray[np.int32]":
        """A copy of the tokens read so far."""
        return np.frombuffer(self._native.ids(), np.int32).copy()

    @property
    def nbytes(self) -> int:
        """Bytes of memory, parts shared with forks included."""
        return self._native.nbytes

    @property
    def note(self) -> str:
        """A text of yours that goes along with the sequence, its forks and its file; "" is none."""
        return self._native.note

    @note.setter
    def note(self, text: str) -> None:
        self._native.note = text

    def __len__(self) -> int:
        return self._native.tokens

    def feed(self, ids: "Ids", *, all: bool = False) -> "NDArray[np.float32]":
        """Reads tokens; returns the logits [vocabulary] after the last of them, or with `all` [T,vocabulary] after each. If it
        fails or Ctrl-C ends it, the sequence is as before."""
        return self._model._feed([self], [_ids(ids)], all)[0]

    def fork(self) -> "Sequence":
        """A second sequence that goes its own way from here; finished summaries are shared."""
        return Sequence(self._model, self._native.fork())

    __copy__ = fork

    def __deepcopy__(self, memo: Any) -> "Sequence":
        return self.fork()

    def rollback(self, tokens: int) -> None:
        """Back to the first `tokens` tokens, as if the rest had never been read."""
        self._native.rollback(tokens)

    def save(self, path: Path) -> None:
        """Writes the sequence to a file, atomically."""
        self._native.save(path)

    def load(self, path: Path) -> None:
        """Becomes the sequence that was saved. A file that is damaged or of other weights is refused, and nothing changes."""
        if self._native.held:
            raise RuntimeError("the sequence is being continued by a generation: exhaust or close its iterator first")
        self._native = _mhla.Sequence.load(self._model._native, path)

    @overload
    def generate(self, prompt: "Optional[Prompt]" = ..., *, n: None = ..., stream: Literal[False] = ...,
                 **options: "Unpack[GenerateOptions]") -> Generation: ...
    @overload
    def generate(self, prompt: "Optional[Prompt]" = ..., *, n: int, stream: Literal[False] = ...,
                 **options: "Unpack[GenerateOptions]") -> List[Generation]: ...
    @overload
    def generate(self, prompt: "Optional[Prompt]" = ..., *, n: Optional[int] = ..., stream: Literal[True],
                 **options: "Unpack[GenerateOptions]") -> Iterator[Piece]: ...
    def generate(self, prompt: "Optional[Prompt]" = None, *, n: Optional[int] = None, stream: bool = False,
                 **options: Any) -> Any:
        """Goes on from here, after an optional prompt; the rest is as in :meth:`LanguageModel.generate`. The sequence has then
        read the prompt and every token of the result, unless it is full before the last; of a `stream` that is closed early,
        every token that came. With `n` it has read the prompt only: the continuations are forks of it."""
        started = self._model._start([self], [() if prompt is None else prompt], n, True, options)
        return started.pieces if stream else started.collect() if n is not None else started.collect()[0]

    def __reduce__(self) -> Any:
        raise TypeError("a sequence does not pickle: save(path) writes it, and load(path) of a sequence of the same model reads it")

    def __repr__(self) -> str:
        return f"<mhla.Sequence of {len(self)} tokens>"


class LanguageModel(Model):
    """A language model of :func:`mhla.load` or :func:`mhla.create`: tokenizer, logits, sequences, generation.

    Computation releases the GIL, and Ctrl-C ends it between two tokens or parts of a prompt. One thread at a time may use a model
    and its sequences; another one gets a RuntimeError. ``LanguageModel.load(path)`` is :func:`mhla.load` that refuses other
    kinds of models, so that type checkers know what it returns.

    Attributes:
        info: besides the sizes of every model: vocabulary, context, bos, eos, ends, attention, storage, ...

    >>> import numpy as np, mhla
    >>> model = mhla.create("lm_micro", vocab_size=64)
    >>> model.logits([1, 2, 3]).shape
    (3, 64)
    >>> sequence = model.sequence()
    >>> bool(np.allclose(sequence.feed([1, 2, 3]), model.logits([1, 2, 3])[-1], atol=1e-4))
    True
    >>> twin = sequence.fork()
    >>> model.feed([sequence, twin], [[4], [5, 6]]).shape, len(sequence), len(twin)
    ((2, 64), 4, 5)
    >>> len(model.generate([1, 2, 3], max_tokens=8, temperature=0).ids)
    8
    """

    def __init__(self, native: _mhla.Model, origin: Tuple[Any, ...]):
        super().__init__(native, origin)
        self.info.update(_mhla.lm_info(native))
        self._tokenizer: Optional[Tokenizer] = None
        self._no_tokenizer: Optional[Exception] = None
        try:  # now, because later another thread may be inside the model
            self._tokenizer = Tokenizer._of(native, self._tokenizer_path())
        except Error as error:
            self._no_tokenizer = error

    def __repr__(self) -> str:
        return f"mhla.LanguageModel({self.info['attention']}, {self.info['layers']} layers, {self.info['parameters']:,} parameters)"

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the weights. A model without one raises the reason."""
        if self._tokenizer is None:
            raise self._no_tokenizer or Error("the model has no tokenizer")
        return self._tokenizer

    def _tokenizer_path(self) -> Optional[str]:
        """The file or folder that the tokenizer is read from: the .gguf, else beside the weights or up to two folders above."""
        weights = self.info["weights"]
        if weights is None:  # created, or one file with all
            return self._origin[1] if self._origin[0] == "load" else None
        folder = os.path.abspath(weights if os.path.isdir(weights) else os.path.dirname(weights))
        for place in (folder, os.path.join(folder, ".."), os.path.join(folder, "..", "..")):
            if any(os.path.isfile(os.path.join(place, name)) for name in _TOKENIZERS):
                return os.path.normpath(place)
        return None

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, and copies the tokenizer's files where the model has some beside it."""
        super().save(folder)
        source = self._tokenizer_path()
        if source is None or not os.path.isdir(source):
            return
        for name in _TOKENIZERS + _BESIDE:
            path, to = os.path.join(source, name), os.path.join(folder, name)
            if os.path.isfile(path) and not (os.path.exists(to) and os.path.samefile(path, to)):
                shutil.copyfile(path, to)

    # ---- logits ----

    @overload
    def logits(self, ids: "Tensor") -> "Tensor": ...
    @overload
    def logits(self, ids: "Union[Seq[int], NDArray[Any]]") -> "NDArray[np.float32]": ...
    @overload
    def logits(self, ids: "Seq[Ids]") -> "List[NDArray[np.float32]]": ...
    def logits(self, ids: Any) -> Any:
        """Logits after each token: [T,vocabulary] of ids [T], [B,T,vocabulary] of an array [B,T], a list of arrays of a list of
        sequences, which may differ in length. A torch tensor gives a tensor."""
        a = ids if _is_batch(ids) else _as_numpy(ids) if not isinstance(ids, (str, bytes)) else ids
        rows = [_ids(x, f"ids[{i}]") for i, x in enumerate(a)] if _is_batch(ids) or np.ndim(a) == 2 else [_ids(a)]
        if any(len(row) == 0 for row in rows):
            raise Error("ids is empty: there is nothing to predict from")
        found: Any = self._feed([self.sequence() for _ in rows], rows, True)
        if _is_batch(ids):
            return found
        found = np.stack(found) if np.ndim(a) == 2 else found[0]
        return _result_like(ids, found) if hasattr(ids, "detach") else found

    def forward(self, images: Any, times: Any = None, labels: Any = None) -> Any:
        """:meth:`logits` of ids."""
        if times is not None or labels is not None:
            raise Error(f"{self.info['name']} is a language model: it takes ids alone")
        return self.logits(images)

    __call__ = forward

    def logprobs(self, ids: "Ids") -> "NDArray[np.float32]":
        """log p(ids[i+1] | ids[:i+1]) for i = 0 .. T-2: natural logarithms, [T-1]. Their sum is the log-likelihood of the text
        after its first token."""
        a = _ids(ids)
        if len(a) < 2:
            raise Error(f"ids has {len(a)} tokens: the probability of a token is asked after another one")
        found = np.empty(len(a) - 1, np.float32)
        self._feed([self.sequence()], [a[:-1]], None, [(np.ascontiguousarray(a[1:]), found)])
        return found

    # ---- sequences ----

    def sequence(self, *, beyond: str = "error", max_tokens: int = 0) -> Sequence:
        """An empty sequence.

        Args:
            beyond: what MHLA layers do past the length that they were trained for: "error", "clamp" (by distance) or "chunk"
                (longer chunks, for `max_tokens` tokens at most).
            max_tokens: a limit of its length; 0 is none.
        """
        if beyond not in BEYONDS:
            raise Error(f"beyond is {beyond!r}: expected one of {', '.join(BEYONDS)}")
        return Sequence(self, _mhla.Sequence(self._native, BEYONDS.index(beyond), max_tokens))

    @overload
    def feed(self, sequences: Seq[Sequence], ids: "Seq[Ids]", *, all: Literal[False] = ...) -> "NDArray[np.float32]": ...
    @overload
    def feed(self, sequences: Seq[Sequence], ids: "Seq[Ids]", *, all: Literal[True]) -> "List[NDArray[np.float32]]": ...
    def feed(self, sequences: Seq[Sequence], ids: "Seq[Ids]", *, all: bool = False) -> Any:
        """Reads tokens with many sequences in one step, the decode batch of a server: ids[i] goes to sequences[i]; lengths are
        free. Returns logits [n,vocabulary] after the last token of each, or with `all` a list of [T,vocabulary] after each
        token. If it fails, no sequence has changed."""
        rows = [_ids(x, f"ids[{i}]") for i, x in enumerate(ids)]
        for i, s in enumerate(sequences):
            if not isinstance(s, Sequence):
                raise TypeError(f"sequences[{i}] is {type(s).__name__}: expected mhla.Sequence")
        if len(rows) != len(sequences):
            raise Error(f"ids has {len(rows)} rows: there are {len(sequences)} sequences")
        found = self._feed(list(sequences), rows, all)
        return found if all else np.stack(found) if found else np.empty((0, self.info["vocabulary"]), np.float32)

    def _feed(self, sequences: "List[Sequence]", rows: "List[NDArray[np.int32]]", all: Optional[bool],
              scores: "Optional[List[Tuple[NDArray[np.int32], NDArray[np.float32]]]]" = None) -> "List[NDArray[np.float32]]":
        """`all` None: no logits at all. scores: targets and where their log-probabilities go."""
        V = self.info["vocabulary"]
        for i, row in enumerate(rows):
            if len(row) == 0:
                raise Error(f"ids{f'[{i}]' if len(rows) > 1 else ''} is empty: expected 1 token or more")
        found = [] if all is None else [np.empty((len(row), V) if all else V, np.float32) for row in rows]
        before, read = [len(s) for s in sequences], [0] * len(rows)
        try:
            while True:
                live = [i for i, row in enumerate(rows) if read[i] < len(row)]
                if not live:
                    return found
                feeds = []
                for i in live:
                    at, n = read[i], min(max(_PART // len(live), 1), len(rows[i]) - read[i])
                    last = at + n == len(rows[i])
                    targets, scored = (x.ctypes.data + 4 * at for x in scores[i]) if scores else (0, 0)
                    feeds.append((sequences[i]._native, rows[i].ctypes.data + 4 * at, n,
                                  found[i].ctypes.data if all is False and last else 0,
                                  found[i].ctypes.data + 4 * V * at if all else 0, targets, scored))
                    read[i] += n
                _mhla.lm_feed(self._native, feeds)
        except BaseException:
            for sequence, tokens in zip(sequences, before):
                if len(sequence) > tokens:
                    sequence._native.rollback(tokens)
            raise

    # ---- generation ----

    @overload
    def generate(self, prompt: "Prompt", *, n: None = ..., stream: Literal[False] = ...,
                 **options: "Unpack[GenerateOptions]") -> Generation: ...
    @overload
    def generate(self, prompt: "Prompt", *, n: int, stream: Literal[False] = ...,
                 **options: "Unpack[GenerateOptions]") -> List[Generation]: ...
    @overload
    def generate(self, prompt: "Prompt", *, n: Optional[int] = ..., stream: Literal[True],
                 **options: "Unpack[GenerateOptions]") -> Iterator[Piece]: ...
    def generate(self, prompt: "Prompt", *, n: Optional[int] = None, stream: bool = False, **options: Any) -> Any:
        """Continues a prompt.

        Args:
            prompt: text, which the tokenizer encodes with its special tokens; or ids; or a conversation, a list of
                ``{"role": ..., "content": ...}``, which goes through the chat template.
            n: returns a list of n continuations with the seeds seed, seed + 1, ...; the prompt is read once.
            stream: an iterator of :class:`mhla.Piece` as they come, instead of the whole.
            max_tokens: largest number of new tokens (256); None: until the model's end token.
            temperature, top_k, top_p, min_p: 0.8, 40, 0.95, 0.05 as in the program; temperature 0 always takes the likeliest
                token, top_k 0, top_p 1 and min_p 0 switch these off.
            repeat_penalty, repeat_last: divides what is in the last 64 tokens; 1 is off, repeat_last -1 looks at all.
            presence_penalty, frequency_penalty: subtracted from the logits of tokens that came before.
            bias: added to the logits of these ids; ``-math.inf`` forbids one.
            order: "llama": top-k, top-p, min-p, then temperature; "hf": temperature first.
            seed: the same seed, the same text; None: another one each time (:attr:`Generation.seed` has it).
            stop: a text or texts that end it and are not part of the result.
            stop_ids: tokens that end it, besides the model's own.
            ignore_eos: the model's own end tokens are never drawn.
            logprobs: number of likeliest tokens to return for each token.

        Returns:
            A :class:`mhla.Generation` with text, ids, finish, logprobs; with `n` a list of them; with `stream` an iterator.
        """
        started = self._start([self.sequence()], [prompt], n, False, options)
        return started.pieces if stream else started.collect() if n is not None else started.collect()[0]

    def generate_batch(self, prompts: "Seq[Prompt]", **options: "Unpack[GenerateOptions]") -> List[Generation]:
        """Continues many prompts side by side: each step reads one token of each, so that the weights are read once for all.
        Every prompt has the same seed and options; see :meth:`generate`."""
        return self._start([self.sequence() for _ in prompts], list(prompts), None, False, dict(options)).collect()

    def _encode(self, sequence: Sequence, prompt: Any) -> "NDArray[np.int32]":
        """A prompt as ids; at the beginning of a text with special tokens, and never empty."""
        if isinstance(prompt, str):
            ids = _ids(self.tokenizer.encode(prompt, special=len(sequence) == 0))
        elif isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], Mapping):
            ids = _ids(self.tokenizer.encode(self.tokenizer.chat(prompt), special=False))
        else:
            ids = _ids(prompt, "prompt")
        if len(ids) == 0 and len(sequence) == 0:
            begin = self.info["bos"] if self.info["bos"] >= 0 else self.info["eos"]
            if begin < 0:
                raise Error("the prompt is empty, and the model has no token to begin with")
            ids = np.array([begin], np.int32)
        return ids

    def _start(self, sequences: List[Sequence], prompts: List[Any], n: Optional[int], keep: bool, given: Dict[str, Any]) -> "_Started":
        """Reads the prompts and opens generations, one of each sequence or n of the only one. keep: the sequences are the
        caller's; they are as before if this fails, and read the last token, too."""
        if n is not None and n < 1:
            raise Error(f"n is {n}: expected 1 or more")
        options = _Options(**given)
        rows = [self._encode(s, p) for s, p in zip(sequences, prompts)]
        before = [len(s) for s in sequences]
        try:
            many = [i for i, row in enumerate(rows) if len(row) > 1]
            self._feed([sequences[i] for i in many], [rows[i][:-1] for i in many], None)
            last = [row[-1:] for row in rows]  # gives each continuation what it draws its first token from
            if n is None:
                seeds, used = [options.seed] * len(rows), sequences
            else:
                seeds, used, last = [options.seed + i for i in range(n)], [sequences[0].fork() for _ in range(n)], last * n
                if keep and len(rows[0]):
                    self._feed(sequences, [rows[0][-1:]], None)
            opened = [options.open(s, ids, seed) for s, ids, seed in zip(used, last, seeds)]
        except BaseException:
            for sequence, tokens in zip(sequences, before):
                if len(sequence) > tokens:
                    sequence._native.rollback(tokens)
            raise
        return _Started(self._pieces(used, opened, keep and n is None), seeds)

    def _pieces(self, sequences: List[Sequence], opened: List[_mhla.Generation], keep: bool) -> Iterator[Piece]:
        """Steps them all until each has finished."""
        live, seen = list(range(len(opened))), -1
        try:
            while live:
                pieces = _mhla.lm_step(self._native, [opened[i] for i in live])
                for i, (text, id, logprob, top, finish, stopped_by) in zip(live, pieces):
                    seen = id
                    if finish:
                        opened[i].close()
                        seen = -1
                        if keep and id >= 0:
                            self._read_last(sequences[i], id)
                    yield Piece(i, text, id if id >= 0 else None, logprob, top, _FINISHES[finish], stopped_by)
                live = [i for i, piece in zip(live, pieces) if not piece[4]]
        except GeneratorExit:  # closed half-way: whoever kept the sequence has seen this token
            if keep and seen >= 0:
                opened[0].close()
                self._read_last(sequences[0], seen)
            raise
        finally:
            for generation in opened:
                generation.close()

    def _read_last(self, sequence: Sequence, id: int) -> None:
        """The token that was drawn last, and that nothing has read yet."""
        try:
            self._feed([sequence], [np.array([id], np.int32)], None)
        except Error:
            pass  # it ended because the sequence is full


class _Started(NamedTuple):
    """Generations under way, and the seed of each."""

    pieces: Iterator[Piece]
    seeds: List[int]

    def collect(self) -> List[Generation]:
        results = [Generation(seed=seed) for seed in self.seeds]
        for piece in self.pieces:
            results[piece.index]._add(piece)
        return results


class _Options:
    """The options of a generation, checked as far as Python has to, in the order of the extension's arguments."""

    def __init__(self, max_tokens: Optional[int] = 256, temperature: float = 0.8, top_k: int = 40, top_p: float = 0.95,
                 min_p: float = 0.05, repeat_penalty: float = 1.0, repeat_last: int = 64, presence_penalty: float = 0.0,
                 frequency_penalty: float = 0.0, bias: Optional[Mapping[int, float]] = None, order: str = "llama",
                 seed: Optional[int] = None, stop: Union[str, Iterable[str]] = (), stop_ids: Any = (), ignore_eos: bool = False,
                 logprobs: int = 0):
        if order not in _ORDERS:
            raise Error(f"order is {order!r}: expected llama or hf")
        if seed is not None and not 0 <= seed < 2**64:
            raise Error(f"seed is {seed}: expected 0 to 2**64 - 1")
        if not temperature >= 0:
            raise Error(f"temperature is {temperature}: expected 0 or more")
        if not 0 <= top_p <= 1:
            raise Error(f"top_p is {top_p}: expected 0 to 1")
        if max_tokens is not None and max_tokens < 1:
            raise Error(f"max_tokens is {max_tokens}: expected 1 or more, or None for no limit")
        self.seed: int = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        self.stop = [stop] if isinstance(stop, str) else list(stop)
        for text in self.stop:
            if not isinstance(text, str):
                raise TypeError(f"stop is {text!r}: expected a str, or several")
        self.stop_ids = _ids(stop_ids, "stop_ids")
        self.bias = np.array([(operator.index(id), value) for id, value in (bias or {}).items()], [("id", np.int32), ("bias", np.float32)])
        # the library's top_p 0 is "all"; here it is the likeliest alone, as in the program
        self.numbers = ((temperature, top_k, top_p if top_p != 0 else 1e-300, min_p),
                        (repeat_penalty, repeat_last, presence_penalty, frequency_penalty))
        self.order, self.rest = _ORDERS.index(order), (ignore_eos, logprobs)
        self.max_tokens = max_tokens or 0

    def open(self, sequence: Sequence, prompt: "NDArray[np.int32]", seed: int) -> _mhla.Generation:
        return _mhla.Generation(sequence._native, (prompt.ctypes.data, len(prompt)), *self.numbers,
                                (self.bias.ctypes.data, len(self.bias)), self.order, seed % 2**64, self.max_tokens, self.stop,
                                (self.stop_ids.ctypes.data, len(self.stop_ids)), *self.rest)
