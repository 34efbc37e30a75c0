"""Whole models: mhla.load and mhla.create, mhla.nn.DeiT with the same weights, files that other libraries read and write."""
import json
import struct
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

import mhla

torch = pytest.importorskip("torch")
import mhla.nn  # noqa: E402
import torchvision_for_cpu  # noqa: E402

SMALL = dict(depth=2, classes=7)
SHAPES = {
    "mhla": dict(),
    "mhla released": dict(structure="released"),
    "mhla cpe": dict(cpe=3, denominator="none", qk_norm=False, qkv_bias=True),
    "mhla oblong": dict(image=(28, 20), padding=(2, 0), blocks=(4, 1), mix="cos", patch=4, channels=1),
    "mhla token": dict(class_token=True, cpe=3, blocks=(2, 3)),
    "linear": dict(attention="linear"),
    "linear released": dict(attention="linear", structure="released"),
    "softmax": dict(attention="softmax"),
    "softmax released": dict(attention="softmax", structure="released"),
    "softmax token": dict(attention="softmax", class_token=True, cpe=3),
    "focused": dict(attention="focused", cpe=3),
    "focused token": dict(attention="focused", class_token=True, power=2, lepe=3),
    "inline": dict(attention="inline"),
    "inline released": dict(attention="inline", structure="released"),
    "mala": dict(attention="mala"),
    "mala token": dict(attention="mala", class_token=True, inner_norm=True),
    "rala": dict(attention="rala", cpe=3),
    "rala plain": dict(attention="rala", gate=False, rope=False, lepe=0),
}


def images(model, n=3, seed=0):
    i = model.info
    return np.random.default_rng(seed).standard_normal((n, i["channels"], i["height"], i["width"]), dtype=np.float32)


def shaken(model, folder):
    """The model with every parameter off its initial value, so that nothing is silent; saved by `save_file` below."""
    rng = np.random.default_rng(1)
    state = {name: x + 0.05 * rng.standard_normal(x.shape, dtype=np.float32) for name, x in model.state_dict().items()}
    model.save(folder)
    save_file(state, folder / "model.safetensors")
    return mhla.load(folder)


def save_file(tensors, path):
    """safetensors, by hand: this test is not to trust the writer that it tests."""
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(x).tobytes() for x in tensors.values()))


def load_file(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[8 + n:][slice(*t["data_offsets"])], np.float32).reshape(t["shape"]) for name, t in header.items()}


