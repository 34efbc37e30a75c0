"""Language models: tokenizer, logits, sequences, generation, and what threads, signals and lifetimes may do to them."""
import copy
import gc
import json
import math
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tiny_lm

import mhla

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = shutil.which("mhla") or str(ROOT / "build" / "mhla")
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_lm.write(tmp_path_factory.mktemp("lm") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return mhla.LanguageModel.load(folder)


@pytest.fixture(scope="module")
def program():
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip("the program mhla is not built")
    return PROGRAM


def some_ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 265, n)


def near(a, b, limit=1e-4):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and np.isfinite(a).all() and np.abs(a - b).max() <= limit


# ---- tokenizer ----

def test_tokenizer(model, folder):
    t = model.tokenizer
    assert len(t) == 265 and t.eos == 0 and "im_start" in t.chat_template
    text = "hello world, \u00e9\U0001f600"
    ids = t.encode(text)
    assert ids[:2] == [262, 263] and t.decode(ids) == text and t.decode(np.array(ids, np.int64)) == text
    assert t.encode("a<|im_end|>") == [*t.encode("a"), 2] and 2 not in t.encode("a<|im_end|>", plain=True)
    assert t.decode([262, 2]) == "hello<|im_end|>" and t.decode([262, 2], skip_special=True) == "hello" == t.decode(262)
    assert t.piece(262) == "hello" and t.id("hello") == 262 and t.id("nothing") is None and t.piece(999) is None
    assert t.chat(CHAT) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert t.chat(CHAT, reply=False) == "<|im_start|>user\nhello<|im_end|>\n"
    again = mhla.Tokenizer(folder / "tokenizer.json")
    assert again.encode(text) == ids and "265" in repr(again)
    for twin in (pickle.loads(pickle.dumps(t)), pickle.loads(pickle.dumps(again)), copy.deepcopy(t)):
        assert twin.encode(text) == ids
    for call, says in ((lambda: t.decode("hello"), "ids is text"), (lambda: t.decode([9999]), "9999"), (lambda: t.decode([-1]), "-1"),
                       (lambda: t.decode([0.5]), "float64"), (lambda: t.chat([{"role": "user"}]), "message 0"),
                       (lambda: mhla.Tokenizer(folder / "nothing"), "nothing"), (lambda: t.encode("\ud800"), "surrogates")):
        with pytest.raises(ValueError, match=says):
            call()
    with pytest.raises(OSError, match="nothing"):
        mhla.Tokenizer(folder / "nothing")


def test_without_tokenizer():
    model = mhla.create("lm_micro", vocab_size=64)
    assert isinstance(model, mhla.LanguageModel) and model.logits([1]).shape == (1, 64)
    out = model.generate([1], max_tokens=3, ignore_eos=True)
    assert out.text == "" and len(out.ids) == 3
    with pytest.raises(mhla.Error, match="no tokenizer"):
        model.tokenizer
    with pytest.raises(mhla.Error, match="tokenizer"):
        model.generate([1], stop="x")


# ---- logits and sequences ----

def test_logits(model):
    ids = some_ids(40)
    all = model.logits(ids)
    assert isinstance(all, np.ndarray) and all.dtype == np.float32 and all.shape == (40, 265)
    near(model.logits(ids.tolist()), all, 0)
    near(model(ids), all, 0)
    pair = np.stack([ids, ids[::-1]])
    batch = model.logits(pair)
    assert batch.shape == (2, 40, 265)
    near(batch[0], all)
    ragged = model.logits([ids.tolist(), ids[:7].tolist()])
    assert isinstance(ragged, list) and ragged[1].shape == (7, 265)
    near(ragged[1], all[:7])
    logs = all - all.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    near(model.logprobs(ids), logs[np.arange(39), ids[1:]])
    for bad, says in (("text", "ids is text"), ([], "empty"), ([[1], []], "empty"), ([0.5], "float64"), ([300], "300"), ([-2], "-2"),
                      (np.zeros((1, 1, 1), int), r"\[1, 1, 1\]"), ([2**40], "1099511627776")):
        with pytest.raises(mhla.Error, match=says):
            model.logits(bad)
    with pytest.raises(mhla.Error, match="2 tokens|has 1"):
        model.logprobs([1])


