"""Autoencoders of mhla.load: what goes in and out, in tiles, with torch, and what is refused."""
import numpy as np
import pytest

import mhla


@pytest.fixture(scope="module")
def vae():
    return mhla.create("sd_vae_nano", seed=3)


def test_there_and_back(vae, tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 24, 40)).astype(np.float32)
    mean, deviation = vae.encode(x)
    assert mean.shape == deviation.shape == (2, 4, 6, 10) and (deviation > 0).all()
    y = vae.decode(mean)
    assert y.shape == x.shape and np.isfinite(y).all()
    vae.save(tmp_path)
    again = mhla.Autoencoder.load(tmp_path)
    assert isinstance(again, mhla.Autoencoder) and again.info["scale"] == 0.18215
    assert np.array_equal(again.decode(mean), y)
    half = mhla.load(tmp_path, storage="bfloat16").decode(mean)
    assert 0 < np.abs(half - y).max() < 0.1 * np.abs(y).max()


def test_torch_and_tiles(vae):
    torch = pytest.importorskip("torch")
    z = torch.randn(1, 4, 24, 24, generator=torch.Generator().manual_seed(1))
    whole = vae.decode(z)
    assert isinstance(whole, torch.Tensor) and whole.shape == (1, 3, 96, 96)
    tiled = vae.decode(z, memory=28_000_000)
    assert not torch.equal(tiled, whole) and (tiled - whole).square().mean() < 0.05 * whole.square().mean()


def test_refusals(vae):
    with pytest.raises(mhla.Error, match="multiple of 4"):
        vae.encode(np.zeros((1, 3, 26, 24), np.float32))
    with pytest.raises(mhla.Error, match=r"expected float32 \[n, 4, H, W\]"):
        vae.decode(np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(mhla.Error, match="encode and decode run it"):
        vae(np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(MemoryError):
        vae.decode(np.zeros((1, 4, 8, 8), np.float32), memory=1000)


def test_clips():
    clips = mhla.create("wan_vae_nano", seed=1)
    x = np.random.default_rng(2).uniform(-1, 1, (2, 3, 9, 16, 24)).astype(np.float32)
    mean, deviation = clips.encode(x)
    assert mean.shape == deviation.shape == (2, 16, 3, 2, 3) and (deviation > 0).all()
    y = clips.decode(mean)
    assert y.shape == x.shape
    assert np.array_equal(clips.decode(mean[:, :, :2].copy()), y[:, :, :5])
    image, _ = clips.encode(x[:, :, 0].copy())
    assert np.array_equal(image, mean[:, :, 0])
    assert clips.info["frames"] == 4 and len(clips.info["mean"]) == 16
    with pytest.raises(mhla.Error, match="8 frames: expected 1 plus a multiple of 4"):
        clips.encode(x[:, :, :8].copy())
    with pytest.raises(mhla.Error, match=r"expected float32 \[n, 3, frames, H, W\] or"):
        clips.encode(np.zeros((3, 9, 16), np.float32))


def test_certain_latents(tmp_path):
    vae = mhla.create("dc_ae_nano", seed=2)
    x = np.random.default_rng(3).uniform(-1, 1, (2, 3, 32, 48)).astype(np.float32)
    mean, deviation = vae.encode(x)
    assert mean.shape == (2, 8, 4, 6) and (deviation == 0).all()
    y = vae.decode(mean)
    assert y.shape == x.shape and np.array_equal(vae.decode(mean[1:]), y[1:])
    vae.save(tmp_path)
    again = mhla.load(tmp_path)
    assert isinstance(again, mhla.Autoencoder) and again.info["factor"] == 8 and again.info["scale"] == 0.41407
    assert np.array_equal(again.decode(mean), y)
    with pytest.raises(mhla.Error, match="multiple of 8"):
        vae.encode(np.zeros((1, 3, 36, 32), np.float32))