def png(pixels):
    """[H,W,3] uint8 -> the bytes of a PNG."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def near(a, b, limit=1e-5):
    a, b = (x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in (a, b))
    assert a.shape == b.shape and np.isfinite(a).all()
    assert np.abs(a - b).max() <= limit * np.abs(b).max()


@pytest.mark.parametrize("name", SHAPES)
def test_module_and_model_agree(name, tmp_path):
    model = shaken(mhla.create("deit_nano", **(SMALL | SHAPES[name])), tmp_path)
    net, x = mhla.nn.DeiT.load(tmp_path), images(model)
    assert list(net.state_dict()) and set(net.state_dict()) == set(model.state_dict())
    with torch.no_grad():
        near(model(x), net(torch.from_numpy(x)))


def test_module_has_gradients(tmp_path):
    mhla.create("deit_nano", **SMALL).save(tmp_path)
    net = mhla.nn.DeiT.load(tmp_path)
    x = torch.randn(2, 3, 28, 28)
    net(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert "blocks.0.attn.piece_attn.conv.weight" in dict(net.named_parameters())


def test_kinds_and_refusals():
    model = mhla.create("deit_nano", **SMALL)
    x = images(model)
    y = model(x)
    assert isinstance(y, np.ndarray) and y.dtype == np.float32 and y.shape == (3, 7)
    z = model(torch.from_numpy(x).requires_grad_())
    assert isinstance(z, torch.Tensor) and not z.requires_grad and (z.numpy() == y).all()
    turned = np.asfortranarray(x)
    assert (model(turned) == y).all() and model(x[:0]).shape == (0, 7)
    assert (model(x[1:2]) == y[1:2]).all()  # an image's logits do not depend on its company
    for bad in (x.astype(np.float64), x[0], x[:, :2], x[..., :27], torch.from_numpy(x).half()):
        with pytest.raises(mhla.Error, match=r"expected float32 \[n, 3, 28, 28\]"):
            model(bad)
    with pytest.raises(mhla.Error, match="bfloat16"):
        model(torch.from_numpy(x).bfloat16())


def test_what_it_tells():
    model = mhla.create("deit_tiny", structure="released")
    state = model.state_dict()
    assert model.info["parameters"] == sum(x.size for x in model.parameters()) == 5_793_832
    assert model.info["tokens"] == 256 and 1.52e9 < model.info["multiply_adds"] < 1.54e9
    assert model.config["attention"] == "mhla" and model.config["blocks"] == [4, 4]
    assert len(model.classes) == 1000 and model.classes[3] == "3" and "5,793,832" in repr(model)
    assert state["blocks.11.attn.to_qkv.weight"].shape == (576, 192)
    state["head.bias"][:] = 5  # a copy
    assert (model.state_dict()["head.bias"] == 0).all()


def test_seeds():
    a, b, c = (mhla.create("deit_nano", seed, **SMALL).state_dict() for seed in (1, 1, 2))
    assert all((a[n] == b[n]).all() for n in a) and (a["head.weight"] != c["head.weight"]).any()


def test_save_and_load(tmp_path):
    model = mhla.create("deit_nano", **SMALL)
    model.save(tmp_path / "new")
    again = mhla.load(str(tmp_path / "new"))
    x = images(model)
    assert (again(x) == model(x)).all() and again.config == model.config
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").symlink_to(tmp_path / "new")  # a run's folder
    assert (mhla.load(tmp_path / "run")(x) == model(x)).all()
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert set(found) == set(model.state_dict())
    assert all((found[n] == v).all() for n, v in model.state_dict().items())


def test_class_names(tmp_path):
    mhla.create("deit_nano", **SMALL).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["class_names"] = list("abcdefg")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = mhla.load(tmp_path)
    assert model.classes == list("abcdefg")
    picture = png(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
    (tmp_path / "x.png").write_bytes(picture)
    top = model.classify(picture)
    assert top == model.classify(tmp_path / "x.png") == model.classify(memoryview(picture)) and len(top) == 5
    assert [p for _, p in top] == sorted((p for _, p in top), reverse=True) and {c for c, _ in top} < set("abcdefg")
    assert abs(sum(p for _, p in model.classify(picture, top=7)) - 1) < 1e-5
    with pytest.raises(mhla.Error, match="nothing.png"):
        model.classify(tmp_path / "nothing.png")
    with pytest.raises(mhla.Error):
        model.classify(picture[:100])
    with pytest.raises(ValueError, match="top is -1"):
        model.classify(picture, top=-1)


def test_bad_files(tmp_path):
    with pytest.raises(mhla.Error, match="nowhere"):
        mhla.load(tmp_path / "nowhere")
    with pytest.raises(mhla.Error, match="config.json"):
        mhla.load(tmp_path)
    with pytest.raises(mhla.Error, match="deit_nan"):
        mhla.create("deit_nan")
    with pytest.raises(mhla.Error, match="attention"):
        mhla.create("deit_nano", attentoin="mhla")
    model = mhla.create("deit_nano", **SMALL)
    model.save(tmp_path)
    state = model.state_dict()
    for name, change in (("head.bias", lambda s: s.pop("head.bias")),
                         ("extra", lambda s: s.update(extra=np.zeros(3, np.float32))),
                         ("head.weight", lambda s: s.update({"head.weight": np.zeros((8, 64), np.float32)}))):
        changed = dict(state)
        change(changed)
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(mhla.Error, match=name):
            mhla.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(mhla.Error, match="model.safetensors"):
        mhla.load(tmp_path)


def test_threads():
    """Any number of threads gives the same bits; two at once give an exception, never a wrong answer."""
    model = mhla.create("deit_nano", **SMALL)
    x = images(model, 32)
    y = model(x)
    try:
        mhla.set_num_threads(3)
        assert (model(x) == y).all()
    finally:
        mhla.set_num_threads(0)
    seen = []

    def work():
        for _ in range(20):
            try:
                seen.append((model(x) == y).all())
            except RuntimeError as error:
                seen.append("another thread" in str(error))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(seen) == 40 and all(seen)


def test_without_models():
    """An extension without libmhla-nn says which packages it missed."""
    code = """
import mhla
mhla._mhla.MODELS_MISSING = "libpng, jansson, libpcre2-8, libutf8proc"
try: mhla.load("x")
except mhla.Error as error: print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "did not find libpng, jansson, libpcre2-8, libutf8proc: install them (Debian: apt-get install pkg-config libpng-dev " \
        "libjansson-dev libpcre2-dev libutf8proc-dev)" in out.stdout


