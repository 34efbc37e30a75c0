"""The operators of Mamba: selective scan and short convolution, by the engine and by definition."""
from golden_case import GRAD, OUT, Skip, known, program

EXACT = 1e-6  # the definition is computed in double


def compare(case, got):
    for kind, tolerance in (("out", OUT), ("grad", GRAD)):
        for name, golden in case.group(f"{kind}.").items():
            for by, allowed in (("", tolerance), (".reference", EXACT)):
                if f"{kind}.{name}{by}" in got:
                    case.compare(f"{kind}.{name}{by}", got[f"{kind}.{name}{by}"], golden, allowed)
                else:
                    case.same(f"{kind}.{name}, which nothing has", False)


@known(op="selective_scan")
def selective_scan(case):
    compare(case, program("mamba", "selective_scan", case.path, "{out}", int(bool(case["delta_softplus"]))))


@known(op="short_conv")
def short_conv(case):
    if case["activation"] not in (None, "silu", "swish"):
        raise Skip("no short convolution with this activation here")
    compare(case, program("mamba", "short_conv", case.path, "{out}", int(case["activation"] is not None)))
