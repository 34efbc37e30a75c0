"""VLT: the program's model against the torch module, whose names are those of RALA's code, weights in both directions."""
import json

import numpy as np
import pytest

import mhla

torch = pytest.importorskip("torch")
import mhla.nn  # noqa: E402

CASES = [dict(), dict(attention="rala", image=[28, 28]), dict(attention="mala", image=[40, 24], layer_scale=0),
         dict(gate=False, rope=False, phi="relu", qk_norm=True, image=[30, 21]), dict(lepe=0, denominator="none", image=[33, 32])]


def filled(net, seed=0):
    """Every parameter and statistic random: those that begin as 0 or 1, too."""
    g = torch.Generator().manual_seed(seed)
    for name, x in net.state_dict().items():
        if "angle" in name or "batches" in name:
            continue
        mix, positive = "piece_attn" in name, name.endswith("running_var")
        x.copy_(torch.rand(x.shape, generator=g) * 0.1 if mix else torch.rand(x.shape, generator=g) + 0.5 if positive
                else torch.randn(x.shape, generator=g) * (0.3 if x.dim() == 1 else 0.1))
    return net.eval()


def images_for(model, n=3):
    return torch.randn(n, 3, *model.config["image"], generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("settings", CASES)
def test_torch_to_mhla_and_back(tmp_path, settings):
    made = mhla.create("vlt_nano", classes=7, **settings)
    net = filled(mhla.nn.VLT(made.config))
    net.norm.num_batches_tracked.fill_(12)
    # a state_dict as RALA's script saves it, beside our config.json
    (tmp_path / "config.json").write_text(json.dumps(made.config))
    torch.save({"model": net.state_dict()}, tmp_path / "pytorch_model.bin")
    model = mhla.load(tmp_path)
    images = images_for(model)
    with torch.no_grad():
        want = net(images)
    assert (model(images) - want).abs().max() <= 2e-5 * want.abs().max()
    # and out again: names, shapes and values, counts as whole numbers in the file
    state = model.state_dict()
    assert {n: tuple(x.shape) for n, x in state.items()} == {n: tuple(x.shape) for n, x in net.state_dict().items()}
    for name, x in net.state_dict().items():
        assert np.allclose(state[name], x.numpy(), rtol=1e-6, atol=0), name
    model.save(tmp_path / "saved")
    header = (tmp_path / "saved" / "model.safetensors").read_bytes()
    header = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    count = header["norm.num_batches_tracked"]
    assert (count["dtype"], count["shape"]) == ("I64", [])
    back = mhla.nn.VLT.load(tmp_path / "saved").eval()
    assert int(back.norm.num_batches_tracked) == 12
    with torch.no_grad():
        assert torch.equal(back(images), want)


def test_order_of_the_published_lists():
    model = mhla.create("mhla_vlt_tiny", image=[56, 56])
    net = mhla.nn.VLT(model.config)
    trained = [n for n, _ in net.named_parameters()]
    assert [n for n in model.state_dict() if n in set(trained)] == trained
    assert sum(p.numel() for p in net.parameters()) == model.info["parameters"]


def test_what_formulas_make_may_be_missing(tmp_path):
    made = mhla.create("vlt_nano", classes=3)
    made.save(tmp_path)
    state = {n: torch.from_numpy(x) for n, x in made.state_dict().items() if "angle" not in n and "batches" not in n}
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    images = images_for(made)
    assert torch.equal(mhla.load(tmp_path)(images), made(images))
    del state["norm.running_mean"]
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(mhla.Error, match="norm.running_mean"):
        mhla.load(tmp_path)
