"""A user's program over the whole public API, which `mypy --strict` checks and nobody runs (test_types.py). assert_type says
what each call returns: arrays of what was given, never Any."""
import multiprocessing
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import assert_type

import mhla
import mhla.nn

F32 = NDArray[np.float32]
Array = NDArray[Any]


def operators(q: Array, k: Array, v: Array, tq: Tensor, tk: Tensor, tv: Tensor) -> None:
    mix = mhla.mix_init("paper", (2, 2))
    assert_type(mix, F32)
    assert_type(mhla.attention(q, k, v, mix, (4, 4), (2, 2)), Array)
    assert_type(mhla.attention(q, k, v, mix, (4, 4), (2, 2), key_grid=(16,), key_blocks=(4,)), Array)
    assert_type(mhla.attention(tq, tk, tv, torch.from_numpy(mix), (4, 4), (2, 2)), Tensor)
    rope = mhla.rope_table(16, 8)
    assert_type(rope, tuple[F32, F32])
    assert_type(mhla.softmax_attention(tq, tk, tv, causal=True, rope=rope), Tensor)
    assert_type(mhla.softmax_attention(q, k, v), Array)
    assert_type(mhla.causal_attention(q, k, v, mhla.mix_init("causal", 4), chunk_size=4, output_final_state=True)[0], Array)
    assert_type(mhla.causal_attention(tq, tk, tv, mix), tuple[Tensor, None])
    assert_type(mhla.causal_attention(tq, tk, tv, mix, 0.5, None, True, beyond="clamp"), tuple[Tensor, mhla.CausalState])
    o, state = mhla.causal_attention(q, k, v, mix, output_final_state=True, denominator="eq4")
    assert_type(state, mhla.CausalState)
    assert_type(mhla.causal_attention(q, k, v, mix, initial_state=state, output_final_state=len(q) > 1),
                tuple[Array, Optional[mhla.CausalState]])
    assert_type(mhla.linear_attention(q, k, v), tuple[Array, None])
    assert_type(mhla.linear_attention(tq, tk, tv, feature="elu")[0], Tensor)
    assert_type(mhla.linear_attention(tq, tk, tv, causal=True, normalize=False, output_final_state=True), tuple[Tensor, mhla.CausalState])
    assert_type(mhla.focused_attention(tq, tk, tv, torch.zeros(8)), Tensor)
    assert_type(mhla.inline_attention(q, k, v), Array)
    assert_type(mhla.mala_attention(tq, tk, tv), Tensor)
    assert_type(mhla.rala_attention(q, k, v), Array)
    assert_type(mhla.mix_clip(mix), F32)
    assert_type(mhla.mix_clip(torch.from_numpy(mix)), Tensor)
    assert_type(mhla.mix_names(), list[str])


def language_operators(q: Tensor, g: Tensor, w: Tensor) -> None:
    assert_type(mhla.ops.chunk_gla(q, q, q, g), tuple[Tensor, Optional[Tensor]])
    assert_type(mhla.ops.fused_recurrent_simple_gla(q, q, q, g, scale=0.5, reverse=True), tuple[Tensor, Optional[Tensor]])
    assert_type(mhla.ops.chunk_retention(q, q, q, output_final_state=True)[0], Tensor)
    assert_type(mhla.ops.chunk_gated_delta_rule(q, q, q, g, g, use_qk_l2norm_in_kernel=True)[0], Tensor)
    assert_type(mhla.ops.causal_conv1d(q, w, activation="silu")[0], Tensor)
    assert_type(mhla.ops.selective_scan(q, q, w, q, q)[0], Tensor)
    layer = mhla.nn.GatedLinearAttention(hidden_size=32, num_heads=2, layer_idx=0)
    cache = mhla.nn.Cache()
    y: Tensor = layer(q, past_key_values=cache, use_cache=True)[0]
    assert_type(cache.get_seq_length(), int)


def pieces(state: mhla.CausalState) -> None:
    assert_type(state.detach(), mhla.CausalState)
    assert_type(state.take(0), mhla.CausalState)


def streaming(q: Array, t: Tensor) -> None:
    state = mhla.State(None, heads=2, key_dim=8, value_dim=8)
    assert_type(state.step(q, q, q), Array)
    assert_type(state.step(t, t, t), Tensor)
    assert_type(mhla.step([state, state.fork()], q, q, q), Array)
    state.rollback(state.tokens)
    state.load(state.save())


def machine() -> None:
    assert_type(mhla.info(), dict[str, Any])
    mhla.set_num_threads(2)
    mhla.set_isa(None)
    print(mhla.__version__)