def test_logits_of_torch(model):
    torch = pytest.importorskip("torch")
    ids = torch.from_numpy(some_ids(9))
    got = model.logits(ids)
    assert isinstance(got, torch.Tensor) and got.dtype == torch.float32
    near(got.numpy(), model.logits(ids.numpy()), 0)
    assert model.logits(ids[None]).shape == (1, 9, 265)


def test_sequences(model, tmp_path):
    ids = some_ids(50)
    all = model.logits(ids)
    s = model.sequence()
    assert len(s) == 0 and s.ids.tolist() == [] and s.model is model
    near(s.feed(ids[:20]), all[19])
    near(s.feed(ids[20:23], all=True), all[20:23])
    twin = s.fork()
    near(s.feed(ids[23:]), all[-1])
    assert len(s) == 50 and len(twin) == 23 and (s.ids == ids).all() and s.nbytes > 0
    s.rollback(23)
    near(s.feed(ids[23:]), all[-1])
    twin.feed([1, 2])
    near(twin.feed([3]), model.logits([*ids[:23], 1, 2, 3])[-1])
    s.note = "who said what"
    s.save(tmp_path / "state")
    back = model.sequence()
    back.load(tmp_path / "state")
    assert (back.ids == ids).all() and back.note == copy.deepcopy(s).note == "who said what"
    near(back.feed([5]), s.feed([5]), 0)
    with pytest.raises(TypeError, match="save"):
        pickle.dumps(s)
    with pytest.raises(OSError, match="nothing"):
        back.load(tmp_path / "nothing")
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-9])
    with pytest.raises(mhla.Error, match="state"):
        back.load(tmp_path / "state")
    assert len(back) == 51
    for call in (lambda: s.feed([]), lambda: s.rollback(99), lambda: s.feed([265]), lambda: model.sequence(beyond="nix")):
        with pytest.raises(mhla.Error):
            call()
    assert len(s) == 51


def test_batches(model):
    ids = some_ids(30)
    sequences = [model.sequence() for _ in range(3)]
    rows = [ids[:5], ids[:17].tolist(), ids]
    got = model.feed(sequences, rows)
    assert got.shape == (3, 265) and [len(s) for s in sequences] == [5, 17, 30]
    for row, logits in zip(rows, got):
        near(logits, model.logits(row)[-1])
    more = model.feed(sequences, [[1], [2, 3], [4]], all=True)
    assert [x.shape for x in more] == [(1, 265), (2, 265), (1, 265)]
    near(more[1][1], model.logits([*rows[1], 2, 3])[-1])
    assert model.feed([], []).shape == (0, 265)
    with pytest.raises(mhla.Error, match="2 rows"):
        model.feed(sequences, [[1], [2]])
    with pytest.raises(mhla.Error):
        model.feed([sequences[0]] * 2, [[1], [2]])
    stranger = mhla.create("lm_micro", vocab_size=265).sequence()
    with pytest.raises(ValueError, match="another model"):
        model.feed([sequences[0], stranger], [[1], [2]])
    with pytest.raises(mhla.Error):
        model.feed(sequences, [[1], [2], np.zeros(400, int)])  # beyond 256 tokens
    assert [len(s) for s in sequences] == [6, 19, 31]


def test_long_texts_are_read_in_parts(model):
    ids = some_ids(2500)
    one, parts = model.sequence(beyond="clamp"), model.sequence(beyond="clamp")
    whole = one.feed(ids, all=True)
    for i in range(0, 2500, 700):
        last = parts.feed(ids[i:i + 700])
    near(last, whole[-1])
    near(model.feed([model.sequence(beyond="clamp") for _ in range(2)], [ids, ids[:1200]])[0], whole[-1])


# ---- generation ----

