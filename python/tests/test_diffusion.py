"""Samplers driven from Python, as the program's; and mhla.nn.DiT with the weights of the engine's model."""
import copy
import json
import os
import pathlib
import pickle
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

import mhla

torch = pytest.importorskip("torch")
import mhla.nn  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = shutil.which("mhla") or str(ROOT / "build" / "mhla")
GOLDENS = pathlib.Path(os.environ.get("MHLA_GOLDENS", ROOT.parent / "shared" / "goldens")) 
SMALL = dict(depth=2, image=8, blocks=2, classes=5, dim=48)
SHAPES = {
    "mhla": dict(),
    "mhla released": dict(structure="released", dropout=0.5),
    "mhla oblong": dict(image=(8, 12), blocks=(2, 3), denominator="none", lepe=5, mix="cos"),
    "mhla gate": dict(gate=True, qk_norm=True, qkv_bias=False),
    "mhla gate plain": dict(gate=True, gate_norm=False, lepe=0, inner_norm=True),
    "mhla folded": dict(cpe="folded"),
    "mhla grid": dict(cpe="grid", learn_sigma=True),
    "linear": dict(attention="linear"),
    "linear released": dict(attention="linear", structure="released"),
    "softmax": dict(attention="softmax"),
    "softmax released": dict(attention="softmax", structure="released", null_label=False, learn_sigma=True),
    "flow": dict(process="flow", attention="softmax", mlp_ratio=2.5),
}


def shaken(folder, preset="dit_micro", **settings):
    """A model whose parameters are all off their initial values, so that nothing is silent."""
    save = pytest.importorskip("safetensors.numpy").save_file
    model = mhla.create(preset, 1, **(SMALL | settings if preset == "dit_micro" else settings))
    rng = np.random.default_rng(1)
    model.save(folder)
    save({name: x + np.float32(0.1) * rng.standard_normal(x.shape, dtype=np.float32) * (name != "pos_embed")
          for name, x in model.state_dict().items()}, folder / "model.safetensors")
    return mhla.load(folder)


def inputs(model, n=3, sides=None):
    rng = np.random.default_rng(2)
    sides = sides or (model.info["height"], model.info["width"])
    return (torch.from_numpy(rng.standard_normal((n, model.info["channels"], *sides), dtype=np.float32)),
            torch.tensor([0.0, 500.0, 999.0])[:n], torch.tensor([0, 4, model.info["classes"] - (not model.config["null_label"])])[:n])


def near(a, b, limit=1e-5):
    assert a.shape == b.shape and bool(a.isfinite().all())
    assert float((a - b).abs().max()) <= limit * float(b.abs().max())


@pytest.mark.parametrize("attention", ["gla", "mhla", "mhla-dit"])
def test_dig(attention, tmp_path):
    model = shaken(tmp_path, "dig_micro", attention=attention, image=8, blocks=2, depth=2)
    assert model.config["attention"] == attention
    y = model(*inputs(model))
    model.save(tmp_path / "again")
    again = mhla.load(tmp_path / "again")
    assert again.config == model.config and float(y.abs().max()) > 0
    assert torch.equal(again(*inputs(again)), y)
    with pytest.raises(ValueError, match="mhla_dig"):
        mhla.nn.DiT.load(tmp_path)


# ---- the torch module ----

@pytest.mark.parametrize("name", SHAPES)
def test_module_and_model_agree(name, tmp_path):
    model = shaken(tmp_path, **SHAPES[name])
    net = mhla.nn.DiT.load(tmp_path)
    assert list(net.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        near(net(*inputs(model)), model(*inputs(model)))
        if name != "mhla folded":
            other = inputs(model, 2, (12, 12) if "oblong" in name else (12, 16))
            near(net(*other), model(*other))


def test_module_has_gradients(tmp_path):
    model = shaken(tmp_path, gate=True, cpe="grid", qk_norm=True)
    net = mhla.nn.DiT.load(model).train()
    net(*inputs(model)).square().sum().backward()
    frozen = [name for name, p in net.named_parameters() if p.grad is None]
    assert frozen == ["pos_embed"] and all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters() if p.grad is not None)
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == model.info["trainable"]


