"""The package itself: examples in its documentation, NumPy alone, one OpenMP runtime."""
import doctest
import importlib
import pathlib
import subprocess
import sys

import pytest

import mhla

MODULES = ["mhla", "mhla._carry", "mhla.diffusion", "mhla.functional", "mhla.language", "mhla.mixing", "mhla.model", "mhla.pipeline", "mhla.streaming",
           "mhla.nn.deit", "mhla.nn.dit", "mhla.nn.image", "mhla.nn.lm", "mhla.nn.recurrent", "mhla.nn.wan", "mhla.ops.convolution",
           "mhla.ops.gated_delta_rule", "mhla.ops.gla", "mhla.ops.mamba", "mhla.ops.retention", "mhla.ops.simple_gla"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0


def test_nn_needs_no_import_of_its_own():
    done = run("import mhla; print(mhla.nn.DeiT.__name__, mhla.nn is __import__('mhla.nn').nn)\n"
               "try: mhla.nix\nexcept AttributeError as e: print(e)")
    assert done.stdout.split("\n")[:2] == ["DeiT True", "module 'mhla' has no attribute 'nix'"], done.stderr


def test_every_public_function_has_an_example():
    results = ("Generation", "Piece", "Sequence")  # which LanguageModel's shows
    for name in mhla.__all__:
        if not name.endswith("Error") and name not in (*results, "diffusion"):
            assert ">>>" in (getattr(mhla, name).__doc__ or ""), name
    for name in mhla.ops.__all__:
        assert ">>>" in (getattr(mhla.ops, name).__doc__ or ""), name


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_numpy_alone():
    """With torch hidden: import, every operator, a state; mhla.nn says what is missing."""
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch": raise ImportError("no torch here")
sys.meta_path.insert(0, Hide())
import numpy as np, mhla
assert "torch" not in sys.modules
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 8), dtype=np.float32)
a = mhla.attention(q, k, v, mhla.mix_init("paper", (2, 2)), (4, 4), (2, 2))
b, s = mhla.causal_attention(q, k, v, mhla.mix_init("causal", 4), chunk_size=4, output_final_state=True)
c, _ = mhla.linear_attention(q, k, v, feature="elu")
d = mhla.softmax_attention(q, k, v, causal=True)
assert all(np.isfinite(x).all() for x in (a, b, c, d, s.summaries))
e, _ = mhla.causal_attention(q[:, :5], k[:, :5], v[:, :5], mhla.mix_init("causal", 4), chunk_size=4, initial_state=s._replace(
    summaries=s.summaries[:, :0], past=0))
assert np.allclose(e, b[:, :5], atol=1e-5)
state = mhla.State(mhla.mix_init("causal", 4), 2, 8, 8, chunk_size=4)
assert np.allclose(state.step(q[0], k[0], v[0]), b[0], atol=1e-5)
assert np.allclose(mhla.attention(q[..., ::-1], k[..., ::-1], v, mhla.mix_init("paper", (2, 2)), (4, 4), (2, 2)), a, atol=1e-5)
try: mhla.attention(q.astype(float), k, v, mhla.mix_init("paper", (2, 2)), (4, 4), (2, 2))
except mhla.Error as error: assert "float64" in str(error)
else: raise SystemExit("float64 was taken")
model = mhla.create("deit_nano", depth=1)
assert np.isfinite(model(np.zeros((1, 3, 28, 28), np.float32))).all() and model.state_dict()
try: import mhla.nn
except ImportError as error: print(error)
"""
    result = run(code)
    assert result.stdout == "mhla.nn needs PyTorch, the package torch (no torch here): pip install torch\n", result.stderr


def test_nn_without_torch_names_the_package():
    for code in ("import mhla.nn", "import mhla; mhla.nn"):
        done = run(f"import sys; sys.modules['torch'] = None; {code}")
        assert "ImportError: mhla.nn needs PyTorch, the package torch" in done.stderr and "pip install torch" in done.stderr


@pytest.mark.parametrize("order", ["torch, mhla", "mhla, torch"])
def test_one_openmp_runtime(order):
    result = run(f"import {order}; import mhla; print(len(mhla.info()['openmp']))")
    assert result.stdout == "1\n", result.stderr


def test_a_runtime_of_another_name_is_shared_too(tmp_path):
    """Some torch wheels rename their libgomp: a second runtime is then loaded, but its threads alone work."""
    own = next(p for p in mhla.info()["openmp"] if "libgomp" in p)
    twin = tmp_path / "libgomp-0123abcd.so.1"
    twin.write_bytes(pathlib.Path(own).read_bytes().replace(b"libgomp.so.1\0", b"libgomq.so.1\0"))
    code = f"""
import ctypes, os, sys, time
theirs = ctypes.CDLL({str(twin)!r}, mode=ctypes.RTLD_LOCAL)
sys.modules["torch"] = None
import numpy as np, mhla
assert len(mhla.info()["openmp"]) == 2 and mhla.info()["openmp_used"] == {str(twin)!r}, mhla.info()
count = lambda: len(os.listdir("/proc/self/task"))
q, k, v = np.random.default_rng(0).standard_normal((3, 2, 256, 4, 32), dtype=np.float32)
work = lambda: mhla.attention(q, k, v, mhla.mix_init("paper", (4, 4)), (16, 16), (4, 4))
theirs.omp_set_num_threads(1)
serial, before = work(), count()
theirs.omp_set_num_threads(5)
assert mhla.info()["threads"] == 5
parallel, after = work(), count()
theirs.GOMP_parallel(ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p), None, 5, 0)
assert (serial == parallel).all()
for _ in range(200):  # a thread that a smaller team has sent away may still be on its way out
    if count() - before == 4: break
    time.sleep(0.05)
print(after > before, count() - before, flush=True)
import signal
for threads in (0, 3):  # a forked child has none of those threads
    mhla.set_num_threads(threads)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if (work() == serial).all() else 1)
    print(os.waitpid(pid, 0)[1])
"""
    result = run(code)
    assert result.stdout == "True 4\n0\n0\n", result.stdout + result.stderr


def test_type_hints_are_announced():
    assert (pathlib.Path(mhla.__file__).parent / "py.typed").exists()


def test_version_is_the_header_s():
    header = pathlib.Path(__file__).resolve().parents[2] / "include/mhla/mhla.h"
    text = header.read_text()
    numbers = [text.split(f"VERSION_{part} ")[1].split()[0] for part in ("MAJOR", "MINOR", "PATCH")]
    assert mhla.__version__ == ".".join(numbers)


def test_info_names_the_machine():
    info = mhla.info()
    assert info["isa"] in info["available"].split() and info["cpus"] >= 1 and info["threads"] >= 1