def test_generate(model):
    prompt = model.tokenizer.encode("hello")
    greedy = model.generate("hello", max_tokens=12, temperature=0, ignore_eos=True)
    assert isinstance(greedy, mhla.Generation) and len(greedy.ids) == 12 and greedy.finish == "length"
    ids = list(prompt)
    for expected, logprob in zip(greedy.ids, greedy.logprobs):
        logits = model.logits(ids)[-1]
        logits[0] = -np.inf
        assert expected == int(logits.argmax())
        ids.append(expected)
    near(greedy.logprobs, model.logprobs(ids)[-12:])
    assert str(greedy) == greedy.text == model.generate(prompt, max_tokens=12, temperature=0, ignore_eos=True).text
    a, b, c = (model.generate("hello", max_tokens=20, seed=seed) for seed in (1, 1, 2))
    assert a == b and a.ids != c.ids and a.seed == 1
    several = model.generate("hello", max_tokens=20, seed=1, n=3)
    assert [g.seed for g in several] == [1, 2, 3] and several[0].ids == a.ids and several[1].ids == c.ids
    batch = model.generate_batch(["hello", prompt + [5], CHAT], max_tokens=20, seed=1)
    assert batch[0].ids == a.ids and len(batch) == 3 and model.generate_batch([]) == []
    assert batch[2].ids == model.generate(CHAT, max_tokens=20, seed=1).ids == model.generate(
        model.tokenizer.encode(model.tokenizer.chat(CHAT), special=False), max_tokens=20, seed=1).ids
    top = model.generate("hello", max_tokens=2, temperature=0, logprobs=3, ignore_eos=True)
    assert [len(t) for t in top.top] == [3, 3] and top.top[0][0] == (top.ids[0], pytest.approx(top.logprobs[0], abs=1e-5))


def test_stream(model):
    whole = model.generate("hello", max_tokens=30, seed=4, n=2, ignore_eos=True)
    texts, ids = ["", ""], [[], []]
    for piece in model.generate("hello", max_tokens=30, seed=4, n=2, ignore_eos=True, stream=True):
        assert isinstance(piece, mhla.Piece) and not ids[piece.index] or piece.finish is None or len(ids[piece.index]) == 29
        texts[piece.index] += piece.text
        ids[piece.index].append(piece.id)
        model.logits([1, 2])  # the model is free between two pieces
    assert texts == [g.text for g in whole] and ids == [g.ids for g in whole]


def test_options(model):
    first = model.generate("hello", max_tokens=1, temperature=0).ids[0]
    ask = dict(max_tokens=1, temperature=0)
    assert model.generate("hello", bias={first: -math.inf}, **ask).ids[0] != first
    assert model.generate("hello", bias={7: 1000.0}, **ask).ids == [7]
    ended = model.generate("hello", bias={7: 1000.0}, stop_ids=[7], max_tokens=5)
    assert ended.ids == [7] and ended.finish == "eos" and ended.text == ""
    ended = model.generate("hello", bias={0: 1000.0}, max_tokens=5)
    assert ended.ids == [0] and ended.finish == "eos"
    spelled = {model.tokenizer.id("hello"): 1000.0}
    stopped = model.generate("x", bias=spelled, stop=["nothing", "oh"], max_tokens=9)
    assert stopped.text == "hell" and stopped.finish == "stop" and stopped.stopped_by == "oh"
    assert model.generate("x", bias=spelled, stop="ell", max_tokens=9).text == "h"
    assert model.generate("hello", top_k=1, seed=5, max_tokens=9).ids == model.generate("hello", temperature=0, max_tokens=9).ids
    assert model.generate("hello", top_p=0, seed=5, max_tokens=9).ids == model.generate("hello", temperature=0, max_tokens=9).ids
    loop = model.generate("x", bias={9: 4.0}, temperature=0, max_tokens=6, ignore_eos=True)
    other = model.generate("x", bias={9: 4.0}, temperature=0, max_tokens=6, ignore_eos=True, presence_penalty=50.0)
    assert len(set(other.ids)) == 6 > len(set(loop.ids))
    full = model.generate("x", max_tokens=None, ignore_eos=True)
    assert full.finish == "length" and 250 <= len(full.ids) <= 256
    for options, says in ((dict(temperature=-1), "temperature"), (dict(top_k=-1), "top_k"), (dict(top_p=2), "top_p"),
                          (dict(min_p=-1), "min_p"), (dict(order="x"), "order"), (dict(seed=-1), "seed"), (dict(n=0), "n is 0"),
                          (dict(max_tokens=0), "max_tokens"), (dict(stop=""), "stop"), (dict(stop_ids=[999]), "999"),
                          (dict(bias={999: 1.0}), "999"), (dict(logprobs=-1), "logprobs"), (dict(repeat_penalty=-1), "repeat")):
        with pytest.raises(ValueError, match=says):
            model.generate("x", **options)
        with pytest.raises(ValueError, match=says):  # at the call, not at the first piece
            model.generate("x", stream=True, **options)
    with pytest.raises(ValueError, match="null character"):  # C would cut it there
        model.generate("x", stop="a\0b")
    for wrong in (dict(stop=[5]), dict(bias={1.5: 1.0}), dict(seed=1.5)):
        with pytest.raises(TypeError):
            model.generate("x", **wrong)
    with pytest.raises(TypeError, match="temprature"):
        model.generate("x", temprature=1)
    with pytest.raises(mhla.Error, match="265"):
        model.generate([1, 265])


