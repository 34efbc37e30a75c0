"""Golden cases of text: language models whole, and the lists in JSON of tokenizers, sampling and evaluation, which are known by
their keys. run_model computes all of them."""
import hashlib
import json
import math
import os
import pathlib
import re
import tempfile

import torch

from golden_case import GRAD, OUT, Case, Results, Skip, known, program, run_json, run_model, write_safetensors
from golden_formula import formula_parameters

SPECIAL, SKIP_SPECIAL, TRUNCATE = 1, 1, 4  # MHLA_ENCODE_SPECIAL, MHLA_DECODE_SKIP_SPECIAL, MHLA_ENCODE_TRUNCATE


# ---- Language models ----


def inputs_of(case, *names):
    return {f"in.{ours}": case.tensors[f"in.{theirs}"] for ours, theirs in names if f"in.{theirs}" in case.tensors}


# Gradients of whole models with the delta rule: where q and k are nearly at right angles a norm makes what is left of them large, and
# PyTorch in float32 is 5.6e-5 away from these goldens, which grant long recurrences this much.
DELTA_GRAD = 5e-5


def compare_model(case, got, gradients):
    tolerance = DELTA_GRAD if case["kind"] == "gated_deltanet" else GRAD
    case.compare("out.logits", got["out.logits"], case.tensors["out.logits"], OUT)
    if "out.loss" in case.tensors and "out.loss" in got:
        case.compare("out.loss", got["out.loss"], case.tensors["out.loss"], OUT)
    for name, golden in case.group(gradients).items():
        found = got.get(f"grad.param.{name}")
        if found is None:
            case.same(f"grad.{name}, which nothing has", False)
        else:
            case.compare(f"grad.{name}", found, golden, tolerance)
    if "out.greedy_ids" in case.tensors:
        case.same("out.greedy_ids", torch.equal(got["out.greedy_ids"].long(), case.tensors["out.greedy_ids"]))
    if "out.greedy_logits" in case.tensors:
        case.compare("out.greedy_logits", got["out.greedy_logits"], case.tensors["out.greedy_logits"], OUT)


def run_folder(case, folder):
    """A case of token ids with the model of a folder."""
    inputs = inputs_of(case, ("input_ids", "input_ids"), ("labels", "labels"), ("prompt_ids", "prompt_ids"))
    new = 0
    if "out.greedy_ids" in case.tensors:
        new = case.tensors["out.greedy_ids"].numel() - case.tensors["in.prompt_ids"].numel()
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "in.safetensors"
        write_safetensors(file, inputs)
        return program("lm", folder, file, "{out}", new)


@known(test=lambda case: "in.input_ids" in case.tensors and (case.path.parent / "config.json").is_file())
def lm_folder(case):
    """Beside a model as the Python world writes them."""
    compare_model(case, run_folder(case, case.path.parent), "grad.")


def lm_config(parameters, **said):
    """A released language model with MHLA: what no tensor tells is given."""
    attn = "model.layers.0.attn."
    vocabulary, width = parameters["model.embeddings.weight"].shape
    gate = attn + "g_norm_swish_gate.weight"
    value = len(parameters[gate if gate in parameters else attn + "g_norm.weight"])
    keys, values = (len(parameters[f"{attn}{n}_proj.weight"]) for n in "qv")
    heads = parameters[attn + "o_proj.weight"].shape[1] // value
    return {"model_type": "gla", "vocab_size": vocabulary, "hidden_size": width, "num_heads": heads, "num_kv_heads": values // value,
            "num_hidden_layers": 1 + max(int(m[1]) for n in parameters if (m := re.match(r"model\.layers\.(\d+)\.", n))),
            "intermediate_size": len(parameters["model.layers.0.mlp.gate_proj.weight"]), "expand_k": keys / width,
            "expand_v": heads * value / width, "tie_word_embeddings": "lm_head.weight" not in parameters, "attn_mode": "chunk",
            "use_output_gate": gate in parameters} | {k: v for k, v in said.items() if v is not None}


@known(case="lm-mhla-model")
def lm_released(case):
    parameters = case.group("param.")
    config = lm_config(parameters, num_heads=case["heads"], feature_map=case["feature_map"], norm_eps=case["norm_eps"],
                       chunk_size=case["chunk"], rope_theta=case["rope_base"])
    got = run_model("lm", config, parameters, inputs_of(case, ("input_ids", "ids"), ("labels", "ids")), 0)
    compare_model(case, got, "grad.param.")


