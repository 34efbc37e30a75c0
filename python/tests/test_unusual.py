"""Tensors that are not ordinary ones: negated views, other devices and layouts, nothing at all; modes of PyTorch; forked
processes. Each works, or is refused in one sentence."""
import copy
import io
import multiprocessing
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import mhla
import mhla.nn

MIX, CAUSAL = (torch.from_numpy(mhla.mix_init(name, blocks)) for name, blocks in (("paper", (2, 2)), ("causal", 4)))
OFFSETS, ORDER = torch.tensor([0, 3, 7, 12, 16]), torch.arange(16).flip(0)

# each operator with q, k, v, and its options
CALLS = {
    "attention": lambda q, k, v: mhla.attention(q, k, v, MIX.to(q.device), (4, 4), (2, 2)),
    "offsets": lambda q, k, v: mhla.attention(q, k, v, MIX.to(q.device), block_offsets=OFFSETS, permutation=ORDER),
    "cross": lambda q, k, v: mhla.attention(q, k, v, MIX.to(q.device), (4, 4), (2, 2), key_grid=16, key_blocks=4),
    "causal": lambda q, k, v: mhla.causal_attention(q, k, v, CAUSAL.to(q.device), chunk_size=4)[0],
    "linear": lambda q, k, v: mhla.linear_attention(q, k, v)[0],
    "linear-causal": lambda q, k, v: mhla.linear_attention(q, k, v, causal=True, feature="elu")[0],
    "softmax": lambda q, k, v: mhla.softmax_attention(q, k, v, causal=True),
    "focused": lambda q, k, v: mhla.focused_attention(q, k, v, torch.zeros(16, device=q.device)),
    "inline": lambda q, k, v: mhla.inline_attention(q, k, v),
    "mala": lambda q, k, v: mhla.mala_attention(q, k, v),
    "rala": lambda q, k, v: mhla.rala_attention(q, k, v),
}
EACH = pytest.mark.parametrize("name", CALLS)


def problem(batch=2, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(batch, 16, 2, 8).to(dtype) for _ in range(3)]


def negated():
    z = torch.randn(3, 2, 16, 2, 8, dtype=torch.complex64).conj().imag
    assert z.is_neg()
    return z


# ---- Views and layouts -------------------------------------------------------------------------------------------------

@EACH
def test_negated_views_are_negated(name):
    z = negated()
    assert torch.equal(CALLS[name](*z), CALLS[name](*z.resolve_neg()))
    results = []
    for given in (z, z.resolve_neg()):
        leaves = [x.detach().requires_grad_() for x in given]
        do = torch.randn(2, 16, 2, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(1)).conj().imag
        results.append(torch.autograd.grad(CALLS[name](*leaves), leaves, do if given is z else do.resolve_neg()))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_a_negated_matrix_state_and_stream():
    z, (q, k, v) = negated(), problem()
    m = torch.randn(4, 4, dtype=torch.complex64).conj().imag
    assert torch.equal(mhla.attention(q, k, v, m, (4, 4), (2, 2)), mhla.attention(q, k, v, m.resolve_neg(), (4, 4), (2, 2)))
    _, state = mhla.causal_attention(q, k, v, CAUSAL, output_final_state=True, chunk_size=8)
    turned = torch.complex(torch.zeros_like(state.summaries), -state.summaries).conj().imag
    assert turned.is_neg()
    a, b = (mhla.causal_attention(q, k, v, CAUSAL, initial_state=s, chunk_size=8)[0] for s in (state, state._replace(summaries=turned)))
    assert torch.equal(a, b)
    streams = [mhla.State(None, 2, 8, 8) for _ in range(2)]
    assert torch.equal(streams[0].step(*z[:, 0]), streams[1].step(*z.resolve_neg()[:, 0]))


@EACH
def test_complex_numbers_are_refused(name):
    q, k, v = problem()
    for odd in (q.to(torch.complex64), q.to(torch.complex64).conj()):
        with pytest.raises(mhla.Error, match="q has dtype torch.complex64"):
            CALLS[name](odd, k, v)
    with pytest.raises(mhla.Error, match="mix has dtype torch.complex64: expected real numbers"):
        mhla.attention(q, k, v, MIX.to(torch.complex64), (4, 4), (2, 2))
    with pytest.raises(mhla.Error, match="expected integers"):
        mhla.causal_attention(q[:1], k[:1], v[:1], CAUSAL, cu_seqlens=torch.tensor([False, True]))


