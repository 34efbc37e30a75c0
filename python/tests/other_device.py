"""A device that is not the CPU, for a process of its own: PyTorch's hooks for Python backends, and tensors that are shapes
only. Operators and modules take the path that they would take on a real one, gradients included; test_unusual.py runs this."""
import warnings

import test_unusual
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import mhla

_setup_privateuseone_for_python_backend("toy")


def moved(layer: nn.Module) -> nn.Module:
    """What .to("toy") does to real tensors; shapes it does not take."""
    for module in layer.modules():
        for name, p in module._parameters.items():
            if p is not None:
                module._parameters[name] = nn.Parameter(torch.empty(p.shape, device="toy"))
        for name, b in module._buffers.items():
            if b is not None:
                module._buffers[name] = torch.empty(b.shape, device="toy")
    return layer


def check(x: torch.Tensor, shape: tuple) -> None:
    assert x.device.type == "toy" and x.shape == shape, (x.device, x.shape)


with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings(record=True) as notes:
    warnings.simplefilter("always")
    test_unusual.MIX = test_unusual.CAUSAL = mix = torch.empty(4, 4, device="toy")
    for name, function in test_unusual.CALLS.items():
        leaves = [torch.empty(2, 16, 2, 8, device="toy", requires_grad=True) for _ in range(3)]
        if name == "offsets":  # these are read, so they stay
            continue
        o = function(*leaves)
        check(o, (2, 16, 2, 8))
        for g in torch.autograd.grad(o.sum(), leaves):
            check(g, (2, 16, 2, 8))
    _, state = mhla.causal_attention(*leaves, mix, output_final_state=True, chunk_size=8, denominator="eq4")
    check(state.summaries, (2, 2, 2, 8, 8))
    o, state = mhla.causal_attention(*leaves, mix, initial_state=state, output_final_state=True, chunk_size=8, denominator="eq4")
    check(o, (2, 16, 2, 8))
    check(state.z, (2, 4, 2, 8))
    for name, make in test_unusual.MODULES.items():
        layer, shape = make()
        y = moved(layer)(torch.empty(shape, device="toy"))
        check(y, shape)
        y.sum().backward()
        for p in layer.parameters():
            check(p.grad, p.shape)
    try:
        mhla.inline_attention(leaves[0], torch.empty(2, 16, 2, 8), leaves[2])
    except mhla.Error as error:
        print(error)
for note in notes:
    if "mhla" in str(note.message):
        print(note.message)
