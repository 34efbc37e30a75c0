"""A tiny language model in a folder, with a byte-level tokenizer and a chat template, all written here."""
import json

import mhla

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_letters():
    """The letter of each byte, as GPT-2 has them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def tokenizer():
    vocabulary = SPECIAL + [letter for _, letter in sorted(byte_letters().items())] + ["he", "ll", "llo", "hello", "\u0120w", "or"]
    merges = ["h e", "l l", "ll o", "he llo", "\u0120 w", "o r"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [{"id": i, "content": text, **plain} for i, text in enumerate(SPECIAL)],
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(vocabulary)}, "merges": merges}}


def write(folder, seed=1, **settings):
    """A model of 265 tokens whose end is <|endoftext|>."""
    folder.mkdir(parents=True, exist_ok=True)
    model = mhla.create("lm_micro", seed, vocab_size=265, eos_token_id=0, **settings)
    model.save(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    config = {"eos_token": SPECIAL[0], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