@known(case="LM .* full size.*")
def lm_full(case):
    """Takes some gigabytes: parameters are 32 bits wide, and packed once more."""
    room = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable")) * 1024
    if room < 16 * (case["params"] or 0):
        raise Skip(f"{case['params']:,} parameters need {16 * case['params'] / 2**30:.0f} GiB of free memory, here are {room / 2**30:.0f}")
    parameters, ids = formula_parameters(case), case.tensors["in.ids"]
    got = run_model("lm", lm_config(parameters, feature_map=case["feature_map"] or "relu", chunk_size=case["chunk"] or 64), parameters, {"in.input_ids": ids}, 0)["out.logits"]
    case.compare("out.logits", got[0, case["positions"]], case.tensors["out.logits"], OUT)
    if "out.loss" in case.tensors:
        loss = torch.nn.functional.cross_entropy(got[0, :-1].double(), ids[0, 1:])
        case.compare("out.loss", loss, case.tensors["out.loss"], OUT)


@known(case=r"gemma[23]_model.*")
def gemma(case):
    """As a text encoder's folder has it, without a prefix; Gemma 3 also as part of a model that sees images. Rows behind a text's end are
    of no meaning."""
    third, parameters = case["case"].startswith("gemma3"), case.group("param.")
    config, seen = case.config | {"model_type": "gemma3_text" if third else "gemma2"}, case.tensors["in.attention_mask"].bool()
    whole = {"model_type": "gemma3", "text_config": config}
    more = {f"language_model.model.{n}": x for n, x in parameters.items()} | {"vision_tower.x.weight": torch.zeros(2, 2)}
    for config, parameters in ((config, parameters), (whole, more))[: 1 + third]:
        got = run_model("lm", config, parameters, inputs_of(case, ("input_ids", "input_ids")), 0)
        for name, golden in case.group("out.").items():
            if f"out.{name}" in got:
                case.compare(f"out.{name}", got[f"out.{name}"][seen], golden[seen], OUT)
            elif not name.endswith("_normed"):
                case.same(f"out.{name}, which nothing has", False)


# ---- Tokenizers ----


def tokenize(path, texts, flags=0):
    """(ids, pieces) of each text, bytes."""
    return [(r["ids"], r["pieces"]) for r in run_json("tokens", [{"hex": t.hex(), "flags": flags} for t in texts], path)]


def detokenize(path, lists, flags=0):
    return [bytes.fromhex(r["hex"]) for r in run_json("tokens", [{"ids": ids, "flags": flags} for ids in lists], path)]


def text_of(row):
    return bytes.fromhex(row["utf8_hex"]) if "utf8_hex" in row else row["text"].encode("utf-8", "surrogatepass")


def all_same(case, what, rows, got, golden):
    if not rows:
        return
    wrong = [i for i, (a, b) in enumerate(zip(got, golden)) if a != b]
    said = f", the first wrong one {json.dumps(rows[wrong[0]])[:80]}" if wrong else ""
    case.same(f"{what} of {len(rows)}: {len(wrong)} differ{said}", not wrong and len(got) == len(golden))


def compare_tokens(case, tokenizer, rows):
    """Rows of texts with their ids, or of ids with their text; whatever else a row has is compared, too."""
    texts = [r for r in rows if "text" in r or "utf8_hex" in r]
    bare = [r for r in texts if "pieces" in r or "tokens" in r or "ids_with_special" in r or not case.with_special]
    full = [r for r in texts if r not in bare]
    if bare:
        got = tokenize(tokenizer, [text_of(r) for r in bare])
        all_same(case, "ids", bare, [ids for ids, _ in got], [r["ids"] for r in bare])
        some = [(pieces, r) for (_, pieces), r in zip(got, bare) if "tokens" in r]
        all_same(case, "tokens", [r for _, r in some], [p for p, _ in some], [r["tokens"] for _, r in some])
        some = [r for r in bare if "decoded" in r]
        all_same(case, "texts", some, detokenize(tokenizer, [r["ids"] for r in some]), [r["decoded"].encode() for r in some])
        some = [r for r in bare if "ids_with_special" in r]
        all_same(case, "ids with special tokens", some, [ids for ids, _ in tokenize(tokenizer, [text_of(r) for r in some], SPECIAL)],
                 [r["ids_with_special"] for r in some])
        some = [r for r in some if "decoded_skip_special" in r]
        all_same(case, "texts without special tokens", some, detokenize(tokenizer, [r["ids_with_special"] for r in some], SKIP_SPECIAL),
                 [r["decoded_skip_special"].encode() for r in some])
    if full:
        flags = SPECIAL | (TRUNCATE if case.length else 0)
        all_same(case, "ids with special tokens", full, [ids for ids, _ in tokenize(tokenizer, [text_of(r) for r in full], flags)],
                 [r["ids"] for r in full])
    lists = [r for r in rows if r not in texts]
    for key, flags in (("decoded", 0), ("decoded_skip_special", SKIP_SPECIAL)):
        some = [r for r in lists if key in r]
        all_same(case, key, some, detokenize(tokenizer, [r["ids"] for r in some], flags), [r[key].encode() for r in some])