def models(path: pathlib.Path, images: F32, tensor: Tensor) -> None:
    model = mhla.load(path, weights="ema")
    assert_type(model, mhla.Model)
    assert_type(model(images), F32)
    assert_type(model(tensor), Tensor)
    assert_type(model.forward(tensor, [1.0], [2]), Tensor)
    assert_type(model.classify("x.png"), list[tuple[str, float]])
    assert_type(model.state_dict(), dict[str, F32])
    assert_type(model.classes, list[str])
    model.save(path)
    assert_type(mhla.create("deit_nano", 3, classes=10), mhla.Model)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(model.forward, (images,))
    pickle.dumps(model)


def language(path: str, ids: NDArray[np.int64], tensor: Tensor) -> str:
    model = mhla.LanguageModel.load(path, storage="bfloat16")
    assert_type(model, mhla.LanguageModel)
    tokenizer = model.tokenizer
    assert_type(tokenizer, mhla.Tokenizer)
    assert_type(tokenizer.encode("hello", special=False), list[int])
    assert_type(tokenizer.decode(ids), str)
    assert_type(tokenizer.decode(5, skip_special=True), str)
    assert_type(tokenizer.eos, Optional[int])
    assert_type(tokenizer.chat([{"role": "user", "content": "hi"}]), str)
    assert_type(model.logits(ids), F32)
    assert_type(model.logits([1, 2]), F32)
    assert_type(model.logits(tensor), Tensor)
    assert_type(model.logits([[1, 2], [3]]), list[F32])
    assert_type(model.logprobs([1, 2]), F32)
    sequence = model.sequence(beyond="clamp")
    assert_type(sequence, mhla.Sequence)
    assert_type(sequence.feed(ids), F32)
    assert_type(model.feed([sequence, sequence.fork()], [[1], ids]), F32)
    assert_type(model.feed([sequence], [[1]], all=True), list[F32])
    assert_type(sequence.ids, NDArray[np.int32])
    sequence.rollback(len(sequence) - 1)
    sequence.save("state")
    sequence.load(pathlib.Path("state"))
    assert_type(model.generate("hello", max_tokens=5, temperature=0.5, stop=["x"], seed=1), mhla.Generation)
    assert_type(model.generate([1, 2], n=3), list[mhla.Generation])
    assert_type(model.generate([{"role": "user", "content": "hi"}], bias={5: -1.0}, order="hf"), mhla.Generation)
    assert_type(model.generate_batch(["a", [1, 2]], top_k=5), list[mhla.Generation])
    assert_type(sequence.generate(max_tokens=None), mhla.Generation)
    pieces = model.generate("hello", stream=True)
    assert_type(pieces, Iterator[mhla.Piece])
    return "".join(piece.text for piece in pieces)


def diffusion(model: mhla.Model, x: F32, tensor: Tensor) -> None:
    sampler = mhla.diffusion.Sampler("flow", "euler", 20, shift=3.0)
    for time in sampler:
        assert_type(time, float)
        x = sampler.step(x, model(x, np.full(len(x), time), [0]), mhla.diffusion.noise([1], (3, 8, 8)))
    assert_type(sampler.step(tensor, tensor), Tensor)
    assert_type(sampler.times, NDArray[np.float64])


def autoencoder(path: str, images: F32) -> None:
    vae = mhla.Autoencoder.load(path)
    assert_type(vae, mhla.Autoencoder)
    mean, deviation = vae.encode(images, memory=1 << 30)
    vae.decode(mean + deviation)


def pipelines(path: pathlib.Path) -> None:
    pipeline = mhla.Pipeline(path, vae="vae", storage="bfloat16")
    assert_type(pipeline("a cat", count=2, size=(512, 512), guidance=4.5), F32)
    assert_type(pipeline(["a cat", "a dog"], "rain", steps=20, progress=print), F32)


def modules(path: str, x: Tensor) -> None:
    net = mhla.nn.DiT.load(path)
    assert_type(net, mhla.nn.DiT)
    assert_type(net.forward(x, x, x), Tensor)
    assert_type(mhla.nn.DeiT.load(path), mhla.nn.DeiT)
    assert_type(mhla.nn.DiTAttention(32, 2).forward(x), Tensor)
    layer = mhla.nn.LMAttention(32, num_heads=2)
    assert_type(layer.forward(x), Tensor)
    y, state = layer.forward(x, output_final_state=True)
    assert_type(state, mhla.nn.LMState)
    assert_type(layer.forward(y, state, True, past=None), tuple[Tensor, mhla.nn.LMState])
    assert_type(mhla.nn.LMLinearAttention(32, 2).forward(x, output_final_state=True), tuple[Tensor, mhla.CausalState])


def errors() -> None:
    try:
        mhla.load("nothing")
    except mhla.FileError as error:
        print(error.filename)
    except mhla.Error as error:
        print(error)
