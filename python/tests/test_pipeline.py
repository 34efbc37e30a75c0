"""Pipelines of mhla.load and mhla.Pipeline: images of prompts, the same in any company, and what is refused."""
import json
import pickle

import numpy as np
import pytest

import mhla

SCHEDULER = {"_class_name": "DPMSolverMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
WORDS = {"model": {"type": "BPE", "vocab": {c: i for i, c in enumerate("abcdefgh ")}, "merges": []}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    mhla.create("sana_nano", caption_channels=64, seed=1).save(folder / "transformer")
    mhla.create("sd_vae_nano", seed=2).save(folder / "vae")
    mhla.create("umt5_nano", seed=3).save(folder / "text_encoder")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(WORDS))
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "SanaPipeline"}))
    return folder


def test_images(folder):
    pipeline = mhla.load(folder)
    assert isinstance(pipeline, mhla.Pipeline) and pipeline.info["name"] == "SanaPipeline" and not pipeline.info["clips"]
    seen = []
    images = pipeline(["a bad cab", "a bag"], "h", count=2, seed=5, steps=3, instruction="a ", progress=lambda *s: seen.append(s))
    assert images.shape == (4, 3, 32, 32) and images.dtype == np.float32 and np.isfinite(images).all()
    assert {s[0] for s in seen} == {"text encoder", "transformer", "autoencoder"} and ("transformer", 12, 12, None) in seen
    alone = pipeline("a bag", "h", seed=6, steps=3, instruction="a ")
    assert np.array_equal(alone[0], images[3]) and not np.array_equal(images[2], images[3])
    assert np.array_equal(pickle.loads(pickle.dumps(pipeline))("a bag", "h", seed=6, steps=3, instruction="a "), alone)
    assert pipeline("a", size=(24, 40), steps=1, instruction="").shape == (1, 3, 24, 40)


def test_by_name(folder, tmp_path):
    whole = mhla.Pipeline(folder, storage="bfloat16")
    parts = mhla.Pipeline(transformer=folder / "transformer", vae=folder / "vae", text_encoder=folder / "text_encoder",
                          tokenizer=folder / "tokenizer", scheduler=folder / "scheduler" / "scheduler_config.json",
                          storage="bfloat16", texts=tmp_path)
    assert np.array_equal(whole("a cab", steps=2, instruction=""), parts("a cab", steps=2, instruction=""))
    assert len(list(tmp_path.iterdir())) == 2


def test_refusals(folder):
    pipeline = mhla.load(folder)
    with pytest.raises(mhla.Error, match="each side must be a multiple of 4"):
        pipeline("a", size=(30, 32))
    with pytest.raises(mhla.Error, match="5 frames"):
        pipeline("a", frames=5)
    with pytest.raises(mhla.Error, match="is a pipeline"):
        pipeline.state_dict()
    with pytest.raises(mhla.Error, match="vae is not named"):
        mhla.Pipeline(transformer=folder / "transformer", text_encoder=folder / "text_encoder")
    with pytest.raises(ZeroDivisionError):
        pipeline("a", steps=1, instruction="", progress=lambda *s: 1 // 0)
    with pytest.raises(ValueError, match="count is 0"):
        pipeline("a", count=0)