def elsewhere(text):
    """Files of the folder $MHLA_TOKENIZERS, where published tokenizers are kept, that this text names, or whose SHA-256 it has."""
    folder = os.environ.get("MHLA_TOKENIZERS")
    files = [p for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file()] if folder else []
    return [p for p in files if p.name in text or hashlib.sha256(p.read_bytes()).hexdigest() in text]


def openable(*paths):
    """The first that the engine opens as a tokenizer; else its words are a reason to skip."""
    reason = Skip("no tokenizer")
    for path in paths:
        try:
            run_json("tokens", [], path)
            return path
        except (RuntimeError, Skip) as error:
            reason = Skip(str(error).removeprefix("run_model: "))
    raise reason


def tokenizer_lines(case):
    """JSON lines beside a tokenizer, or beside source.json, which says what published file they belong to."""
    case.with_special, case.length, source = False, None, case.path.with_name("source.json")
    found = elsewhere(source.read_text()) if source.exists() else []
    if source.exists() and not found:
        raise Skip(f"{json.loads(source.read_text()).get('source', 'a published file')}: not in $MHLA_TOKENIZERS")
    compare_tokens(case, openable(*found, *(p.parent for p in found), case.path.parent), case.data)


def tokenizer_list(case):
    """{"tokenizer": name, "cases": [..]}: the name is that of a file beside it, perhaps without what it ends with. Ids without
    pieces are those of whole pipelines, with special tokens, and cut where the tokenizer has a length. Texts that a fixer of broken
    Unicode would change are left out."""
    name, said = case.data["tokenizer"], case.data.get("config")
    case.length = said.get("context_length") if isinstance(said, dict) else None
    found = [p for p in sorted(case.path.parent.iterdir()) if p.name == name or (p.name.startswith(name + ".") and p != case.path)]
    found += elsewhere(json.dumps(case.data.get("config", "")))
    if not found:
        raise Skip(f"no {name} beside it, nor in $MHLA_TOKENIZERS")
    case.with_special = not any("pieces" in r for r in case.data["cases"])
    found.sort(key=lambda p: p.name != name and not p.name.endswith(".model"))
    compare_tokens(case, openable(*found), [r for r in case.data["cases"] if not r.get("ftfy_changes")])


# ---- Sampling ----


def sampling(case):
    got = run_json("candidates", case.data)
    for row, ours in zip(case.data, got):
        wanted = row["expected"]
        name, sizes = row.get("name", "a case"), [size for _, size in wanted["sizes"]]
        case.same(f"{name}: sizes {ours['sizes']}, wanted {sizes}", ours["sizes"][: len(sizes)] == sizes)
        n = len(wanted["candidates"])
        case.same(f"{name}: ids", [i for i, _ in ours["candidates"][:n]] == [i for i, _ in wanted["candidates"]])
        error = max((abs(p - q) for (_, p), (_, q) in zip(ours["candidates"], wanted["candidates"])), default=0.0)
        case.results.append((f"{name}: probabilities", error, 1e-6))


# ---- Evaluation: with the models of text that lie among the goldens; the nearest one is that of the case ----


def models_of_text(case):
    """Folders with a model and its tokenizer under the folder of the goldens, those with the tokenizer of the case."""
    return [p.parent for p in sorted(case.root.rglob("config.json")) if (p.parent / "tokenizer.json").exists()]