def test_a_sequence_generates(model):
    s = model.sequence()
    first = s.generate("hello", max_tokens=5, seed=1, ignore_eos=True)
    prompt = model.tokenizer.encode("hello")
    assert s.ids.tolist() == prompt + first.ids and first.ids == model.generate("hello", max_tokens=5, seed=1, ignore_eos=True).ids
    forks = s.generate(n=3, max_tokens=4, seed=9)
    assert len(s) == len(prompt) + 5 and len(forks) == 3
    assert s.generate(max_tokens=4, seed=9).ids == forks[0].ids
    before = s.ids.tolist()
    with pytest.raises(mhla.Error):
        s.generate("hello again", temperature=-1.0)
    assert s.ids.tolist() == before
    stream = s.generate("hello", max_tokens=50, ignore_eos=True, stream=True)
    next(stream)
    for call in (lambda: s.feed([1]), lambda: s.rollback(0), lambda: s.generate("x"), lambda: s.load("x")):
        with pytest.raises(RuntimeError, match="generation"):
            call()
    stream.close()
    s.rollback(3)
    assert len(s) == 3


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_stream_that_is_closed_early(model, how):
    """The sequence has read every token that came, and goes on from there."""
    prompt, options = list(range(5, 40)), dict(seed=4, ignore_eos=True)
    whole = model.generate(prompt, max_tokens=8, **options).ids
    for count in (1, 4, 8):
        sequence, seen = model.sequence(), []
        stream = sequence.generate(prompt, stream=True, max_tokens=8, **options)
        for piece in stream:
            seen.append(piece.id)
            if len(seen) == count:
                break
        if how == "close":
            stream.close()
        del stream
        assert sequence.ids.tolist() == prompt + whole[:count] and seen == whole[:count]
        if count < 8:
            assert sequence.generate(max_tokens=8 - count, **options).ids == whole[count:]


