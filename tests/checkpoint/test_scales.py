"""The scales of a checkpoint: each planted fault is found, and each engine's use of them is the one its source says."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kvformat as kvf
from kvformat.checkpoint.calibrate import calibrate, save_scales
from kvformat.checkpoint.judge import loaded, spans
from kvformat.checkpoint.reading import read_checkpoint
from kvformat.checkpoint.report import ScalesReport
from kvformat.checkpoint.spellings import SPELLINGS, TEMPLATES
from kvformat.checkpoint.states import read_states
from kvformat.cli import main

LAYERS = 4
COMPRESSED = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}


def right(template=TEMPLATES["attention"], k=0.5, v=0.25):
    """One scale per layer and side, K twice as large as V."""
    values = {"k": k, "v": v}
    return {template.format(layer=n, side=side): np.float32(values[side]) for n in range(LAYERS) for side in "kv"}


def checkpoint(folder, scales, quantization=COMPRESSED):
    """A folder as a checkpoint's, with a weight per layer beside the scales."""
    weights = {f"model.layers.{n}.self_attn.k_proj.weight": np.ones((2, 2), np.float32) for n in range(LAYERS)}
    weights |= {"model.layers.0.self_attn.k_proj.weight_scale": np.ones(1, np.float32)}
    save_file({**weights, **{name: np.asarray(value) for name, value in scales.items()}}, folder / "model.safetensors")
    config = {"num_hidden_layers": LAYERS, **({"quantization_config": quantization} if quantization else {})}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def found(folder, **options):
    """The kinds of problems and where they are."""
    report = ScalesReport.of(read_checkpoint(folder), **options)
    return {problem.kind: problem.layers for problem in report.problems}


def states(k=200.0, v=100.0):
    """K and V whose largest values are what `right` scales cover: 448 / 2 and 448 / 4."""
    noise = np.random.default_rng(0)
    made = {}
    for layer in range(LAYERS):
        key, value = noise.uniform(-1, 1, (2, 16, 2, 8)).astype(np.float32)
        key[0, 0, 0], value[0, 0, 0] = 1, 1
        made[layer] = key * np.float32(k), value * np.float32(v)
    return made


def test_a_right_checkpoint_has_no_problem(tmp_path):
    assert found(checkpoint(tmp_path, right()), states=states()) == {}


@pytest.mark.parametrize(
    "change, kind, layers",
    [
        (
            lambda s: [s.pop("model.layers.2.self_attn.k_scale"), s.pop("model.layers.2.self_attn.v_scale")],
            "missing",
            (2,),
        ),
        (lambda s: s.pop("model.layers.1.self_attn.v_scale"), "unpaired", (1,)),
        (lambda s: s.pop("model.layers.3.self_attn.k_scale"), "unpaired", (3,)),
        (lambda s: s.clear(), "absent", (0, 1, 2, 3)),
        (lambda s: s.update({"model.layers.0.self_attn.k_scale": np.float32(0)}), "value", (0,)),
        (lambda s: s.update({"model.layers.0.self_attn.v_scale": np.float32(-1)}), "value", (0,)),
        (lambda s: s.update({"model.layers.2.self_attn.v_scale": np.float32(np.nan)}), "value", (2,)),
        (lambda s: s.update({"model.layers.2.self_attn.v_scale": np.float32(np.inf)}), "value", (2,)),
        (lambda s: s.update({name: np.float32(1) for name in s}), "ones", (0, 1, 2, 3)),
        (lambda s: s.update({"model.layers.9.self_attn.k_scale": np.float32(1)}), "beyond", (9,)),
        (lambda s: s.update({"model.layers.1.self_attn.k_proj.k_scale": np.float32(1)}), "twice", (1,)),
        (lambda s: s.update({"model.layers.1.self_attn.k_cache_scale": np.float32(1)}), "spelling", (1,)),
        (
            lambda s: s.update({"model.layers.1.self_attn.k_proj.v_scale": s.pop("model.layers.1.self_attn.v_scale")}),
            "crossed",
            (1,),
        ),
    ],
)
def test_each_planted_fault_is_found_where_it_is(tmp_path, change, kind, layers):
    scales = right()
    change(scales)
    assert found(checkpoint(tmp_path, scales))[kind] == layers