@EACH
def test_other_layouts_are_refused_in_a_sentence(name):
    q, k, v = problem()
    with pytest.raises(mhla.Error, match="q is a sparse_coo tensor: expected a dense one"):
        CALLS[name](q.to_sparse(), k, v)
    with pytest.raises(mhla.Error, match="v is a _?mkldnn tensor: expected a dense one"):
        CALLS[name](q, k, v.to_mkldnn())
    with pytest.raises(mhla.Error, match="k is a quantised tensor: expected a dense one"):
        CALLS[name](q, torch.quantize_per_tensor(k, 0.1, 0, torch.qint8), v)
    for layout in (torch.strided, torch.jagged):
        ragged = torch.nested.nested_tensor([torch.randn(n, 2, 8) for n in (3, 5)], layout=layout)
        with pytest.raises(mhla.Error, match="q is a nested tensor: pack the sequences and pass cu_seqlens"):
            CALLS[name](ragged, ragged, ragged)


@EACH
def test_expanded_overlapping_and_empty(name):
    base = torch.randn(40)
    overlapping = [base.as_strided((2, 16, 2, 8), (3, 1, 2, 1), i) for i in range(3)]
    assert torch.equal(CALLS[name](*overlapping), CALLS[name](*(x.contiguous() for x in overlapping)))
    leaves = [x[:0].clone().requires_grad_() for x in problem()]
    o = CALLS[name](*leaves)
    assert o.shape == (0, 16, 2, 8)
    assert all(g.shape == (0, 16, 2, 8) for g in torch.autograd.grad(o.sum(), leaves))
    if name != "offsets":
        assert CALLS_NUMPY[name](*(np.zeros((0, 16, 2, 8), np.float32) for _ in range(3))).shape == (0, 16, 2, 8)
    with pytest.raises(mhla.Error, match="only the batch may be empty"):
        CALLS[name](*(x[:, :0] for x in problem()))


CALLS_NUMPY = {
    "attention": lambda q, k, v: mhla.attention(q, k, v, MIX.numpy(), (4, 4), (2, 2)),
    "cross": lambda q, k, v: mhla.attention(q, k, v, MIX.numpy(), (4, 4), (2, 2), key_grid=16, key_blocks=4),
    "causal": lambda q, k, v: mhla.causal_attention(q, k, v, CAUSAL.numpy(), chunk_size=4)[0],
    "linear": lambda q, k, v: mhla.linear_attention(q, k, v)[0],
    "linear-causal": lambda q, k, v: mhla.linear_attention(q, k, v, causal=True, feature="elu")[0],
    "softmax": lambda q, k, v: mhla.softmax_attention(q, k, v, causal=True),
    "focused": lambda q, k, v: mhla.focused_attention(q, k, v, np.zeros(16, np.float32)),
    "inline": mhla.inline_attention, "mala": mhla.mala_attention, "rala": mhla.rala_attention,
}


def test_an_empty_batch_still_gives_the_matrix_a_gradient():
    mix = MIX.clone().requires_grad_()
    mhla.attention(*(x[:0] for x in problem()), mix, (4, 4), (2, 2)).sum().backward()
    assert (mix.grad == 0).all()
    _, state = mhla.causal_attention(*(x[:0] for x in problem()), CAUSAL, output_final_state=True, chunk_size=4)
    assert state.summaries.shape == (0, 4, 2, 8, 8)


# ---- Other devices -----------------------------------------------------------------------------------------------------

@EACH
def test_meta_and_fake_tensors_have_shapes(name):
    q, k, v = (x.to("meta") for x in problem())
    if name != "offsets":  # whose division is read
        assert CALLS[name](q, k, v).shape == (2, 16, 2, 8) and CALLS[name](q, k, v).device.type == "meta"
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert CALLS[name](*(torch.empty(2, 16, 2, 8) for _ in range(3))).shape == (2, 16, 2, 8)


