"""Recipes measured on a model: what is compared, what is kept, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import kvformat as kvf
from kvformat.cli import main
from kvformat.transformers import SimulatedCache
from kvformat.transformers import measure as measuring
from kvformat.transformers.measure import Journal, measure
from kvformat.transformers.states import load_model, run
from tests.transformers.models import model, prompt

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torch
WORDS = " ".join(f"w{n % 61}" for n in range(0, 7 * 400, 7))


@pytest.fixture(scope="module")
def llama():
    return model("llama")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with a tokenizer of 64 words."""
    where = tmp_path_factory.mktemp("model")
    model("llama")[0].save_pretrained(where)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(63)} | {"?": 63}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(where)
    (where / "text.txt").write_text(WORDS)
    return where


def chunks(count=2, length=40):
    return [prompt(batch=1, tokens=length, seed=seed) for seed in range(count)]


def test_the_unquantized_cache_compared_with_itself_is_no_different(llama):
    (row,) = measure(llama, chunks(), ["none"], Journal(None, ""))
    assert (row.kl.mean, row.dnll.mean, row.top1.mean) == (0, 0, 1)
    assert row.ppl == row.base_ppl


def test_a_row_says_what_the_log_probabilities_say(llama):
    """Against a computation apart: the logits of both caches, and KL and NLL by their definitions."""
    ids = prompt(batch=1, tokens=40)
    (row,) = measure(llama, [ids], ["nvfp4"], Journal(None, ""))
    logits = []
    for name in ("none", "nvfp4"):
        with torch.no_grad():
            made = llama(ids, cache=SimulatedCache(llama.config, name)).logits[0, :-1].double().numpy()
        logits.append(made - np.log(np.exp(made).sum(axis=1, keepdims=True)))
    base, other = logits
    kl = (np.exp(base) * (base - other)).sum(axis=1)
    following = ids[0, 1:].numpy()
    dnll = base[np.arange(39), following] - other[np.arange(39), following]
    # sums of 64 float64 terms in another order
    np.testing.assert_allclose([row.kl.mean, row.dnll.mean], [kl.mean(), dnll.mean()], rtol=1e-9)
    assert row.top1.mean == (base.argmax(axis=1) == other.argmax(axis=1)).mean()
    assert set(row.layers) == {0, 1, 2, 3}


def test_a_stopped_run_goes_on_and_gives_the_same(llama, tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    names = ["golden/int8_per_token_head", "golden/nvfp4"]
    whole = measure(llama, chunks(), names, Journal(None, "a"))
    measure(llama, chunks(), names, Journal(path, "a"))
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + 4
    path.write_text("\n".join(lines[:3]) + "\n" + lines[3][:100])  # stopped while it wrote the third piece
    runs = []
    real = measuring._log_probabilities
    monkeypatch.setattr(measuring, "_log_probabilities", lambda *a, **k: runs.append(a[2]) or real(*a, **k))
    again = measure(llama, chunks(), names, Journal(path, "a"))
    assert runs == ["golden/none", *names]  # the second chunk only
    assert [row.to_json() for row in again] == [row.to_json() for row in whole]
    runs.clear()
    measure(llama, chunks(), names, Journal(path, "a"))
    assert runs == []


def test_another_run_s_file_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    Journal(path, "a")
    with pytest.raises(kvf.InputError, match="holds another run"):
        Journal(path, "b")
    path.write_text("what is this")
    with pytest.raises(kvf.InputError, match="no file of a run"):
        Journal(path, "a")


def test_the_command_measures_a_checkpoint(folder, tmp_path, capsys):
    common = ["simulate", "--model", str(folder), "--text", str(folder / "text.txt"), "--tokens", "32", "--chunks", "2"]
    arguments = [*common, "--recipe", "int8_per_token_head", "--resume", str(tmp_path / "run")]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "golden/int8_per_token_head" in shown
    assert "too few tokens for an interval" in shown
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert (document["context"], document["chunks"], row["kl"]["tokens"], row["kl"]["se"]) == (32, 2, 62, None)
    assert row["kl"]["mean"] > 0
    assert set(document["versions"]) == {"kvformat", "transformers", "torch"}


def test_k_and_v_of_a_checkpoint_are_those_of_its_cache(folder):
    net, tokenizer = load_model(folder)
    ids = tokenizer(WORDS, return_tensors="pt")["input_ids"][:, :20]
    states = run(net, ids)
    assert {layer: (key.shape, value.shape) for layer, (key, value) in states.items()} == dict.fromkeys(
        range(4), ((20, 2, 16), (20, 2, 16))
    )
    cache = SimulatedCache(net.config, "none", keep_last=100)  # nothing is stored, so nothing is rounded
    net(ids, cache=cache)
    keys, _, _ = cache.layers[2].given_tokens()
    np.testing.assert_array_equal(states[2][0], keys)


def test_calibrated_scales_from_a_run_lower_the_error_on_its_own_k_and_v(folder, tmp_path, capsys):
    out = tmp_path / "scales.safetensors"
    arguments = ["scales", str(folder), "--text", str(folder / "text.txt"), "--tokens", "64"]
    assert main([*arguments, "--calibrate", "error", "-o", str(out)]) == 0
    assert "8 scales" in capsys.readouterr().out


def test_the_sink_experiment_takes_k_and_v_of_one_s_own(tmp_path, capsys):
    noise = np.random.default_rng(0).standard_normal((2, 16, 2, 32)).astype(np.float32)
    noise[0, 0] *= 5  # token 0 has a key five times as large
    save_file({"layer7.key": noise[0], "layer7.value": noise[1]}, tmp_path / "kv.safetensors")
    assert main(["simulate", "sink", "--kv", str(tmp_path / "kv.safetensors"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["experiments"][0]["rows"]
    assert [(row["layer"], row["side"]) for row in rows] == [(7, "K"), (7, "V")]
    assert 4 < rows[0]["norm 0 / median"] < 6
    assert 0.8 < rows[1]["norm 0 / median"] < 1.2


@pytest.mark.parametrize(
    "change, message",
    [
        (["--model", "{tmp}"], "its tokenizer cannot be loaded"),
        (["--model", "nowhere"], "there is no such checkpoint"),
        (["--tokens", "4000"], "the text has 400 tokens; 4000 were asked for"),
        (["--tokens", "1"], "a context needs at least 2 tokens"),
        (["--text", "nowhere"], "cannot be read as text"),
        (["--recipe", "int9"], "unknown recipe 'int9'"),
        (["--report", "a.html"], "are for experiments"),
        (["--recipe", "vllm-0.33/csrc/fp8_ds_mla"], "no layout holds"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_status_2(folder, tmp_path, capsys, change, message):
    start = ["simulate", "--model", str(folder), "--text", str(folder / "text.txt"), "--tokens", "32"]
    assert main([*start, *(each.format(tmp=tmp_path) for each in change)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_options_of_a_model_without_one_are_refused(capsys):
    assert main(["simulate", "--recipe", "nvfp4"]) == 2
    assert "--text, --recipe, --evict and --resume are for" in capsys.readouterr().err