def test_as_the_program(model, folder, program):
    """The same seed gives the same text there and here."""
    ask = [program, "generate", "-m", str(folder), "-p", "hello world", "--tokens", "25", "--seed", "11", "-n", "2", "--json"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    theirs = [[x["id"] for x in lines if x.get("index") == i and "id" in x] for i in range(2)]
    assert theirs == [g.ids for g in model.generate("hello world", max_tokens=25, seed=11, n=2)]


def test_runs_and_gguf(model, folder, program, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    shutil.copytree(folder, tmp_path / "run" / "checkpoints" / "step-1")
    (tmp_path / "run" / "best").symlink_to("checkpoints/step-1")
    run = mhla.load(tmp_path / "run")
    assert run.tokenizer.encode("hello") == [262] and pickle.loads(pickle.dumps(run.tokenizer)).encode("hello") == [262]
    done = subprocess.run([program, "convert", str(folder), str(tmp_path / "x.gguf")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ids = some_ids(20)
    gguf = mhla.load(tmp_path / "x.gguf")
    near(gguf.logits(ids), model.logits(ids))
    assert gguf.tokenizer.encode("hello world") == model.tokenizer.encode("hello world")
    assert pickle.loads(pickle.dumps(gguf.tokenizer)).encode("hello") == [262]


def test_saving_takes_the_tokenizer_along(model, tmp_path):
    model.save(tmp_path / "copy")
    again = mhla.load(tmp_path / "copy")
    assert again.tokenizer.chat(CHAT) == model.tokenizer.chat(CHAT)
    near(again.logits([1, 2]), model.logits([1, 2]), 0)


def test_saving_over_another_model(model, tmp_path):
    """Its tokenizer goes, too; saving a model where it lies changes nothing of its own."""
    tiny_lm.write(tmp_path / "old", seed=5)
    other = tiny_lm.tokenizer()
    other["model"]["merges"] = []
    (tmp_path / "old" / "tokenizer.json").write_text(json.dumps(other))
    old = mhla.load(tmp_path / "old")
    assert len(old.tokenizer.encode("hello")) == 5
    old.save(tmp_path / "old")
    assert len(mhla.load(tmp_path / "old").tokenizer.encode("hello")) == 5
    model.save(tmp_path / "old")
    assert mhla.load(tmp_path / "old").tokenizer.encode("hello") == [262]


def test_two_files_of_a_tokenizer(model, folder, tmp_path):
    """vocab.json and merges.txt, as GPT-2 has them."""
    shutil.copytree(folder, tmp_path / "pair")
    (tmp_path / "pair" / "tokenizer.json").unlink()
    made = tiny_lm.tokenizer()["model"]
    (tmp_path / "pair" / "vocab.json").write_text(json.dumps(made["vocab"]))
    (tmp_path / "pair" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(made["merges"]) + "\n")
    pair = mhla.load(tmp_path / "pair")
    pair.save(tmp_path / "copy")
    for tokenizer in (pair.tokenizer, pickle.loads(pickle.dumps(pair.tokenizer)), mhla.load(tmp_path / "copy").tokenizer):
        assert tokenizer.encode("hello world") == model.tokenizer.encode("hello world")


def test_a_broken_tokenizer_is_not_replaced(folder, tmp_path):
    """By one that lies in a folder above."""
    shutil.copytree(folder, tmp_path / "model")
    shutil.copy(folder / "tokenizer.json", tmp_path)
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    model = mhla.load(tmp_path / "model")
    with pytest.raises(mhla.Error, match="model/tokenizer.json"):
        model.tokenizer
    assert model.logits([1]).shape == (1, 265)


def test_a_file_that_becomes_shorter(tmp_path):
    """While it is read. The process lives on; until the next load the file is whole again."""
    big = mhla.create("lm_micro", vocab_size=40000)
    big.save(tmp_path / "big")
    path = tmp_path / "big" / "model.safetensors"
    program = f"""
import mhla, os, threading, time
path, whole, stop, said = {str(path)!r}, open({str(path)!r}, "rb").read(), threading.Event(), set()
def shorten():
    while not stop.is_set():
        os.truncate(path, 4096)
        time.sleep(0.0005)
        with open(path, "r+b") as file:
            file.write(whole)
        time.sleep(0.002)
thread = threading.Thread(target=shorten)
thread.start()
ended = time.monotonic() + 60
while time.monotonic() < ended and not any("became shorter while it was read" in text for text in said):
    try:
        mhla.load({str(tmp_path / "big")!r})
    except mhla.Error as error:
        said.add(str(error))
        if "became shorter" in str(error):
            assert isinstance(error, mhla.FileError) and str(error).startswith(path), error
stop.set()
thread.join()
print("alive", any("became shorter" in text for text in said), mhla.load({str(tmp_path / "big")!r}).logits([1, 2]).shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "alive True (2, 40000)\n", (done.returncode, done.stdout, done.stderr)


def test_storage(folder):
    exact, short = mhla.load(folder), mhla.load(folder, storage="bfloat16")
    assert (exact.info["storage"], short.info["storage"]) == ("float32", "bfloat16")
    near(exact.logits([1, 2, 3]), short.logits([1, 2, 3]), 0.05)
    assert exact.state_dict()["model.embeddings.weight"].shape == (265, 64)
    with pytest.raises(mhla.Error, match='not kept as float32.*storage="float32"'):
        short.state_dict()
    assert mhla.load(folder, weights="raw", storage="bfloat16").info["storage"] == "bfloat16"
    with pytest.raises(mhla.Error, match="storage"):
        mhla.load(folder, storage="int3")


def test_kinds(folder, tmp_path):
    mhla.create("deit_nano", depth=1).save(tmp_path)
    with pytest.raises(mhla.Error, match="deit_nano is a classifier model: mhla.LanguageModel.load"):
        mhla.LanguageModel.load(tmp_path)
    with pytest.raises(mhla.Error, match="storage"):
        mhla.load(tmp_path, storage="int3")
    assert isinstance(mhla.Model.load(folder), mhla.LanguageModel) and type(mhla.load(tmp_path)) is mhla.Model


# ---- threads, signals, lifetimes, processes ----

def test_everything_keeps_its_model_alive(folder):
    sequence, stream, tokenizer = (lambda m: (m.sequence(), m.generate("hello", stream=True, ignore_eos=True), m.tokenizer))(mhla.load(folder))
    gc.collect()
    assert tokenizer.encode("hello") == [262]
    assert sequence.feed([1]).shape == (265,) and len(list(stream)) > 3
    left = mhla.load(folder).generate("hello", stream=True)
    next(left)
    del left, sequence, stream
    gc.collect()


def test_threads(folder):
    """Sequences may be freed while another thread is inside the model; a second thread gets an exception."""
    model = mhla.load(folder)
    ids, seen, stop = some_ids(200), [], threading.Event()
    expected = model.logits(ids)

    def work():
        while not stop.is_set():
            try:
                fork = model.sequence().fork()
                list(model.generate([1, 2], max_tokens=3, stream=True))
                del fork
            except RuntimeError as error:
                seen.append("another thread" in str(error))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for w in workers:
        w.start()
    good = 0
    for _ in range(300):
        try:
            good += bool(np.abs(model.logits(ids) - expected).max() < 1e-4)
        except RuntimeError as error:
            seen.append("another thread" in str(error))
    stop.set()
    for w in workers:
        w.join()
    assert all(seen) and good + len(seen) >= 300
    near(model.logits(ids), expected)


def test_control_c(folder):
    code = f"""
import os, signal, threading, mhla
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
model = mhla.load({str(folder)!r})
sequence = model.sequence(beyond="clamp")
def interrupt(after):  # again after a while: Python drops an interrupt that falls into a finaliser
    caught = threading.Event()
    def send():
        if not caught.wait(after): os.kill(os.getpid(), signal.SIGINT)
        while not caught.wait(10): os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
    return caught
caught = interrupt(1.0)
try:
    sequence.generate("hello", max_tokens=None, ignore_eos=True)
    raise SystemExit("it ended")
except KeyboardInterrupt:
    caught.set()
    read = len(sequence)
sequence.feed([1])
assert len(sequence) == read + 1 > 2
caught = interrupt(0.5)
try:
    while True: sequence.feed([5] * 20000)
except KeyboardInterrupt:
    caught.set()
assert (len(sequence) - read - 1) % 20000 == 0
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "fine\n", done.stderr


def child(model, ids):
    return model.logits(ids)


@pytest.mark.parametrize("made", ["path", "created"])
def test_pickle(folder, made, monkeypatch):
    monkeypatch.chdir(folder.parent)
    model = mhla.load("model") if made == "path" else mhla.create("lm_micro", 3, vocab_size=64)
    ids = [1, 2, 3]
    data = pickle.dumps(model)
    assert len(data) < 1000
    monkeypatch.chdir("/")
    for twin in (pickle.loads(data), copy.deepcopy(model), copy.copy(model)):
        assert type(twin) is mhla.LanguageModel and twin is not model
        near(twin.logits(ids), model.logits(ids), 0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        near(pool.apply(child, (model, ids)), model.logits(ids), 0)


def test_pickle_of_files_that_are_gone(tmp_path):
    data = pickle.dumps(mhla.load(tiny_lm.write(tmp_path / "x")))
    shutil.rmtree(tmp_path / "x")
    with pytest.raises(OSError, match=str(tmp_path / "x")):
        pickle.loads(data)


def test_pickle_of_a_classifier(tmp_path):
    model = mhla.create("deit_nano", 5, depth=1, classes=7)
    x = np.random.default_rng(0).standard_normal((2, 3, 28, 28), dtype=np.float32)
    model.save(tmp_path)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(mhla.load(tmp_path))):
        assert (twin(x) == model(x)).all()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert (pool.apply(mhla.Model.forward, (model, x)) == model(x)).all()


# ---- beside transformers ----

def test_as_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    import torchvision_for_cpu

    torchvision_for_cpu.allow()
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    (tmp_path / "written.json").write_text(json.dumps(tiny_lm.tokenizer()))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "written.json"), eos_token="<|endoftext|>",
                                                  chat_template=tiny_lm.TEMPLATE)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=265, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=128, eos_token_id=0, bos_token_id=0,
                                      initializer_range=0.2)
    net = transformers.LlamaForCausalLM(config).eval()
    net.save_pretrained(tmp_path / "llama")
    theirs.save_pretrained(tmp_path / "llama")
    ours = mhla.LanguageModel.load(tmp_path / "llama")
    ids = torch.from_numpy(some_ids(50)).view(2, 25)
    with torch.no_grad():
        near(ours.logits(ids).numpy(), net(ids).logits.numpy())
        greedy = net.generate(ids[:1], max_new_tokens=20, do_sample=False, pad_token_id=0)[0, 25:]
    assert ours.generate(ids[0], max_tokens=20, temperature=0).ids == greedy.tolist()
    for text in ("hello world", "  h\u00e9llo\n\n<|im_end|> \U0001f600 don't 123", ""):
        assert ours.tokenizer.encode(text) == theirs.encode(text)
        assert ours.tokenizer.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.tokenizer.chat(CHAT) == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)