def test_another_device_is_computed_by_plain_pytorch():
    """Operators, states, modules, with gradients; one note in all."""
    script = pathlib.Path(__file__).with_name("other_device.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600)
    assert done.stdout.split("\n") == ["k is on cpu, q on toy:0: expected one device",
                                       "mhla has kernels for the CPU only: tensors on toy:0 are computed by plain PyTorch", ""], done.stderr


def test_two_devices_are_refused_in_a_sentence():
    q, k, v = problem()
    with pytest.raises(mhla.Error, match="k is on meta, q on cpu: expected one device"):
        mhla.inline_attention(q, k.to("meta"), v)


class Elsewhere(torch.Tensor):
    """Numbers that are not on the CPU, for whoever asks; .cpu() brings them."""

    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device="meta")

    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].x)
        assert func is torch.ops.aten._to_copy.default
        return args[0].x.clone()


@pytest.mark.filterwarnings("ignore:mhla has kernels for the CPU only")
def test_what_is_computed_on_the_cpu_comes_back():
    x = torch.randn(1, 3, 4, 4)
    sampler = mhla.diffusion.Sampler(method="ddim", steps=3)
    assert sampler.step(Elsewhere(x), Elsewhere(x)).is_meta and sampler.predicted.is_meta
    state = mhla.State(None, heads=3, key_dim=4, value_dim=4)
    assert state.step(*[Elsewhere(x.transpose(1, 2).contiguous())] * 3).is_meta
    assert mhla.create("lm_micro", vocab_size=9).logits(Elsewhere(torch.tensor([1, 2]))).is_meta


