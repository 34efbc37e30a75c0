"""`mhla eval --task` beside lm-evaluation-harness itself, where it is installed (pip install lm_eval; 0.4.13 is what our tasks follow): the same
small random model in Hugging Face's form, the same rows in the form of the hub, every figure. Nothing is downloaded."""
import json
import pathlib
import random
import subprocess

import pytest

import tiny_lm
import torchvision_for_cpu

torch = pytest.importorskip("torch")
torchvision_for_cpu.allow()
transformers = pytest.importorskip("transformers", exc_type=ImportError)
lm_eval = pytest.importorskip("lm_eval", exc_type=ImportError)

PROGRAM = pathlib.Path(__file__).parents[2] / "build" / "mhla"
ROWS = 8
WORDS = ["hello", "the", "Who", "well", "or", "world", "é", "naïve", "x2", "(so)", "don't", "1,5", "word", "its", "ship,", "day.", "\u4f60\u597d"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Weights so large that its likelihoods differ, and a context that some questions do not fit into."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=265, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=192, initializer_range=0.3, bos_token_id=0,
                                      eos_token_id=0, tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tiny_lm.tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tiny_lm.SPECIAL[0]}))
    return folder


def text(r, most=8):
    return " ".join(r.choices(WORDS, k=r.randint(1, most)))


def edges(r, words):
    """Now and then white space at an end."""
    return r.choice(["", "", "", " "]) + words + r.choice(["", "", "", " ", "  "])


def choices(r, n):
    return {"text": [text(r, 4) for _ in range(n)], "label": [*"ABCDE"][:n] if r.random() < 0.7 else [*"12345"][:n]}


def of_labels(r, key):
    given = choices(r, r.choice([3, 4, 4, 5]))
    return {key: edges(r, text(r, 40)), "choices": given, "answerKey": r.choice(given["label"])}


def winogrande(r):
    return {"sentence": f"{text(r)} _ {edges(r, text(r))}", "option1": text(r, 2), "option2": text(r, 2), "answer": r.choice("12")}


def wikitext(r):
    marks = [" , ", " . ", " @-@ ", " @,@ ", " ; ", " : ", " ( so ) ", ' " it " ', " 's ", " = = ", " \n ", " N ", " ! ", " ? ", " [ a ] ", "s '", " ° "]
    return {"page": "".join(r.choice(WORDS) + r.choice(marks + [" "] * 20) for _ in range(r.randint(3, 200)))}


ROW = {
    "piqa": lambda r: {"goal": edges(r, text(r, 30)), "sol1": text(r), "sol2": text(r), "label": r.randint(0, 1)},
    "arc_easy": lambda r: of_labels(r, "question"),
    "arc_challenge": lambda r: of_labels(r, "question"),
    "openbookqa": lambda r: of_labels(r, "question_stem"),
    "boolq": lambda r: {"question": text(r), "passage": text(r, 60), "idx": 0, "label": r.randint(0, 1)},
    "winogrande": winogrande,
    "mmlu_anatomy": lambda r: {"question": edges(r, text(r, 20)), "subject": "anatomy", "choices": [text(r, 3) for _ in range(4)], "answer": r.randint(0, 3)},
    "lambada_openai": lambda r: {"text": text(r, 50) + " " + r.choice(["word", "hello", "or"])},
    "wikitext": wikitext,
}


def write_task(folder, known, name):
    """The harness's own task, with rows of ours. The file of the rows."""
    r = random.Random(name)
    rows = folder / f"{name}.jsonl"
    rows.write_text("".join(json.dumps(ROW[name](r), ensure_ascii=False) + "\n" for _ in range(ROWS)))
    files = {split: str(rows) for split in ("train", "validation", "test", "dev")}
    changed = {"include": str(known[name].yaml_path), "task": f"{name}_here", "dataset_path": "json", "dataset_name": None,
               "dataset_kwargs": {"data_files": files, "cache_dir": str(folder)}}
    (folder / f"{name}.yaml").write_text(json.dumps(changed))  # JSON is YAML
    return rows


def test_figures(model, tmp_path):
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    manager = TaskManager()
    rows = {name: write_task(tmp_path, manager.task_index, name) for name in ROW}
    harness = HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=1)
    tasks = [str(tmp_path / f"{name}.yaml") for name in ROW]
    found = lm_eval.simple_evaluate(model=harness, tasks=tasks, num_fewshot=0, task_manager=manager, bootstrap_iters=0, log_samples=False)["results"]
    for name, file in rows.items():
        done = subprocess.run([PROGRAM, "eval", str(model), "--task", name.split("_anatomy")[0], str(file), "--json"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        ours = json.loads(done.stdout)["results"][0]
        wanted = {key.split(",")[0]: value for key, value in found[f"{name}_here"].items() if key.endswith(",none") and "stderr" not in key}
        assert wanted, found
        for key, value in wanted.items():
            assert ours[key] == pytest.approx(value, rel=1e-4), f"{name}, {key}: {ours[key]}, the harness has {value}"