def of_transformers(kind, **more):
    """A small model of transformers: Mamba or Mamba2."""
    import transformers

    config = getattr(transformers, kind + "Config")(vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=8, expand=2, conv_kernel=4,
                                                    eos_token_id=0, bos_token_id=0, pad_token_id=0, **more)
    return getattr(transformers, kind + "ForCausalLM")(config).eval()


@pytest.mark.parametrize("kind, more", [("Mamba", {"time_step_rank": 3}), ("Mamba", {"use_bias": True, "tie_word_embeddings": True}),
                                        ("Mamba2", {"num_heads": 4, "head_dim": 16, "n_groups": 1}),
                                        ("Mamba2", {"num_heads": 4, "head_dim": 16, "n_groups": 2, "use_bias": True, "time_step_limit": (0.1, 1.0)})])
def test_mamba_as_transformers(tmp_path, kind, more):
    """Folders of transformers open as they are, and ours open there."""
    torch = pytest.importorskip("torch")
    import torchvision_for_cpu

    torchvision_for_cpu.allow()
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    torch.manual_seed(1)
    net = of_transformers(kind, **more)
    net.save_pretrained(tmp_path / "theirs")
    ours = mhla.LanguageModel.load(tmp_path / "theirs", storage="float32")
    ids = torch.randint(0, 97, (2, 40))
    with torch.no_grad():
        near(ours.logits(ids).numpy(), net(ids).logits.numpy())
    fresh = mhla.create("lm_micro", seed=3, attention=kind.lower(), vocab_size=97, hidden_size=32, num_hidden_layers=2)
    fresh.save(tmp_path / "ours")
    back = getattr(transformers, kind + "ForCausalLM").from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        near(fresh.logits(ids).numpy(), back(ids).logits.numpy())