def test_safetensors_library(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    model = mhla.create("deit_nano", **SMALL)
    model.save(tmp_path)
    found = numpy.load_file(tmp_path / "model.safetensors")
    assert set(found) == set(model.state_dict()) and all((found[n] == v).all() for n, v in model.state_dict().items())
    found["head.bias"] = found["head.bias"] + 1
    numpy.save_file(found, tmp_path / "model.safetensors")
    near(mhla.load(tmp_path)(images(model)), model(images(model)) + 1)


def timm_names():
    """Names and shapes of timm 1.0.30's deit_tiny_patch16_224 with 11 classes."""
    D = 192
    block = dict(norm1=[(D,), (D,)], attn_qkv=[(3 * D, D), (3 * D,)], attn_proj=[(D, D), (D,)], norm2=[(D,), (D,)],
                 mlp_fc1=[(4 * D, D), (4 * D,)], mlp_fc2=[(D, 4 * D), (D,)])
    layers = {"patch_embed.proj": [(D, 3, 16, 16), (D,)]}
    layers |= {f"blocks.{i}.{name.replace('_', '.')}": shapes for i in range(12) for name, shapes in block.items()}
    layers |= {"norm": [(D,), (D,)], "head": [(11, D), (11,)]}
    names = {"cls_token": (1, 1, D), "pos_embed": (1, 197, D)}
    return names | {f"{name}.{kind}": shape for name, shapes in layers.items() for kind, shape in zip(("weight", "bias"), shapes)}


def wave(name, shape):
    """Weights by a formula, none of them silent."""
    x = np.sin(0.37 * np.arange(np.prod(shape), dtype=np.float64) + zlib.crc32(name.encode()) % 1000)
    x = x * (0.05 if len(shape) > 1 else 0.1) + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return x.astype(np.float32).reshape(shape)


def test_timm_by_heart(tmp_path):
    """What timm's tests below check, where there is no timm: its names, and the logits that it gave once."""
    names = timm_names()
    assert len(names) == 152
    ours = mhla.create("deit_tiny", structure="released", attention="softmax", classes=11)
    assert {name: x.shape for name, x in ours.state_dict().items()} == names  # so timm's load_state_dict takes them
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "deit_tiny_patch16_224", "num_classes": 11}))
    save_file({name: wave(name, shape) for name, shape in names.items()}, tmp_path / "model.safetensors")
    x = np.cos(0.01 * np.arange(3 * 224 * 224, dtype=np.float64)).astype(np.float32).reshape(1, 3, 224, 224)
    timm = [0.010167, 1.712301, -1.238831, -0.799926, 1.933678, -0.333343, -1.454699, 1.596384, 0.573352, -1.826829, 0.779681]
    near(mhla.load(tmp_path)(x), np.array([timm], np.float32))


def test_pytorch_model_bin(tmp_path):
    model = mhla.create("deit_nano", **SMALL)
    model.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(x) for name, x in model.state_dict().items()}, tmp_path / "pytorch_model.bin")
    x = images(model)
    near(mhla.load(tmp_path)(x), model(x), 0)


def timm_model(**changes):
    torchvision_for_cpu.allow()
    timm = pytest.importorskip("timm", exc_type=ImportError)  # also where it lacks torchvision
    torch.manual_seed(0)
    net = timm.create_model("deit_tiny_patch16_224", **changes).eval()
    with torch.no_grad():  # biases and norms off their constants
        for p in net.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return net


@pytest.mark.parametrize("own_config", [True, False])
def test_timm_to_ours(own_config, tmp_path):
    save = pytest.importorskip("safetensors.torch").save_file
    net = timm_model(num_classes=11)
    if own_config:  # ours, of the same model
        mhla.create("deit_tiny", structure="released", attention="softmax", classes=11).save(tmp_path)
    else:  # as timm's hub writes it
        (tmp_path / "config.json").write_text(json.dumps({"architecture": "deit_tiny_patch16_224", "num_classes": 11}))
    save(net.state_dict(), tmp_path / "model.safetensors")
    model, x = mhla.load(tmp_path), torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        near(model(x), net(x))


def test_ours_to_timm(tmp_path):
    load = pytest.importorskip("safetensors.torch").load_file
    model = shaken(mhla.create("deit_tiny", structure="released", attention="softmax", classes=11), tmp_path)
    net = timm_model(num_classes=11)
    net.load_state_dict(load(tmp_path / "model.safetensors"))
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        near(net(x), model(x))