def with_nearest_model(case, compare):
    """The list does not say whose numbers it has: among the models it must fit one."""
    tried = []
    for folder in models_of_text(case):
        trial = Results(case.path)
        try:
            compare(trial, folder)
        except (RuntimeError, Skip):  # of another tokenizer or vocabulary
            continue
        tried.append((max((error / tolerance for _, error, tolerance in trial.results), default=math.inf), trial.results, folder))
    if not tried:
        raise Skip("no model with a tokenizer among the goldens that runs here")
    _, case.results, folder = min(tried, key=lambda t: t[0])
    case.note = f"with {folder.relative_to(case.root)}"


def rolling(case):
    rows = [r for r in case.data if r["tokens"]]

    def compare(trial, folder):
        all_same(trial, "tokens", rows, [ids for ids, _ in tokenize(folder, [r["text"].encode() for r in rows])], [r["tokens"] for r in rows])
        for row, ours in zip(rows, run_json("evaluation", rows, folder)):
            for key, tolerance in (("words", 0), ("bytes", 0), ("loglikelihood", OUT), ("bits_per_byte", OUT), ("byte_perplexity", 1e-4),
                                   ("token_perplexity", 1e-4), ("word_perplexity", 1e-3)):
                if tolerance:
                    trial.near(key, ours[key], row[key], tolerance)
                else:
                    trial.same(key, ours[key] == row[key])

    with_nearest_model(case, compare)


def multiple_choice(case):
    questions = [{"context": r["context"], "choices": [c["choice"] for c in r["choices"]],
                  "target_delimiter": r.get("target_delimiter", " "), "gold": 0} for r in case.data]

    def compare(trial, folder):
        for row, ours in zip(case.data, run_json("evaluation", questions, folder, suffix=".jsonl")):
            for choice, got in zip(row["choices"], ours):
                trial.near("loglikelihood", got["loglikelihood"], choice["loglikelihood"], OUT)
                trial.near("norm_loglikelihood", got["norm_loglikelihood"], choice["norm_loglikelihood"], OUT)
                trial.same("is_greedy", got["is_greedy"] == choice["is_greedy"])
            for key, by in (("pred", "loglikelihood"), ("pred_norm", "norm_loglikelihood")):
                trial.same(key, max(range(len(ours)), key=lambda i: ours[i][by]) == row[key])

    with_nearest_model(case, compare)


def echoed(case):
    """Log-probabilities of a prompt's own tokens, and the likeliest in each place."""

    def compare(trial, folder):
        for row in case.data:
            ids = torch.tensor([row["ids"]])
            asked = Case.__new__(Case)
            asked.tensors = {"in.input_ids": ids}
            logprobs = run_folder(asked, folder)["out.logits"][0].double().log_softmax(-1)
            for t, (wanted, top) in enumerate(zip(row["token_logprobs"], row["top_logprobs_ids"])):
                if wanted is None:
                    continue
                trial.results.append(("token_logprobs", abs(float(logprobs[t - 1, ids[0, t]]) - wanted) / max(1.0, abs(wanted)), OUT))
                pairs = top.items() if isinstance(top, dict) else top
                for token, p in pairs:
                    trial.results.append(("top_logprobs", abs(float(logprobs[t - 1, int(token)]) - p) / max(1.0, abs(p)), OUT))

    with_nearest_model(case, compare)


# ---- Published models, where they are ----


def published(case):
    """The file that the case names by its SHA-256: under data/, where `mhla data` lays models out, or $MHLA_SMOLLM2."""
    given = os.environ.get("MHLA_SMOLLM2")
    files = ([pathlib.Path(given)] if given else []) + sorted(pathlib.Path("data").rglob("*.gguf"))
    for path in files:
        if hashlib.sha256(path.read_bytes()).hexdigest() == case.data["sha256"]:
            return path
    raise Skip(f"of a published file, {case.data.get('source', '')}: not in data/ (`mhla data`), nor named by MHLA_SMOLLM2")


