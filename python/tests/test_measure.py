"""sFID of `mhla measure`: its spatial features against a network written here in PyTorch, in double, with weights of our own; the
distance against NumPy, with fewer images than features."""
import json
import pathlib
import struct
import subprocess

import numpy as np
import pytest
import torch
from torch.nn import functional as F

PROGRAM = pathlib.Path(__file__).parents[2] / "build" / "mhla"


def layers():
    """{name: (outputs, inputs, height, width)} of the network by pytorch-fid's names."""
    found = {"Conv2d_1a_3x3": (32, 3, 3, 3), "Conv2d_2a_3x3": (32, 32, 3, 3), "Conv2d_2b_3x3": (64, 32, 3, 3),
             "Conv2d_3b_1x1": (80, 64, 1, 1), "Conv2d_4a_3x3": (192, 80, 3, 3)}

    def block(name, **branches):
        found.update({f"{name}.branch{b}": shape for b, shape in branches.items()})

    for name, n, pool in (("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)):
        block(name, **{"1x1": (64, n, 1, 1), "5x5_1": (48, n, 1, 1), "5x5_2": (64, 48, 5, 5), "3x3dbl_1": (64, n, 1, 1),
                       "3x3dbl_2": (96, 64, 3, 3), "3x3dbl_3": (96, 96, 3, 3), "_pool": (pool, n, 1, 1)})
    block("Mixed_6a", **{"3x3": (384, 288, 3, 3), "3x3dbl_1": (64, 288, 1, 1), "3x3dbl_2": (96, 64, 3, 3),
                         "3x3dbl_3": (96, 96, 3, 3)})
    for name, c in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        block(name, **{"1x1": (192, 768, 1, 1), "7x7_1": (c, 768, 1, 1), "7x7_2": (c, c, 1, 7), "7x7_3": (192, c, 7, 1),
                       "7x7dbl_1": (c, 768, 1, 1), "7x7dbl_2": (c, c, 7, 1), "7x7dbl_3": (c, c, 1, 7), "7x7dbl_4": (c, c, 7, 1),
                       "7x7dbl_5": (192, c, 1, 7), "_pool": (192, 768, 1, 1)})
    block("Mixed_7a", **{"3x3_1": (192, 768, 1, 1), "3x3_2": (320, 192, 3, 3), "7x7x3_1": (192, 768, 1, 1),
                         "7x7x3_2": (192, 192, 1, 7), "7x7x3_3": (192, 192, 7, 1), "7x7x3_4": (192, 192, 3, 3)})
    for name, n in (("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        block(name, **{"1x1": (320, n, 1, 1), "3x3_1": (384, n, 1, 1), "3x3_2a": (384, 384, 1, 3), "3x3_2b": (384, 384, 3, 1),
                       "3x3dbl_1": (448, n, 1, 1), "3x3dbl_2": (384, 448, 3, 3), "3x3dbl_3a": (384, 384, 1, 3),
                       "3x3dbl_3b": (384, 384, 3, 1), "_pool": (192, n, 1, 1)})
    return found


def weights():
    """Random ones for which maps keep their size, and any statistics."""
    torch.manual_seed(0)
    made = {}
    for name, shape in layers().items():
        n, fan = shape[0], shape[1] * shape[2] * shape[3]
        made[f"{name}.conv.weight"] = torch.randn(shape) * (2 / fan) ** 0.5
        made[f"{name}.bn.weight"], made[f"{name}.bn.bias"] = 1 + 0.1 * torch.randn(n), 0.1 * torch.randn(n)
        made[f"{name}.bn.running_mean"], made[f"{name}.bn.running_var"] = 0.1 * torch.randn(n), 0.5 + torch.rand(n)
    return made


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + 4 * x.numel()]}
        at += 4 * x.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(x.contiguous().numpy().tobytes())