def test_exchanged_scales_are_found_by_the_k_and_v_they_must_cover(tmp_path):
    assert found(checkpoint(tmp_path, right(k=0.25, v=0.5)), states=states(k=448 * 0.5, v=448 * 0.25)) == {
        "swapped": (0, 1, 2, 3)
    }
    alike = {layer: (key, key) for layer, (key, _) in states().items()}
    assert found(tmp_path, states=alike) == {}  # K and V of one size: nothing tells them apart


@pytest.mark.parametrize("name", [each.name for each in SPELLINGS])
def test_every_spelling_is_read_for_its_layer_and_sides(tmp_path, name):
    samples = {
        "projection": ("model.layers.3.self_attn.v_proj.v_scale", "v"),
        "fused projection": ("model.layers.3.self_attn.qkqkv_proj.k_scale", "k"),
        "projection output": ("model.language_model.layers.3.self_attn.k_proj.output_scale", "k"),
        "cache module": ("model.layers.3.self_attn.v_cache.scale", "v"),
        "attn module": ("model.layers.3.self_attn.attn.k_scale", "k"),
        "one for both": ("transformer.h.3.attn.kv_scale", "kv"),
        "attention": ("model.layers.3.self_attn.v_scale", "v"),
    }
    tensor, sides = samples[name]
    held = read_checkpoint(checkpoint(tmp_path, {tensor: np.float32(0.5)}))
    assert [(each.layer, each.side, each.spelling) for each in held.scales] == [(3, side, name) for side in sides]


@pytest.mark.parametrize("other", ["k_proj.weight_scale", "k_proj.input_scale", "q_scale", "o_proj.output_scale"])
def test_other_scales_are_not_taken_for_those_of_k_and_v(tmp_path, other):
    name = f"model.layers.1.self_attn.{other}"
    assert read_checkpoint(checkpoint(tmp_path, {name: np.float32(2)})).scales == ()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_scales_are_read_exactly_in_each_dtype(tmp_path, dtype):
    value = np.array([0.3, 0.7]).astype(dtype)
    save_file({"layers.0.self_attn.k_scale": value}, tmp_path / "one.safetensors")
    (scale,) = read_checkpoint(tmp_path / "one.safetensors").scales
    np.testing.assert_array_equal(scale.values, value.astype(np.float64))


