"""Modules: names and shapes of the released checkpoints, block order against raster order, packing, compile, bfloat16.
Their numbers are checked by `make goldens`."""
import pytest
import torch
import torchvision_for_cpu

import mhla.nn
from mhla.nn._parts import to_blocks, to_raster


def shapes(module):
    return {n: tuple(p.shape) for n, p in module.state_dict().items()}


def test_deit_names():
    assert shapes(mhla.nn.DeiTAttention(24, 2, (12, 12), (4, 4))) == {
        "k_norm.weight": (24,), "lepe.bias": (24,), "lepe.weight": (24, 1, 5, 5), "norm.bias": (24,), "norm.weight": (24,),
        "piece_attn.conv.weight": (16, 16, 1, 1), "q_norm.weight": (24,), "to_out.0.bias": (24,), "to_out.0.weight": (24, 24),
        "to_qkv.weight": (72, 24)}


def test_dit_names():
    assert shapes(mhla.nn.DiTAttention(32, 2, (8, 8), (2, 2))) == {
        "lepe.bias": (32,), "lepe.weight": (32, 1, 3, 3), "norm.bias": (32,), "norm.weight": (32,),
        "piece_attn.conv.weight": (4, 4, 1, 1), "to_out.0.bias": (32,), "to_out.0.weight": (32, 32), "to_qkv.bias": (96,),
        "to_qkv.weight": (96, 32)}


def test_lm_names():
    assert shapes(mhla.nn.LMAttention(64, num_heads=4, num_kv_heads=2)) == {
        "g_norm_swish_gate.weight": (16,), "g_proj.weight": (64, 64), "k_proj.weight": (16, 64),
        "mixing_matrix": (32, 32, 1, 1, 1, 1), "o_proj.weight": (64, 64), "q_proj.weight": (32, 64), "v_proj.weight": (32, 64)}
    assert {n: s for n, s in shapes(mhla.nn.LMAttention(32, num_heads=2, use_short_conv=True)).items() if "conv" in n} == {
        "q_conv1d.weight": (16, 1, 4), "k_conv1d.weight": (16, 1, 4), "v_conv1d.weight": (32, 1, 4)}


def test_wan_names():
    linear = {f"{x}.{y}": (32, 32) if y == "weight" else (32,) for x in "qkvo" for y in ("weight", "bias")}
    plain = linear | {"block_attn.conv.weight": (18, 18, 1, 1), "g_norm.weight": (16,), "norm_k.weight": (32,), "norm_q.weight": (32,)}
    assert shapes(mhla.nn.WanAttention(32, 2, (3, 4, 6), (3, 2, 3))) == plain
    assert shapes(mhla.nn.WanAttention(32, 2, (3, 4, 6), (3, 2, 3), gated=True, lepe=True)) == plain | {
        "g.weight": (32, 32), "g.bias": (32,), "lepe.weight": (32, 1, 3, 3, 3), "lepe.bias": (32,)}