def published_model(case):
    """Tokens of texts, their log-probabilities, the likeliest next ones, and greedy continuations."""
    import mhla

    path = published(case)
    try:
        model = mhla.LanguageModel.load(path, storage="float32")
    except mhla.Error as error:
        raise Skip(str(error)) from error
    for row in case.data["cases"]:
        ids = row["ids"]
        case.same(f"{row['text'][:30]!r}: ids", model.tokenizer.encode(row["text"]) == ids)
        logprobs = torch.from_numpy(model.logits(ids)).double().log_softmax(-1)
        wanted = [(t - 1, ids[t], p) for t, p in enumerate(row["token_logprobs"]) if p is not None]
        for t, token, p in wanted + [(len(ids) - 1, token, p) for token, p in row["next_top10"]]:
            case.results.append(("log-probabilities", abs(float(logprobs[t, token]) - p) / max(1.0, abs(p)), 1e-4))
        new = model.generate(ids, max_tokens=len(row["greedy_ids"]), temperature=0).ids
        if new[-1] in model.info["ends"]:  # from there on the file goes its own way
            new.pop()
        case.same(f"{row['text'][:30]!r}: greedy ids", new == row["greedy_ids"][: len(new)])


# ---- Which file is what ----


def kind_of(data):
    """The runner of a list, or the reason why there is none; None where it is not a case."""
    rows = data.get("cases", data.get("tensors")) if isinstance(data, dict) else data
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        return None
    keys = set(rows[0])
    if isinstance(data, dict) and "tokenizer" in data and "ids" in keys:
        return tokenizer_list
    if {"logits", "params", "expected"} <= keys:
        return sampling
    if {"text", "max_length", "loglikelihood"} <= keys:
        return rolling
    if {"context", "choices"} <= keys:
        return multiple_choice
    if {"request", "token_logprobs"} <= keys:
        return echoed
    if "cleaned" in keys:
        return "no cleaning of prompts here yet"
    if isinstance(data, dict) and "sha256" in data and {"token_logprobs", "greedy_ids"} <= keys:
        return published_model
    if (isinstance(data, dict) and "sha256" in data) or {"name", "shape", "sum"} <= keys:
        named = f", {data['source']}" if isinstance(data, dict) and "source" in data else ""
        return f"sums of the tensors of a published file{named}; test_gguf compares SmolLM2's where MHLA_SMOLLM2 or data/ have it"
    return None


def cases(folder):
    """(case, runner) of all lists of the folder."""
    for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.jsonl")]):
        case = Results(path)
        case.config, case.root = {}, folder
        try:
            if path.suffix == ".jsonl":
                case.data = [json.loads(line) for line in path.read_text().splitlines() if line]
                function = tokenizer_lines if case.data and "ids" in case.data[0] else None
            else:
                case.data = json.loads(path.read_text())
                function = kind_of(case.data)
        except ValueError:
            continue
        if isinstance(function, str):
            reason = function

            def function(case, reason=reason):
                raise Skip(reason)
        if function:
            yield case, function
    yield from twins(folder)


def twins(folder):
    """Models without a golden of their own, with that of a neighbour of the same config: the same weights, filed otherwise."""
    for config in sorted(folder.rglob("config.json")):
        own = config.parent
        if any("in.input_ids" in Case(p).tensors for p in own.glob("*.safetensors") if p.stat().st_size < 2**27):
            continue
        said = json.loads(config.read_text())
        for other in sorted(own.parent.glob("*/config.json")):
            found = [p for p in other.parent.glob("*.safetensors") if "in.input_ids" in Case(p).tensors]
            if other != config and found and json.loads(other.read_text()) == said:
                case = Case(found[0])
                case.path = own
                yield case, lambda case: compare_model(case, run_folder(case, case.path), "grad.")
                break


# ---- Text encoders ----


@known(case="umt5_.*")
def text_encoder(case):
    """Rows of padding are of no meaning here: only those of tokens are compared."""
    config = {"model_type": "umt5"} | {k: v for k, v in case.config.items() if k not in ("case", "note")}
    mask = case.tensors["in.attention_mask"]
    inputs = {"in.input_ids": case.tensors["in.input_ids"], "in.attention_mask": mask}
    if "out.bucket_rel" in case.tensors:
        inputs["in.bucket_rel"] = case.tensors["out.bucket_rel"]
    got = run_model("encoder", config, case.group("param."), inputs)
    for name, golden in case.group("out.").items():
        if name == "bucket_rel":
            continue
        if f"out.{name}" not in got:
            case.same(f"out.{name}, which nothing has", False)
        elif name == "bucket":
            case.same("out.bucket", torch.equal(got["out.bucket"].long(), golden))
        else:
            case.compare(f"out.{name}", got[f"out.{name}"][mask != 0], golden[mask != 0], OUT)
