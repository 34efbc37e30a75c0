"""What all parts of goldens.py share: a case with its tensors and results, the list of what is known, the program run_model."""
import json
import math
import pathlib
import re
import struct
import subprocess
import tempfile

import numpy as np
import torch

OUT, GRAD = 1e-5, 2e-5
PROGRAM = "build/run_model"
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


class Skip(Exception):
    """This case needs something that is not built yet."""


class Results:
    """What was compared: (name, error, tolerance)."""

    def __init__(self, path):
        self.path, self.results = path, []

    def same(self, name, equal):
        """Something that is right or wrong."""
        self.results.append((name, 0.0 if equal else math.inf, OUT))

    def near(self, name, got, golden, tolerance):
        """A number, by its own size."""
        error = abs(got - golden) / (abs(golden) or 1.0)
        self.results.append((name, error if math.isfinite(error) else math.inf, tolerance))


class Case(Results):
    """One file: tensors, and the metadata's config with its other keys beside it."""

    def __init__(self, path):
        super().__init__(path)
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        meta = header.pop("__metadata__", {})
        self.config = json.loads(meta.get("config", "{}"))
        for key in ("case", "note"):
            self.config.setdefault(key, meta.get(key, ""))
        self.tensors = {}
        for name, entry in header.items():
            if entry["dtype"] in DTYPES:
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                self.tensors[name] = torch.from_numpy(np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy())

    def __getitem__(self, key):
        return self.config.get(key)

    def first(self, *keys):
        """The value of the first of these keys that the config has."""
        return next((self.config[key] for key in keys if self.config.get(key) is not None), None)

    def group(self, prefix):
        return {name[len(prefix) :]: x for name, x in self.tensors.items() if name.startswith(prefix)}

    def inputs(self):
        """in.* by name, those that are real numbers with a gradient."""
        return {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in self.group("in.").items()}

    def compare(self, name, got, golden, tolerance):
        got, golden = got.detach().double().reshape(golden.shape), golden.double()
        error, size = float((got - golden).abs().max()), float(golden.abs().max())
        relative = float((self["f32_vs_f64_rel"] or {}).get(name, 0))
        kind = name.split(".")[0] + "."
        largest = max((float(x.abs().max()) for n, x in self.tensors.items() if n.startswith(kind) and x.numel()), default=size)
        if relative > tolerance / 2 or (kind == "grad." and size < 1e-4 * largest):
            # nearly zero in truth, a difference of equal terms: float32 has no digits of it, so it is judged absolutely
            size, name = largest, name + " (absolutely)"
        self.results.append((name, error / size if size > 0 else error, tolerance))
        if not math.isfinite(error):
            self.results[-1] = (name, math.inf, tolerance)

    def backward(self, outputs, leaves):
        """Compares outputs by name, sends dout.* back and compares gradients, under any of the names that files use."""
        for name, y in outputs.items():
            self.compare(f"out.{name}", y, self.tensors[f"out.{name}"], OUT)
        pairs = [(y, self.tensors[f"dout.{n}"]) for n, y in outputs.items() if f"dout.{n}" in self.tensors]
        if not pairs:
            return
        torch.autograd.backward([y for y, _ in pairs], [d for _, d in pairs])
        found = 0
        for name, leaf in leaves.items():
            for golden in (f"grad.{name}", f"grad.{name.split('.', 1)[1]}", f"out.grad.{name}"):
                if golden in self.tensors:
                    grad = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                    self.compare(golden, grad, self.tensors[golden], GRAD)
                    found += 1
                    break
        wanted = sum(n.startswith(("grad.", "out.grad.")) for n in self.tensors)
        if found != wanted:
            self.results.append((f"{wanted - found} gradients that nothing has", math.inf, GRAD))

    def module(self, module, *names, output="y"):
        """A module with param.* as its state_dict, fed with in.<names>."""
        module.load_state_dict(self.group("param."), strict=True)
        module.eval()
        inputs = self.inputs()
        y = module(*(inputs[n] for n in names or ("x",)))
        leaves = {f"in.{n}": x for n, x in inputs.items()} | {f"param.{n}": p for n, p in module.named_parameters()}
        self.backward({output: y}, leaves)


# ---- What is known ---------------------------------------------------------------------------------------------------

KNOWN = []


def known(test=None, **conditions):
    """Registers a runner for cases whose config matches: each value is a regular expression; or that `test` finds fit."""

    def register(function):
        KNOWN.append((test, conditions, function))
        return function

    return register


def runner(case):
    for test, conditions, function in KNOWN:
        if test(case) if test else all(re.fullmatch(pattern, str(case[key] or "")) for key, pattern in conditions.items()):
            return function
    return None


# ---- run_model (tests/goldens/run_model.c): files go to and fro -------------------------------------------------------------

def write_safetensors(path, tensors):
    header, at, parts = {}, 0, []
    kinds = {torch.float32: "F32", torch.int64: "I64", torch.uint8: "U8"}
    for name, x in tensors.items():
        size = x.numel() * x.element_size()
        header[name] = {"dtype": kinds[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + size]}
        at += size
        parts.append(x)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in parts:
            file.write(x.detach().contiguous().numpy().tobytes())


def call(*arguments):
    """Runs run_model; what it cannot do yet is a reason to skip."""
    if not pathlib.Path(PROGRAM).is_file():
        raise Skip(f"{PROGRAM} is not built")
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    said = done.stderr.strip()
    if said.startswith("run_model: not supported: "):
        raise Skip(said.removeprefix("run_model: not supported: "))
    if done.returncode:
        raise RuntimeError(said or f"run_model ended with {done.returncode}")


def program(*arguments):
    """The results of a verb of run_model that writes to the place {out}."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.safetensors"
        call(*(out if a == "{out}" else a for a in arguments))
        return Case(out).tensors


def run_model(verb, config, parameters, inputs, *arguments):
    """What a verb of run_model makes of a model and inputs, by name."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", parameters)
        write_safetensors(folder / "in.safetensors", inputs)
        return program(verb, folder, folder / "in.safetensors", "{out}", *arguments)


def run_frame(what, config, parameters, inputs, verb="frame"):
    """What a block of a diffusion model, or its attention alone, makes of inputs, by name."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "in.safetensors", inputs | {f"param.{name}": x for name, x in parameters.items()})
        return program(verb, what, folder / "config.json", folder / "in.safetensors", "{out}")


def run_json(verb, cases, *before, suffix=".json"):
    """What a verb of run_model that reads and writes JSON makes of a list of cases."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = pathlib.Path(folder) / f"in{suffix}", pathlib.Path(folder) / "out.json"
        source.write_text(json.dumps(cases) if suffix == ".json" else "".join(json.dumps(c) + "\n" for c in cases))
        call(verb, *before, source, out)
        return json.loads(out.read_text())
