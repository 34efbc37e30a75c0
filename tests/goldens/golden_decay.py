"""Recurrences with decay: GLA, simple GLA, RetNet's retention, Mamba2's, the gated delta rule. run_model computes them; what stands around the operator is here."""
import pathlib
import tempfile

import torch

from golden_case import known, program, write_safetensors

NAMES = ("q", "k", "v", "decay", "initial_state", "beta")


class Operator(torch.autograd.Function):
    """An operator of run_model with its gradients: o and the final state."""

    @staticmethod
    def forward(ctx, name, scale, cu, *inputs):
        ctx.name, ctx.scale, ctx.cu = name, scale, cu
        ctx.save_for_backward(*inputs)
        got = Operator.run(ctx, inputs)
        return got["out.o"], got["out.final_state"]

    @staticmethod
    def backward(ctx, do, dfinal):
        got = Operator.run(ctx, ctx.saved_tensors, {"dout.o": do, "dout.final_state": dfinal})
        return (None, None, None, *(got.get(f"grad.in.{n}") for n in NAMES))

    @staticmethod
    def run(ctx, inputs, more={}):
        tensors = {f"in.{n}": x.detach() for n, x in zip(NAMES, inputs) if x is not None} | more
        if ctx.cu is not None:
            tensors["in.cu_seqlens"] = ctx.cu
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "in.safetensors"
            write_safetensors(file, tensors)
            return program("operator", ctx.name, file, "{out}", ctx.scale)


def scale_of(case, K):
    return float(case["scale"]) if isinstance(case["scale"], (int, float)) else K**-0.5


def decayed(case, name, decay):
    x = case.inputs()
    g = decay(x)
    o, state = Operator.apply(name, scale_of(case, x["q"].shape[-1]), x.get("cu_seqlens"), x["q"], x["k"], x["v"], g,
                              x.get("initial_state"), x.get("beta"))
    case.backward({"o": o, "final_state": state}, {f"in.{n}": t for n, t in x.items()})


@known(op="gla")
def gla(case):
    decayed(case, "gla", lambda x: x["gk"])


@known(op="simple_gla")
def simple_gla(case):
    decayed(case, "simple_gla", lambda x: x["g"])


@known(op="gated_delta_rule")
def gated_delta_rule(case):
    decayed(case, "gated_delta_l2norm" if case["qk_l2norm"] else "gated_delta", lambda x: x["g"])


@known(op="l2norm")
def l2norm(case):
    """Of q, in the delta rule: nothing decays or is added, and the state is the identity."""
    x = case.inputs()["x"]
    if case["eps"] != 1e-6:
        raise Skip("the delta rule's norm has an eps of 1e-6")
    rows, D = x.numel() // x.shape[-1], x.shape[-1]
    q = x.reshape(1, rows, 1, D)
    none = torch.zeros(1, rows, 1)
    o, _ = Operator.apply("gated_delta_l2norm", 1.0, None, q, torch.ones_like(q), torch.zeros_like(q), none, torch.eye(D)[None, None], none)
    case.backward({"y": o.reshape(x.shape)}, {"in.x": x})


@known(op="retention")
def retention(case):
    def gammas(x):
        B, T, H, _ = x["q"].shape
        return torch.log1p(-(2.0 ** (-5 - torch.arange(H, dtype=torch.float64)))).float().expand(B, T, H)

    decayed(case, "simple_gla", gammas)


@known(op="ssd")
def ssd(case):
    """q = C, k = B, v = dt x, decay dt A, and D x beside it; the state is [P,N] there."""
    x = case.inputs()
    p = {n: t.clone().requires_grad_() for n, t in case.group("param.").items()}
    dt = x["dt"] + p["dt_bias"] if "dt_bias" in p else x["dt"]
    if case["dt_softplus"]:
        dt = torch.nn.functional.softplus(dt)
    low, high = map(float, case["dt_limit"] or (0, "inf"))
    dt = dt.clamp(low, high)
    start = x["initial_state"].transpose(2, 3) if "initial_state" in x else None
    o, state = Operator.apply("simple_gla", 1.0, x.get("cu_seqlens"), x["C"], x["B"], x["x"] * dt[..., None], dt * p["A"], start)
    y = o + x["x"] * p["D"][:, None] if "D" in p else o
    leaves = {f"in.{n}": t for n, t in x.items()} | {f"param.{n}": t for n, t in p.items()}
    case.backward({"y": y, "final_state": state.transpose(2, 3)}, leaves)