def test_gradients_are_the_differences(tmp_path):
    model = shaken(tmp_path, structure="released")
    net = mhla.nn.DiT.load(model)
    x, t, y = inputs(model)
    x.requires_grad_()
    torch.manual_seed(0)
    weight, way = torch.randn_like(net(x, t, y)), torch.randn_like(x)
    (net(x, t, y) * weight).sum().backward()
    with torch.no_grad():
        slope = float(((net(x + 1e-3 * way, t, y) - net(x - 1e-3 * way, t, y)).double() * weight).sum()) / 2e-3
    assert slope == pytest.approx(float((x.grad * way).sum()), rel=3e-3)


def test_module_refuses(tmp_path):
    with pytest.raises(ValueError, match="not a diffusion model"):
        mhla.nn.DiT.load(mhla.create("deit_nano", depth=1))
    net = mhla.nn.DiT(mhla.create("dit_micro", **SMALL).config)
    with pytest.raises(ValueError, match="multiples of the patch, 2"):
        net(torch.zeros(1, 3, 7, 8), torch.zeros(1), torch.zeros(1, dtype=torch.int64))


def read_golden(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    config = json.loads(header.pop("__metadata__")["config"])
    kinds = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4"}
    return config, {name: torch.from_numpy(np.frombuffer(data[8 + size:][slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"]).copy())
                    for name, t in header.items()}


def goldens(kind):
    """A decorator: the goldens whose case is of this kind, known by what they say, whatever their names, sizes and number."""
    found = []
    for path in sorted(GOLDENS.rglob("*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        meta = header.get("__metadata__", {})
        if re.fullmatch(kind, json.loads(meta.get("config", "{}")).get("case") or meta.get("case", "")):
            found.append(path)
    each = pytest.mark.parametrize("path", found, ids=lambda path: path.stem)
    return lambda test: pytest.mark.skipif(not found, reason="no goldens: set MHLA_GOLDENS")(each(test))


@goldens("dit-(mhla|softmax)-model")
def test_goldens(path):
    said, tensors = read_golden(path)
    parameters = {n[6:]: x for n, x in tensors.items() if n.startswith("param.")}
    lepe, mix = parameters.get("blocks.0.attn.lepe.weight"), parameters.get("blocks.0.attn.piece_attn.conv.weight")
    (dim, channels, _, patch) = parameters["x_embedder.proj.weight"].shape
    depth = 1 + max(int(n.split(".")[1]) for n in parameters if n.startswith("blocks."))
    settings = dict(structure="released", attention=said["case"].split("-")[1], image=list(tensors["in.x"].shape[-2:]),
                    channels=channels, patch=patch, dim=dim, depth=depth, heads=said["heads"],
                    classes=said["classes"], mlp_ratio=len(parameters["blocks.0.mlp.fc1.weight"]) / dim, lepe=0 if lepe is None else lepe.shape[-1],
                    qk_norm="blocks.0.attn.q_norm.weight" in parameters, cpe="folded" if "blocks.0.dw_conv.weight" in parameters else "none",
                    qkv_bias=any(n.endswith("qkv.bias") for n in parameters),
                    null_label=len(parameters["y_embedder.embedding_table.weight"]) > said["classes"],
                    learn_sigma=parameters["final_layer.linear.weight"].shape[0] == 2 * channels * patch**2)
    if mix is not None:
        settings["blocks"] = said.get("blocks") or [int(len(mix) ** 0.5)] * 2
    net = mhla.nn.DiT(mhla.create("dit_s_2", **settings).config).eval()
    net.load_state_dict({n: x.float() for n, x in parameters.items()})
    x = tensors["in.x"].float().requires_grad_(True)
    out = net(x, tensors["in.t"].float(), tensors["in.label"].long())
    near(out.detach().double(), tensors["out.y"].double())
    if "dout.y" not in tensors:
        return
    out.backward(tensors["dout.y"].float())
    golden = {n[5:]: g.double() for n, g in tensors.items() if n.startswith("grad.")}
    ours = {"in.x": x} | {f"param.{n}": p for n, p in net.named_parameters()}
    largest = max(float(g.abs().max()) for g in golden.values())
    assert golden
    for n, g in golden.items():
        assert float((ours[n].grad.double() - g).abs().max()) <= 2e-5 * max(float(g.abs().max()), 1e-4 * largest), n



# ---- samplers ----

@goldens("sched_.*")
def test_golden_flows(path):
    """Whole runs with the answers of the file."""
    said, tensors = read_golden(path)
    method = {"F": "euler", "D": "dpm++", "U": "unipc"}[said["kind"][0]]
    sampler = mhla.diffusion.Sampler("flow", method, said["steps"], table="wan" if "Wan" in said["kind"] else None, shift=said["shift"])
    x = tensors["in.sample"]
    for i, time in enumerate(sampler):
        if "out.timesteps" in tensors:
            assert np.float32(time) == np.float32(tensors["out.timesteps"][i])
        assert not sampler.wants_noise
        x = sampler.step(x, tensors[f"in.model_output.{i:02d}"])
        near(x.double(), tensors[f"out.sample.{i:02d}"].double())
    assert i + 1 == said["steps"]


@goldens("diffusion-steps")
@pytest.mark.parametrize("name, method, eta", [("p_sample", "ddpm", 0.0), ("ddim_eta0", "ddim", 0.0), ("ddim_eta1", "ddim", 1.0)])
def test_golden_steps(path, name, method, eta):
    """Single steps, out of a loop whose others are fed zeros, with the noise of the file."""
    said, tensors = read_golden(path)
    if "cos" in str(said.get("noise_schedule", "")) or said.get("diffusion_steps", 1000) != 1000:
        pytest.skip("a process of other levels")
    start, answer, noise, at = (tensors[n] for n in ("out.q_sample", "in.model_output", "in.sample_noise", "in.t"))
    sampler = mhla.diffusion.Sampler("linear", method, table=said["respacing"] or "1000", eta=eta, clip=said["clip_denoised"],
                                     learned_sigma=answer.shape[1] > start.shape[1])
    found = 0
    for b in range(len(at)):
        for i, time in enumerate(sampler):
            here = len(sampler) - 1 - i == at[b]
            given = [y[b : b + 1] if here else torch.zeros_like(y[b : b + 1]) for y in (start, answer, noise)]
            x = sampler.step(*given)
            if here:
                assert time == tensors["out.t_for_model"][b]
                assert float((x[0] - tensors[f"out.{name}"][b]).abs().max()) <= 1e-5 * float(tensors[f"out.{name}"].abs().max())
                found += 1
    assert found == len(at)


@pytest.fixture(scope="module")
def program():
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip("the program mhla is not built")
    return PROGRAM


METHODS = [("linear", "ddpm", 7, 1.0), ("linear", "ddim", 5, 1.0), ("cosine", "dpm++", 6, 1.0), ("linear", "unipc", 6, 3.0),
           ("flow", "euler", 5, 1.0), ("flow", "unipc", 5, 1.0), ("linear", "ddpm", 4, 2.0)]


@pytest.mark.parametrize("process, method, steps, guidance", METHODS)
def test_as_the_program(process, method, steps, guidance, program, tmp_path):
    """A loop in Python with the seed's noise makes the images of `mhla sample`."""
    model = shaken(tmp_path / "m", process=process, attention="linear", learn_sigma=method == "ddpm")
    out = tmp_path / "x.npy"
    done = subprocess.run([program, "sample", "-m", str(tmp_path / "m"), "-c", "0,3", "-s", "5", "--sampler", method, "--steps", str(steps),
                           "-g", str(guidance), "-o", str(out), "--quiet"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    theirs = np.load(out)
    sampler = mhla.diffusion.Sampler(process, method, steps, clip=True, learned_sigma=method == "ddpm")
    assert len(sampler) == steps == len(sampler.times) and method in repr(sampler)
    labels, shape, drawn = np.array([0, 3]), (3, 8, 8), 0
    x = mhla.diffusion.noise([5, 5], shape)
    for i, time in enumerate(sampler):
        y = model(x, [time] * 2, labels)
        if guidance != 1:
            none = model(x, [time] * 2, [5, 5])
            y[:, :3] = none[:, :3] + np.float32(guidance) * (y[:, :3] - none[:, :3])
        drawn += sampler.wants_noise
        before = x.copy()
        moved = sampler.step(x, y, mhla.diffusion.noise([5, 5], shape, i + 1) if sampler.wants_noise else None)
        assert (x == before).all()
        x = moved
    assert drawn == (steps - 1 if method == "ddpm" else 0) and sampler.predicted.shape == x.shape
    if guidance == 1:
        assert (x == theirs).all()
    else:  # the sum of the two answers is rounded otherwise
        assert np.abs(x - theirs).max() < 1e-4


def test_kinds_and_refusals():
    sampler = mhla.diffusion.Sampler(method="ddim", steps=4, eta=0.5)
    x = torch.randn(2, 1, 3)
    assert sampler.predicted is None and sampler.wants_noise
    got = sampler.step(x, x.numpy(), torch.zeros(2, 1, 3))
    assert isinstance(got, torch.Tensor) and isinstance(sampler.predicted, torch.Tensor) and got.shape == x.shape
    again = mhla.diffusion.Sampler(method="ddim", steps=4, eta=0.5)
    assert (again.step(x.numpy(), x, np.zeros((2, 1, 3), np.float32)) == got.numpy()).all()
    for call, says in ((lambda: sampler.step(x, x), "noise is missing"), (lambda: sampler.step(x, x[:1], x), r"prediction has shape \[1"),
                       (lambda: sampler.step(x.double(), x, x), "float64"), (lambda: sampler.step(x, x, x[:1]), "noise has shape"),
                       (lambda: sampler.step(x.bfloat16(), x, x), "bfloat16"), (lambda: sampler.step(x[:1], x[:1], x[:1]), "at the step before"),
                       (lambda: sampler.step(x, x * float("nan"), x), "finite"),
                       (lambda: mhla.diffusion.Sampler("warm"), "warm"), (lambda: mhla.diffusion.Sampler(method="magic"), "magic"),
                       (lambda: mhla.diffusion.Sampler(steps=-1), "-1"), (lambda: mhla.diffusion.noise([-1], (2,)), "seed is -1")):
        with pytest.raises(mhla.Error, match=says):
            call()
    for _ in range(3):
        x = sampler.step(x, x, x)
    with pytest.raises(mhla.Error, match="all 4 steps"):
        sampler.step(x, x, x)
    with pytest.raises(mhla.Error, match="step 0 of the sampler was taken 0 times"):
        for _ in sampler:
            pass


def test_samplers_are_copied_before_the_first_step():
    x, answer = np.ones((1, 3, 4, 4), np.float32), np.full((1, 3, 4, 4), 0.5, np.float32)
    sampler = mhla.diffusion.Sampler("flow", "dpm++", 4, shift=3.0)
    twins = [pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler), copy.copy(sampler)]
    want = [sampler.step(x, answer) for _ in sampler]
    for twin in twins:  # each with a history of its own
        assert all((a == b).all() for a, b in zip([twin.step(x, answer) for _ in twin], want))
    next(iter(sampler))
    sampler.step(x, answer)
    for how in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="has taken 1 of its 4 steps: it is copied or pickled before the first"):
            how(sampler)