@pytest.mark.parametrize("per_head", [False, True])
def test_cross_attention_by_its_definition(per_head):
    torch.manual_seed(0)
    layer = mhla.nn.CrossAttention(24, 3, (6, 8), (2, 2), (5, 4), (2, 1), context_dim=16, per_head=per_head)
    assert shapes(layer)["mix"] == ((3, 4, 2) if per_head else (4, 2))
    x, context = torch.randn(2, 48, 24), torch.randn(2, 20, 16)
    y = layer(x, context)

    def blocks_of(grid, blocks):  # the block of each token, in raster order
        axes = [[next(b for b in range(m) if (b + 1) * g // m > i) for i in range(g)] for g, m in zip(grid, blocks)]
        return torch.tensor([r * blocks[1] + c for r in axes[0] for c in axes[1]])

    q = layer.to_q(x).unflatten(-1, (3, 8)).relu() + 1e-6
    k, v = (t.unflatten(-1, (3, 8)) for t in layer.to_kv(context).chunk(2, -1))
    mix = layer.mix if per_head else layer.mix.expand(3, 4, 2)
    weight = mix[:, blocks_of((6, 8), (2, 2))][:, :, blocks_of((5, 4), (2, 1))]  # [H,Tq,Tk]
    a = torch.einsum("bthk,buhk->bhtu", q, k.relu() + 1e-6) * weight
    o = torch.einsum("bhtu,buhv->bthv", a / (a.sum(-1, keepdim=True) + 1e-6), v)
    assert torch.allclose(y, layer.to_out(o.flatten(2)), atol=1e-5)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


def test_block_order_and_raster_order_agree():
    torch.manual_seed(0)
    layer = mhla.nn.DeiTAttention(24, 3, (8, 12), (2, 3), denominator="released")
    x = torch.randn(2, 96, 24)
    y = layer(x)
    blocked = layer(to_blocks(x, (8, 12), (2, 3)).view(2, 6, 16, 24))
    assert torch.allclose(to_raster(blocked.flatten(1, 2), (8, 12), (2, 3)), y, atol=1e-5)


MODULES = {
    "deit": lambda: (mhla.nn.DeiTAttention(24, 3, (8, 8), (2, 2)), (2, 64, 24)),
    "dit": lambda: (mhla.nn.DiTAttention(24, 3, (8, 8), (2, 2), dropout=0.0), (2, 64, 24)),
    "vlt": lambda: (mhla.nn.VLTAttention(24, 2, (6, 8), (3, 2)), (2, 48, 24)),
    "linear": lambda: (mhla.nn.LinearAttention(24, 3), (2, 48, 24)),
    "softmax": lambda: (mhla.nn.SoftmaxAttention(24, 3), (2, 48, 24)),
    "wan": lambda: (mhla.nn.WanAttention(32, 2, (3, 4, 6), (3, 2, 3), gated=True, lepe=True), (1, 72, 32)),
    "lm": lambda: (mhla.nn.LMAttention(32, num_heads=2), (2, 100, 32)),
    "lm-hedgehog": lambda: (mhla.nn.LMAttention(32, num_heads=2, feature_map_name="hedgehog"), (2, 100, 32)),
    "lm-softmax": lambda: (mhla.nn.LMSoftmaxAttention(32, 4, 2), (2, 100, 32)),
    "lm-linear": lambda: (mhla.nn.LMLinearAttention(32, 2), (2, 100, 32)),
}


@pytest.mark.parametrize("name", MODULES)
def test_compile_and_train(name):
    """One graph, and every parameter gets a gradient."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer, shape = MODULES[name]()
    x = torch.randn(shape)
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert torch.allclose(y, layer(x), atol=1e-5)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


@pytest.mark.parametrize("name", MODULES)
def test_bfloat16(name):
    torch.manual_seed(0)
    layer, shape = MODULES[name]()
    x = torch.randn(shape)
    y = layer(x)
    z = layer.bfloat16()(x.bfloat16())
    # on the mean: a relu that rounds to 0 may flip a whole token
    assert z.dtype == torch.bfloat16 and (z.float() - y).abs().mean() < 0.05 * y.abs().mean()


def test_lm_packs_and_continues():
    torch.manual_seed(0)
    for conv in (False, True):
        layer = mhla.nn.LMAttention(32, num_heads=2, chunk_size=16, num_chunks=8, use_short_conv=conv)
        x = torch.randn(1, 90, 32)
        cu = torch.tensor([0, 30, 90])
        packed = layer(x, cu_seqlens=cu)
        apart = torch.cat([layer(x[:, :30]), layer(x[:, 30:])], 1)
        assert torch.allclose(packed, apart, atol=1e-5)
    layer = mhla.nn.LMAttention(32, num_heads=2, chunk_size=16, num_chunks=8)
    head, state = layer(x[:, :40], output_final_state=True)
    tail = layer(x[:, 40:], initial_state=state)
    assert torch.allclose(torch.cat([head, tail], 1), layer(x), atol=1e-5)


def test_lm_clips_as_the_release():
    layer = mhla.nn.LMAttention(32, num_heads=2)
    with torch.no_grad():
        layer.mixing_matrix[0, 0] = -3
        layer.mixing_matrix[1, 0] = 2
    mix = layer.mix()
    assert torch.isclose(mix[0, 0], torch.tensor(1e-5), rtol=1e-2) and torch.isclose(mix[1, 0], torch.tensor(1.0))
    assert mix.sum().backward() is None and (layer.mixing_matrix.grad == 1).all()


GRID = dict(grid=(4, 4), blocks=(2, 2))
IN_BLOCKS = {
    "deit": lambda: mhla.nn.DeiTAttention(192, 3, **GRID), "dit": lambda: mhla.nn.DiTAttention(192, 3, **GRID, dropout=0.0),
    "vlt": lambda: mhla.nn.VLTAttention(192, 3, **GRID), "linear": lambda: mhla.nn.LinearAttention(192, 3),
    "softmax": lambda: mhla.nn.SoftmaxAttention(192, 3), "wan": lambda: mhla.nn.WanAttention(192, 3, (1, 4, 4), (1, 2, 2)),
    "wan-softmax": lambda: mhla.nn.WanSoftmaxAttention(192, 3, (1, 4, 4)),
    "wan-linear": lambda: mhla.nn.WanLinearAttention(192, 3, (1, 4, 4)), "lm": lambda: mhla.nn.LMAttention(192, num_heads=3),
    "lm-softmax": lambda: mhla.nn.LMSoftmaxAttention(192, 3), "lm-linear": lambda: mhla.nn.LMLinearAttention(192, 3),
}


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_attentions_fit_into_blocks_of_timm(name):
    torchvision_for_cpu.allow()
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=4, class_token=False, global_pool="avg", depth=2)
    images = torch.randn(2, 3, 64, 64)
    before = model(images)
    for block in model.blocks:
        old, block.attn = block.attn, IN_BLOCKS[name]()
        if name == "softmax":  # the same names and the same numbers
            block.attn.load_state_dict(old.state_dict())
    after = model(images)
    assert after.shape == before.shape and (name != "softmax" or torch.allclose(after, before, atol=1e-4))
    after.sum().backward()
    assert all(p.grad is not None for p in model.blocks.parameters())
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    if name == "softmax":
        assert torch.allclose(model(images, attn_mask=mask), model(images, is_causal=True), atol=1e-4)
        with pytest.raises(mhla.Error, match="attn_mask and is_causal are both given"):
            block.attn(torch.randn(2, 16, 192), mask, True)
        return
    with pytest.raises(mhla.Error, match="attn_mask is given: this attention has no mask"):
        model(images, attn_mask=mask)
    if name.startswith("lm"):  # causal in any case
        assert torch.equal(model(images, is_causal=True), model(images))
        return
    with pytest.raises(mhla.Error, match="is_causal is given: this attention has no mask"):
        model(images, is_causal=True)