# what the engines do with them: vllm-0.33 and sglang-0.5 by the files that `spellings.py` names
@pytest.mark.parametrize(
    "engine, quantization, scales, expected",
    [
        ("vllm-0.33", COMPRESSED, {"k": 0.5, "v": 0.25}, (0.5, 0.25)),
        ("vllm-0.33", COMPRESSED, {"k": 0.5}, (0.5, 1.0)),  # both start at 1.0 there
        ("vllm-0.33", {"quant_method": "fp8"}, {"k": 0.5}, (0.5, 0.5)),  # a lone one is duplicated
        ("vllm-0.33", {"quant_method": "fp8"}, {"k": 0.0, "v": 0.0}, (None, None)),  # neither > 0 nor < 0
        ("vllm-0.33", {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, {"k": 0.5, "v": 2.0}, (0.5, 2.0)),
        ("vllm-0.33", {"quant_method": "modelopt"}, {"k": 0.5, "v": 2.0}, (1.0, 1.0)),
        ("vllm-0.33", {"quant_method": "awq"}, {"k": 0.5, "v": 2.0}, (1.0, 1.0)),
        ("vllm-0.33", None, {"k": 0.5, "v": 2.0}, (1.0, 1.0)),
        ("sglang-0.5", {"quant_method": "fp8"}, {"k": 0.0, "v": 0.0}, (1.0, 1.0)),
        ("sglang-0.5", COMPRESSED, {"v": 0.25}, (0.25, 0.25)),
        ("sglang-0.5", {"quant_method": "compressed-tensors"}, {"k": 0.5, "v": 0.25}, (1.0, 1.0)),
    ],
)
def test_an_engine_uses_the_scale_that_its_loader_gives(tmp_path, engine, quantization, scales, expected):
    named = {f"model.layers.0.self_attn.{side}_scale": np.float32(value) for side, value in scales.items()}
    uses = loaded(read_checkpoint(checkpoint(tmp_path, named, quantization)), engine)
    assert tuple(each.value for each in uses if each.layer == 0) == expected
    assert {each.value for each in uses if each.layer > 0} == {1.0}


def test_a_spelling_that_the_engine_does_not_load_is_found_for_that_engine(tmp_path):
    folder = checkpoint(tmp_path, right(TEMPLATES["projection output"]))
    assert found(folder, engine="vllm-0.33") == {"unread": (0, 1, 2, 3)}
    assert found(folder, engine="sglang-0.5") == {}


def test_a_scale_per_head_is_an_error_where_the_engine_has_one_per_layer(tmp_path):
    scales = {name: np.float32([value, value / 2]) for name, value in right().items()}
    held = read_checkpoint(checkpoint(tmp_path, scales))
    assert {each.value for each in loaded(held, "vllm-0.33")} == {0.5, 0.25}
    assert {each.value for each in loaded(held, "sglang-0.5")} == {None}


def test_the_shares_count_what_a_scale_clips_and_what_it_loses(tmp_path):
    key = np.array([447, 448, 449, 1000, -449, 2**-10, 2**-11, 3 * 2**-11, 0], np.float32).reshape(9, 1, 1)
    ones = {name: np.float32(1) for name in right()} | {"model.layers.1.self_attn.k_scale": np.float32(2)}
    report = ScalesReport.of(read_checkpoint(checkpoint(tmp_path, ones)), {0: (key, key)})
    share = report.shares["vllm-0.33"][0, "k"]
    # e4m3fn: 448 is the largest; 2^-9 the smallest, so 2^-10 and below become 0
    assert (share.clipped, share.underflowed) == (3 / 9, 2 / 9)


def test_calibrated_scales_cover_what_they_should_and_are_found_again(tmp_path):
    made = states()
    scales = calibrate(made)
    for layer, (key, value) in made.items():
        assert scales[layer, "k"] == np.float32(np.abs(key).max() / 448)
        assert scales[layer, "v"] == np.float32(np.abs(value).max() / 448)
    for spelling in TEMPLATES:
        save_scales(scales, tmp_path / "scales.safetensors", spelling)
        held = read_checkpoint(tmp_path / "scales.safetensors")
        assert {(each.layer, each.side): each.spelling for each in held.scales} == dict.fromkeys(scales, spelling)
        assert all(each.values == scales[each.layer, each.side] for each in held.scales)


def test_the_scale_of_least_error_is_no_worse_than_any_other_tried():
    noise = np.random.default_rng(1)
    key = noise.standard_normal((64, 2, 16)).astype(np.float32)
    key[3, 1, 5] = 60  # an outlier that the rest pays for
    scales = {method: calibrate({0: (key, key)}, method)[0, "k"][0] for method in ("amax", "percentile", "error")}

    def off(scale):
        return np.square(kvf.quantize(key, "fp8_per_tensor", scale=scale).dequantize(np.float64) - key).sum()

    assert off(scales["error"]) <= off(scales["amax"])
    assert off(scales["error"]) <= min(off(np.float32(scales["amax"] * 2 ** (-step / 8))) for step in range(33))
    assert scales["percentile"] < scales["amax"]


def test_a_scale_per_head_is_that_of_the_head_alone():
    (key, value) = states()[0]
    key = key * np.float32([[[1], [8]]])
    both = calibrate({0: (key, value)}, per_head=True)[0, "k"]
    np.testing.assert_array_equal(both, np.abs(key).max(axis=(0, 2)) / np.float32(448))


def test_k_and_v_that_are_zero_throughout_get_a_scale_that_is_no_error():
    zero = np.zeros((3, 1, 4), np.float32)
    for method in ("amax", "percentile", "error"):
        assert calibrate({0: (zero, zero)}, method)[0, "k"] == [1]


def test_the_json_file_of_scales_is_read(tmp_path):
    path = tmp_path / "scales.json"
    path.write_text(
        json.dumps({"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 0.5, "1": 0.25}}}})
    )
    held = read_checkpoint(path)
    assert [(each.layer, each.side, float(each.values[0])) for each in held.scales] == [
        (0, "k", 0.5),
        (0, "v", 0.5),
        (1, "k", 0.25),
        (1, "v", 0.25),
    ]


def test_layers_in_words():
    assert spans((3,)) == "layer 3"
    assert spans((0, 1, 2, 5, 7, 8)) == "layers 0..2, 5, 7..8"


def test_the_command_says_what_is_wrong_and_ends_with_its_status(tmp_path, capsys):
    folder = checkpoint(tmp_path, right())
    assert main(["scales", str(folder)]) == 0
    assert "  vllm-0.33: layers 0..3: K the checkpoint's" in capsys.readouterr().out
    scales = load_file(folder / "model.safetensors")
    del scales["model.layers.2.self_attn.v_scale"]
    save_file(scales, folder / "model.safetensors")
    assert main(["scales", str(folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["problems"] == [{"kind": "unpaired", "layers": [2], "says": "K has a scale, V has none"}]
    assert document["engines"]["vllm-0.33"][5] == {"layer": 2, "side": "v", "value": "1.0", "why": "no scale"}


def test_the_command_calibrates_from_k_and_v_in_a_file(tmp_path, capsys):
    kv, out = tmp_path / "kv.safetensors", tmp_path / "scales.safetensors"
    save_file(
        {f"layer{n}.{what}": x for n, pair in states().items() for what, x in zip(("key", "value"), pair, strict=True)},
        kv,
    )
    assert main(["scales", "any", "--kv", str(kv), "--calibrate", "amax", "-o", str(out)]) == 0
    assert "8 scales" in capsys.readouterr().out
    assert load_file(out)["model.layers.0.self_attn.k_scale"] == np.float32(200 / 448)
    assert set(read_states(kv)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "no safetensors file"),
        (["{tmp}", "--engine", "vllm-9"], "unknown engine 'vllm-9'"),
        (["{tmp}", "--calibrate", "amax"], "name it with --output"),
        (["{tmp}", "--calibrate", "amax", "-o", "x"], "needs K and V"),
        (["{tmp}", "--kv", "a", "--text", "b"], "not from both"),
        (["{tmp}", "--kv", "{tmp}/model.safetensors"], "holds no layerN.key and layerN.value"),
        (["{tmp}", "--kv", "{tmp}/config.json"], "cannot be read as safetensors"),
        (["{tmp}/config.json"], "has no kv_cache.scaling_factor"),
    ],
)
def test_what_cannot_be_judged_is_one_line_and_status_2(tmp_path, capsys, arguments, message):
    checkpoint(tmp_path, right())
    assert main(["scales", *(each.format(tmp=tmp_path) for each in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_scale_that_is_no_scale_is_refused(tmp_path):
    save_file({"layers.0.self_attn.k_scale": np.ones(3, np.int32)}, tmp_path / "a.safetensors")
    with pytest.raises(kvf.InputError, match=r"k_scale is I32 of shape \(3,\); a scale is one float, or one per head"):
        read_checkpoint(tmp_path / "a.safetensors")