class First(torch.nn.Module):
    """Of fla's three results the first."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


MODULES = {
    "deit": lambda: (mhla.nn.DeiTAttention(24, 3, (8, 8), (2, 2)), (2, 64, 24)),
    "dit": lambda: (mhla.nn.DiTAttention(24, 3, (8, 8), (2, 2), dropout=0.0), (2, 64, 24)),
    "vlt": lambda: (mhla.nn.VLTAttention(24, 2, (6, 8), (3, 2)), (2, 48, 24)),
    "linear": lambda: (mhla.nn.LinearAttention(24, 3), (2, 48, 24)),
    "softmax": lambda: (mhla.nn.SoftmaxAttention(24, 3), (2, 48, 24)),
    "wan": lambda: (mhla.nn.WanAttention(32, 2, (3, 4, 6), (3, 2, 3), gated=True, lepe=True), (1, 72, 32)),
    "wan-softmax": lambda: (mhla.nn.WanSoftmaxAttention(32, 2, (3, 4, 6)), (1, 72, 32)),
    "wan-linear": lambda: (mhla.nn.WanLinearAttention(32, 2, (3, 4, 6)), (1, 72, 32)),
    "lm": lambda: (mhla.nn.LMAttention(32, num_heads=2, use_short_conv=True), (2, 100, 32)),
    "lm-softmax": lambda: (mhla.nn.LMSoftmaxAttention(32, 4, 2), (2, 100, 32)),
    "lm-linear": lambda: (mhla.nn.LMLinearAttention(32, 2), (2, 100, 32)),
    "gla": lambda: (First(mhla.nn.GatedLinearAttention(hidden_size=32, num_heads=2)), (2, 6, 32)),
    "retnet": lambda: (First(mhla.nn.MultiScaleRetention(hidden_size=32, num_heads=2)), (2, 6, 32)),
    "gated-deltanet": lambda: (First(mhla.nn.GatedDeltaNet(hidden_size=32, head_dim=12, num_heads=2)), (2, 6, 32)),
    "mamba": lambda: (First(mhla.nn.Mamba(hidden_size=32, intermediate_size=64)), (2, 6, 32)),
    "mamba2": lambda: (First(mhla.nn.Mamba2(hidden_size=32, head_dim=16, state_size=8)), (2, 6, 32)),
}
EACH_MODULE = pytest.mark.parametrize("name", MODULES)


# ---- Modes -------------------------------------------------------------------------------------------------------------

@EACH
@pytest.mark.parametrize("kinds", ["float32", "bfloat16", "float16", "mixed"])
def test_autocast(name, kinds):
    q, k, v = problem()
    if kinds == "mixed":
        given = q, k.bfloat16(), v.half()
    else:
        given = [x.to(getattr(torch, kinds)) for x in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16):
        o = CALLS[name](*given)
    assert o.dtype == (torch.bfloat16 if kinds == "bfloat16" else torch.float32)
    assert (o.float() - CALLS[name](q, k, v)).abs().max() < 0.1
    if kinds == "mixed":
        with pytest.raises(mhla.Error, match="has dtype"):
            CALLS[name](*given)


@EACH_MODULE
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_modules_under_autocast(name, dtype):
    torch.manual_seed(0)
    layer, shape = MODULES[name]()
    x = torch.randn(shape)
    with torch.autocast("cpu", dtype):
        y = layer(x)
        y.float().square().sum().backward()
    assert (y.float() - layer(x)).abs().mean() < 0.05 * layer(x).abs().mean()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@EACH
def test_inference_mode_and_deterministic_algorithms(name):
    q, k, v = problem()
    expected = CALLS[name](q, k, v)
    with torch.inference_mode():
        made = [x.clone() for x in (q, k, v)]
        assert torch.equal(CALLS[name](*made), expected) and torch.equal(CALLS[name](q, k, v), expected)
    assert torch.equal(CALLS[name](*made), expected)
    torch.use_deterministic_algorithms(True)
    try:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        o = CALLS[name](*leaves)
        assert torch.equal(o, expected) and all(g.isfinite().all() for g in torch.autograd.grad(o.sum(), leaves))
    finally:
        torch.use_deterministic_algorithms(False)


@EACH
def test_a_changed_input_is_noticed(name):
    q, k, v = problem()
    k.requires_grad_()
    o = CALLS[name](q, k, v)
    q.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@EACH_MODULE
def test_modules_are_copied_saved_and_pickled(name):
    torch.manual_seed(0)
    layer, shape = MODULES[name]()
    x = torch.randn(shape)
    y = layer(x)
    with io.BytesIO() as file:
        torch.save(layer.state_dict(), file)
        file.seek(0)
        fresh = MODULES[name]()[0]
        fresh.load_state_dict(torch.load(file, weights_only=True))
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
        assert torch.equal(twin(x), y)


@EACH_MODULE
def test_modules_made_without_memory(name):
    """On "meta" first, their weights later: the tables that are no weights have to be there, too."""
    torch.manual_seed(0)
    layer, shape = MODULES[name]()
    x = torch.randn(shape)
    y = layer(x)
    with torch.device("meta"):
        made, assigned = MODULES[name]()[0], MODULES[name]()[0]
    emptied = copy.deepcopy(layer).to("meta")
    for twin in (made, emptied):
        assert all(p.is_meta for p in twin.parameters())
        assert twin(x.to("meta")).shape == y.shape
        twin.to_empty(device="cpu").load_state_dict(layer.state_dict())
        assert torch.equal(twin(x), y)
    assigned.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(assigned(x), y)


@EACH_MODULE
def test_rotary_tables_stay_float32(name):
    """Rounded to bfloat16 the tables alone would cost as much as all weights do."""
    torch.manual_seed(0)
    layer, shape = MODULES[name]()
    x = torch.randn(shape)
    rounded = copy.deepcopy(layer).bfloat16()
    assert rounded(x.bfloat16()).dtype == torch.bfloat16
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(p.bfloat16())
    assert torch.equal(rounded.float()(x), layer(x))


@pytest.mark.parametrize("settings", [dict(), dict(class_token=True), dict(attention="mala", rope=True),
                                      dict(attention="rala", rope=True, class_token=True)])
def test_a_deit_made_without_memory(settings):
    model = mhla.create("deit_nano", classes=3, depth=1, **settings)
    net, x = mhla.nn.DeiT(model.config), torch.randn(2, 3, 28, 28)
    with torch.device("meta"):
        twin = mhla.nn.DeiT(model.config)
    twin.to_empty(device="cpu").load_state_dict(net.state_dict())
    assert torch.equal(twin(x), net(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_beyond_the_first_rotary_table(dynamic):
    torch._dynamo.reset()
    torch.manual_seed(0)
    for layer in (mhla.nn.LMAttention(16, num_heads=1, chunk_size=64, num_chunks=4, beyond="clamp"), mhla.nn.LMSoftmaxAttention(16, 2)):
        compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for T in (2049, 2500, 30):
            x = torch.randn(1, T, 16)
            assert torch.allclose(compiled(x), layer(x), atol=1e-5)


@EACH
def test_a_trace_records_the_operator(name):
    """Not its result of the moment, which the trace would then always give."""
    q, k, v = problem()
    traced = torch.jit.trace(CALLS[name], tuple(torch.randn_like(x) for x in (q, k, v)))
    assert torch.equal(traced(q, k, v), CALLS[name](q, k, v))


# ---- What is no tensor of real numbers -----------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
def test_numbers_that_would_be_lost_are_refused(kind):
    q, k, v = (kind(x.numpy()) for x in problem())
    mix = MIX.numpy()

    def refused(message, **changed):
        with pytest.raises(mhla.Error, match=message):
            mhla.attention(q, k, v, **(dict(mix=mix, grid=(4, 4), blocks=(2, 2)) | changed))

    split = dict(grid=None, blocks=None)
    refused("expected integers", **split, block_offsets=[0, 3.5, 8, 12, 16])
    refused("expected integers", **split, block_offsets=[0, 4, 8, 12, 16], permutation=np.arange(16) + 0.5)
    refused("permutation has numbers from 4294967296 to 4294967311: expected int32", **split, block_offsets=[0, 4, 8, 12, 16],
            permutation=np.arange(16) + 2**32)
    refused("mix has dtype complex64: expected real numbers", mix=mix.astype(np.complex64))
    refused("mix has dtype <U", mix=mix.astype(str))
    refused("mix is a masked array: fill it first", mix=np.ma.masked_array(mix, mix > 0))
    refused("one of these is not a name: .* feature 're lu'", feature="re lu")
    refused(r"grid is \[4.0, 4.0\], blocks is \[2, 2\]: expected whole numbers", grid=(4.0, 4.0))
    for bad in (None, 3.0, mix[0], np.ones((0, 0), np.float32)):
        with pytest.raises(mhla.Error, match="mix is missing|mix has shape"):
            mhla.causal_attention(q, k, v, bad, beyond="chunk", max_tokens=16)
    expected = mhla.causal_attention(q, k, v, mhla.mix_init("causal", 4), chunk_size=4)[0]
    assert (mhla.causal_attention(q, k, v, mhla.mix_init("causal", 4).tolist(), chunk_size=4)[0] == expected).all()
    assert mhla.attention(q, k, v, mix, np.int64(16), np.int64(4)).shape == q.shape


def test_masked_arrays_and_other_libraries_are_refused():
    q, k, v = (x.numpy() for x in problem())
    with pytest.raises(mhla.Error, match="k is a masked array: fill it first"):
        mhla.inline_attention(q, np.ma.masked_array(k, k > 0), v)
    with pytest.raises(mhla.Error, match="q is a torch tensor, q2 ndarray, k2 ndarray: all have to be of one library"):
        mhla.attention(*problem(), MIX, (4, 4), (2, 2), q2=q, k2=k)
    with pytest.raises(mhla.Error, match="cu_seqlens has numbers from 0 to 9223372036854775813: expected int64"):
        mhla.softmax_attention(q[:1], k[:1], v[:1], cu_seqlens=np.array([0, 2**63 + 5], np.uint64))


# ---- Processes ---------------------------------------------------------------------------------------------------------

class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        x = torch.full((1, 256, 4, 16), float(i + 1))
        return mhla.attention(x, x, x, torch.full((16, 16), 0.5), (16, 16), (4, 4))[0]


@pytest.mark.parametrize("threads", [0, 3])
def test_workers_of_a_loader(threads):
    """Forked while the parent has threads of OpenMP at hand; a hang is ended by the loader's timeout."""
    data = Dataset()
    mhla.set_num_threads(threads)
    try:
        expected = torch.stack([data[i] for i in range(4)])
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, timeout=60,
                                             multiprocessing_context=multiprocessing.get_context("fork"))
        assert torch.equal(torch.cat(list(loader)), expected)
    finally:
        mhla.set_num_threads(0)


FORK = """
import os, signal, sys
{first}
import numpy as np, mhla
q = np.ones((2, 256, 4, 32), np.float32)
work = lambda: mhla.attention(q, q, q, mhla.mix_init("paper", (4, 4)), (16, 16), (4, 4))
mhla.set_num_threads({threads})
before = work()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    same = (work() == before).all()
    mhla.set_num_threads(2)
    same &= (work() == before).all()
    os._exit(0 if same else 1)
print(os.waitpid(pid, 0)[1], (work() == before).all())
"""


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("first", ["import torch; torch.set_num_threads(3)", "sys.modules['torch'] = None; os.environ['OMP_NUM_THREADS'] = '3'"],
                         ids=["torch", "numpy"])
def test_a_forked_child_computes(first, threads):
    done = subprocess.run([sys.executable, "-c", FORK.format(first=first, threads=threads)], capture_output=True, text=True, timeout=300)
    assert done.stdout == "0 True\n", done.stderr