class Network:
    """As far as the first branch of Mixed_6d."""

    def __init__(self, tensors):
        self.tensors = {name: x.double() for name, x in tensors.items()}

    def conv(self, x, name, stride=1, pad=(0, 0)):
        t, bn = self.tensors, f"{name}.bn"
        x = F.conv2d(x, t[f"{name}.conv.weight"], stride=stride, padding=pad)
        return F.batch_norm(x, t[f"{bn}.running_mean"], t[f"{bn}.running_var"], t[f"{bn}.weight"], t[f"{bn}.bias"], eps=1e-3).relu()

    def tower(self, x, block, *names):
        """Convolutions one after the other that keep the size."""
        for name in names:
            h, w = self.tensors[f"{block}.branch{name}.conv.weight"].shape[2:]
            x = self.conv(x, f"{block}.branch{name}", pad=(h // 2, w // 2))
        return x

    def spatial(self, x):
        x = self.conv(x, "Conv2d_1a_3x3", 2)
        x = self.conv(self.conv(x, "Conv2d_2a_3x3"), "Conv2d_2b_3x3", pad=(1, 1))
        x = self.conv(self.conv(F.max_pool2d(x, 3, 2), "Conv2d_3b_1x1"), "Conv2d_4a_3x3")
        x = F.max_pool2d(x, 3, 2)
        for b in ("Mixed_5b", "Mixed_5c", "Mixed_5d"):
            pooled = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            x = torch.cat([self.tower(x, b, "1x1"), self.tower(x, b, "5x5_1", "5x5_2"),
                           self.tower(x, b, "3x3dbl_1", "3x3dbl_2", "3x3dbl_3"), self.tower(pooled, b, "_pool")], 1)
        b = "Mixed_6a"
        x = torch.cat([self.conv(x, f"{b}.branch3x3", 2),
                       self.conv(self.tower(x, b, "3x3dbl_1", "3x3dbl_2"), f"{b}.branch3x3dbl_3", 2), F.max_pool2d(x, 3, 2)], 1)
        for b in ("Mixed_6b", "Mixed_6c"):
            pooled = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            x = torch.cat([self.tower(x, b, "1x1"), self.tower(x, b, "7x7_1", "7x7_2", "7x7_3"),
                           self.tower(x, b, *(f"7x7dbl_{i}" for i in range(1, 6))), self.tower(pooled, b, "_pool")], 1)
        return self.tower(x, "Mixed_6d", "1x1")[:, :7].permute(0, 2, 3, 1).flatten(1)  # [n,17*17*7]


def frechet(x, y):
    """tr (S1 S2)^(1/2) is the sum of the singular values of X Y^T, X and Y centred: right for any number of rows."""
    a, b = ((z - z.mean(0)) / (len(z) - 1) ** 0.5 for z in (x, y))
    mean = ((x.mean(0) - y.mean(0)) ** 2).sum()
    return mean + (a**2).sum() + (b**2).sum() - 2 * np.linalg.svd(a @ b.T, compute_uv=False).sum()


def test_sfid(tmp_path):
    if not PROGRAM.exists():
        pytest.skip("the program mhla is not built")
    tensors = weights()
    write_safetensors(tmp_path / "inception.safetensors", tensors)
    network, rng, expected = Network(tensors), np.random.default_rng(0), []
    for name, n, low in (("real", 5, 0), ("generated", 4, 60)):
        coarse = torch.from_numpy(rng.integers(low, 256, (n, 3, 19, 19))).float()
        images = F.interpolate(coarse, (299, 299), mode="bilinear").byte()
        np.save(tmp_path / f"{name}.npy", images.permute(0, 2, 3, 1).contiguous().numpy())
        expected.append(network.spatial(images.double() / 127.5 - 1).numpy())
    done = subprocess.run([PROGRAM, "measure", "real.npy", "generated.npy", "--features", "inception.safetensors", "--dump", "dump",
                           "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name, want in zip(("real", "generated"), expected):
        got = np.load(tmp_path / "dump" / f"{name}.spatial.npy")
        assert got.dtype == np.float32 and got.shape == want.shape == (len(want), 2023)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    result = json.loads(done.stdout)
    assert result["inception"] is True
    assert result["sfid"] == pytest.approx(frechet(*expected), rel=1e-4)
    features = [np.load(tmp_path / "dump" / f"{name}.npy").astype(float) for name in ("real", "generated")]
    assert result["fid"] == pytest.approx(frechet(*features), rel=1e-6)
