"""The streaming state: a sequence that is fed token by token, forked into beams, rolled back, kept on the disk.

    pip install .                               # once, in this repository; NumPy is enough
    python examples/streaming.py
"""
import pickle

import numpy as np

import mhla

T, H, K, V, CHUNK = 300, 4, 64, 64, 32
rng = np.random.default_rng(0)
q, k = rng.standard_normal((2, T, H, K), dtype=np.float32)
v = rng.standard_normal((T, H, V), dtype=np.float32)
mix = mhla.mix_init("causal", 16)  # 16 chunks of 32 tokens at most; row i weighs the chunks 0 .. i

# a prompt in one call, then token by token; the parallel form, which is trained with, gives the same
state = mhla.State(mix, heads=H, key_dim=K, value_dim=V, chunk_size=CHUNK)
o = [state.step(q[:200], k[:200], v[:200])]
o += [state.step(q[t:t + 1], k[t:t + 1], v[t:t + 1]) for t in range(200, T)]
whole, _ = mhla.causal_attention(q[None], k[None], v[None], mix, chunk_size=CHUNK)
difference = np.abs(np.concatenate(o) - whole[0]).max()
print(f"{state}: {difference:.1e} from the parallel form")
assert difference < 1e-3

# back to a boundary of chunks, exactly as if the rest had never been there
state.rollback(256)
print(f"rolled back: {state}")
again = state.step(q[256:], k[256:], v[256:])
assert np.allclose(again, whole[0, 256:], atol=1e-3)

# beams: forks share the finished summaries, and one call feeds all of them
state.rollback(256)
beams = [state.fork() for _ in range(4)]
new = rng.standard_normal((3, 4, 1, H, K), dtype=np.float32)
answers = mhla.step(beams, *new)
print(f"4 beams of {beams[0].tokens} tokens answer {answers.shape}; the sequence they come from is still at {state.tokens}")
assert state.tokens == 256 and beams[0].tokens == 257

# kept and taken up again: the same bits
twin = pickle.loads(pickle.dumps(beams[0]))
next_token = rng.standard_normal((3, 1, H, K), dtype=np.float32)
assert (twin.step(*next_token) == beams[0].step(*next_token)).all()
print(f"pickled: {len(pickle.dumps(twin)):,} bytes")
