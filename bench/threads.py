#!/usr/bin/env python3
"""Do our threads and PyTorch's fight? Counts the OpenMP runtimes of the process, then times a torch matrix product and
our operator alone, and in turn: with one runtime the turns cost what the two cost alone; with two runtimes each waits
for the other's spinning threads. Also: what a call through torch costs over the C call.

    python bench/threads.py            (after pip install .)
    python bench/threads.py --seconds 0.2
"""
import argparse
import time

import torch

import mhla
from mhla import _torch


SECONDS = 1.0  # for each figure


def best(function, clock=time.perf_counter):
    """Least seconds per call over many short runs."""
    function()
    begin = clock()
    function()
    calls = max(1, int(0.01 / max(clock() - begin, 1e-9)))  # runs of about 10 ms
    least, end = float("inf"), time.perf_counter() + SECONDS
    while least == float("inf") or time.perf_counter() < end:
        begin = clock()
        for _ in range(calls):
            function()
        least = min(least, (clock() - begin) / calls)
    return least


def turns():
    x, w = torch.randn(1024, 512), torch.randn(512, 512)
    q, k, v = (torch.randn(1, 1024, 6, 64) for _ in range(3))
    mix = torch.from_numpy(mhla.mix_init("paper", (4, 4)))

    def product():
        return x @ w

    def operator():
        return mhla.attention(q, k, v, mix, (32, 32), (4, 4))

    def both():
        product()
        operator()

    with torch.no_grad():
        a, b, c = best(product), best(operator), best(both)
    print(f"torch matmul {a * 1e6:.0f} us, mhla {b * 1e6:.0f} us, in turn {c * 1e6:.0f} us: {c / (a + b):.2f} of the sum")


def overhead():
    """A problem so small that the call is everything; one thread, in its CPU time, so that a busy machine matters less."""
    cpu = time.process_time
    q, k, v = (torch.randn(1, 16, 1, 8) for _ in range(3))
    mix = torch.from_numpy(mhla.mix_init("paper", (2, 2)))
    do = torch.ones(1, 16, 1, 8)
    options = ("none relu eq4 raster error tensors", [1e-6, 1e-6, 0.0, 0.0], [0, 0, 0, 0, 4, 4, 2, 2])
    tensors = (q, k, v, mix) + (None,) * 9
    plan = _torch._prepare("attention", tensors, 0, *options).plan
    o = torch.empty(1, 16, 1, 8)
    ints = [1, 16, 16]
    for x in (q, k, v, o):
        ints += _torch._place(x)
    ints += [mix.data_ptr()] + [0] * 18
    in_c = best(lambda: plan.forward(*ints), cpu)
    with torch.no_grad():
        without = best(lambda: mhla.attention(q, k, v, mix, (4, 4), (2, 2)), cpu)
    q.requires_grad_()
    recorded = best(lambda: mhla.attention(q, k, v, mix, (4, 4), (2, 2)), cpu)
    print(f"one small call: {in_c * 1e6:.1f} us in C; through torch {(without - in_c) * 1e6:.1f} us more without, "
          f"{(recorded - in_c) * 1e6:.1f} us more with autograd")
    grads = [torch.empty(1, 16, 1, 8)]
    back = list(ints)
    back[15] = do.data_ptr()
    back += [grads[0].data_ptr()] + [0] * 9
    in_c = best(lambda: plan.backward(*back), cpu)
    wanted = [True] + [False] * 7
    args = (do, None, None, wanted, *tensors, 0, False, *options)
    through = best(lambda: _torch.AUTOGRAD_BACKWARD["attention"](*args), cpu)
    print(f"its backward: {in_c * 1e6:.1f} us in C; through torch {(through - in_c) * 1e6:.1f} us more (autograd's engine apart)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each figure")
    globals()["SECONDS"] = parser.parse_args().seconds
    runtimes = mhla.info()["openmp"]
    print(f"{len(runtimes)} OpenMP runtime{'' if len(runtimes) == 1 else 's'}: {', '.join(runtimes)}")
    print(f"threads: torch {torch.get_num_threads()}, mhla {mhla.info()['threads']}")
    turns()
    torch.set_num_threads(1)
    overhead()


if __name__ == "__main__":
    main()
