"""What a causal operator carries from one piece of a sequence to the next: its summaries, and where they come from."""
from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ._plans import Error

try:
    import torch

    ARRAYS: tuple = (np.ndarray, torch.Tensor)
except ImportError:
    ARRAYS = (np.ndarray,)

Array = Any  # one of those


class CausalState(NamedTuple):
    """The state that :func:`causal_attention` and :func:`linear_attention` return for ``output_final_state=True``.

    Pass it as ``initial_state`` with the tokens that follow: pieces of any length give the result of the whole sequence, and
    its gradients. It knows its position and the settings that its numbers depend on; a call with other settings refuses it.

    summaries: [B,N,G,K,V], float32, N chunks of which the last may be open; linear attention: [B,G,K,V].
    z: the sums of keys, summaries without their last axis, where there is a denominator; else None.
    past: tokens so far; an array [sequences] after a call with cu_seqlens.
    made: names and values of the settings.

    >>> import numpy as np, mhla
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 50, 2, 8), dtype=np.float32)
    >>> _, state = mhla.causal_attention(q, k, v, mhla.mix_init("causal", 4), output_final_state=True, chunk_size=32)
    >>> state.past, state.summaries.shape
    (50, (1, 2, 2, 8, 8))
    """

    summaries: Array
    z: Optional[Array]
    past: Union[int, Array]
    made: tuple

    def detach(self) -> "CausalState":
        """The same numbers without their history, for training on pieces with truncated gradients (torch)."""
        return self._replace(summaries=self.summaries.detach(), z=None if self.z is None else self.z.detach())

    def take(self, sequence: int) -> "CausalState":
        """The state of one sequence of the batch, or of the packed ones."""
        past = int(self.past[sequence]) if isinstance(self.past, ARRAYS) else self.past
        one = [None if x is None else x[sequence : sequence + 1] for x in (self.summaries, self.z)]
        chunk = dict(self.made).get("chunk_size")
        if chunk is not None:  # behind the sequence's own chunks are zeros
            one = [None if x is None else x[:, : -(-past // chunk)] for x in one]
        return self._replace(summaries=one[0], z=one[1], past=past)

    def __repr__(self) -> str:
        return f"<mhla.CausalState of {self.past} tokens, summaries {tuple(self.summaries.shape)}>"


def initial(given: Any, past: Optional[int], made: tuple, optional: bool = False) -> tuple:
    """(summaries, z, past) of an initial_state: one of ours, or plain arrays, for which a caller has to say `past` too (unless
    it is optional). A `past` that is an array says that sequences differ."""
    if given is None:
        return None, None, past or 0
    if not isinstance(given, CausalState):
        if past is None and not optional:
            raise Error("initial_state is a plain array: pass the state that output_final_state=True returned, or say past=")
        state, z = given if isinstance(given, (tuple, list)) else (given, None)
        return state, z, past or 0
    for (name, was), (_, now) in zip(given.made, made):
        if was != now:
            raise Error(f"initial_state was made with {name} {was}: this call has {now}")
    before, chunk = given.past, dict(made).get("chunk_size")
    if isinstance(before, ARRAYS) and len(set(before.tolist())) == 1:  # packed sequences, all of one length
        before = int(before[0])
        if chunk is not None:
            given = given._replace(summaries=given.summaries[:, : -(-before // chunk)],
                                   z=None if given.z is None else given.z[:, : -(-before // chunk)])
    differ = isinstance(before, ARRAYS)
    if past is not None and (differ or past != before):
        raise Error(f"past is {past}: initial_state has seen {before} tokens")
    if not differ and before == 0 and chunk is not None:  # nothing yet
        return None, None, 0
    return given.summaries, given.z, before


def final(summaries: Array, z: Optional[Array], past: Any, tokens: Any, cu_seqlens: Optional[Array], made: tuple) -> CausalState:
    """After `tokens` more, or as many as cu_seqlens says."""
    if cu_seqlens is None:
        return CausalState(summaries, z, past + tokens, made)
    ends = cu_seqlens if isinstance(cu_seqlens, ARRAYS) else np.asarray(cu_seqlens)
    return CausalState(summaries, z, past + (ends[1:] - ends[:-1]), made)


def ends_of(cu_seqlens: Array, tokens: int) -> list:
    """cu_seqlens as a list, for sequences that are cut out of `tokens` here."""
    ends = [int(x) for x in (cu_seqlens.tolist() if isinstance(cu_seqlens, ARRAYS) else cu_seqlens)]
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != tokens or any(a > b for a, b in zip(ends, ends[1:])):
        raise Error(f"cu_seqlens is {ends}: expected 0, numbers that do not decrease, and the number of tokens, {tokens}")
    return ends


def apart(one: Callable, tensors: tuple, state: CausalState, cu_seqlens: Optional[Array], wanted: bool) -> tuple:
    """Sequences that are at different positions, one after the other: one(tensors, state) -> (o, final state)."""
    q = tensors[0]
    arrays = isinstance(q, np.ndarray)
    if arrays:
        cat, zeros = np.concatenate, np.zeros
    else:
        cat, zeros = torch.cat, state.summaries.new_zeros
    ends = range(len(state.past) + 1) if cu_seqlens is None else ends_of(cu_seqlens, q.shape[1])
    if len(ends) != len(state.past) + 1:
        raise Error(f"initial_state has {len(state.past)} sequences: cu_seqlens has {len(ends) - 1}")
    if len(state.past) != q.shape[0] and cu_seqlens is None:
        raise Error(f"initial_state has {len(state.past)} sequences: q has a batch of {q.shape[0]}")
    if len(q.shape) != 4 or 0 in q.shape:
        raise Error(f"q has shape {tuple(q.shape)}: expected 1 token or more, [B,T,H,K]")
    outputs, states = [], []
    for s, (a, b) in enumerate(zip(ends, ends[1:])):
        before = state.take(s)
        if a == b:
            states.append(before)
            continue
        part = tuple(x if x is None else x[a:b] if cu_seqlens is None else x[:, a:b] for x in tensors)
        o, after = one(part, before)
        outputs.append(o)
        states.append(after)
    o = cat(outputs, 0 if cu_seqlens is None else 1)
    if not wanted:
        return o, None

    def together(each: list) -> Optional[Array]:
        if each[0] is None:
            return None
        if "chunk_size" in dict(state.made):
            most = max(x.shape[1] for x in each)
            each = [cat([x, zeros((1, most - x.shape[1], *x.shape[2:]), dtype=x.dtype)], 1) for x in each]
        return cat(each, 0)

    past = [x.past for x in states]
    return o, CausalState(together([x.summaries for x in states]), together([x.z for x in states]),
                          np.array(past) if arrays else torch.tensor(past), state.made)
