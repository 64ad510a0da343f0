"""What attention gets from a SimulatedCache is what a quantized cache gives back, on any model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import kvformat as kvf
from kvformat.arrays import array
from kvformat.transformers import SimulatedCache
from tests.transformers.models import CONFIGS, generate, model, prompt

MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
#: library code, not ours: generate() says what it would rather be called with
pytestmark = pytest.mark.filterwarnings("ignore")


def rows(tensor):
    """(batch, heads, tokens, head size) as (batch * tokens, heads, head size)."""
    x = array(tensor).swapaxes(1, 2)
    return np.ascontiguousarray(x).reshape(-1, *x.shape[2:])


def states(batch=2, heads=2, tokens=24, head_size=32, dtype=torch.bfloat16, seed=0):
    """K and V as a model gives them."""
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, heads, tokens, head_size, generator=noise).to(dtype)


@pytest.fixture(scope="module")
def llama():
    return model("llama")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("mode", ["int8_per_token_head", "nvfp4"])
def test_every_architecture_generates_and_its_pages_hold(name, mode):
    net, config = model(name)
    cache = SimulatedCache(config, mode)
    made = generate(net, prompt(), cache)
    assert made.shape == (2, 36)
    assert len(cache.simulated_layers) == 4
    for layer in cache.simulated_layers:
        report = kvf.check(cache.dump(layer))
        assert report.ok, str(report)
        assert cache.error(layer).tokens == 35  # the last token made is not fed back


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_attention_sees_what_quantize_gives_back(llama, mode, dtype):
    _, config = llama
    cache = SimulatedCache(config, mode)
    key, value = states(dtype=dtype)
    for seen, given in zip(cache.update(key, value, 0), (key, value), strict=True):
        if mode == "none":
            expected = rows(given.to(torch.bfloat16).to(dtype))  # the layout's pages hold bfloat16
        else:
            expected = kvf.quantize(rows(given), mode).dequantize(rows(given).dtype)
        np.testing.assert_array_equal(rows(seen).view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


@pytest.mark.parametrize("mode", ["int8_per_token_head", "fp8_per_token_head"])
def test_scales_per_token_do_not_depend_on_how_tokens_arrive(llama, mode):
    _, config = llama
    key, value = states(tokens=40)
    whole = SimulatedCache(config, mode)
    whole.update(key, value, 0)
    pieces = SimulatedCache(config, mode)
    for start, stop in ((0, 1), (1, 17), (17, 18), (18, 40)):
        seen = pieces.update(key[:, :, start:stop], value[:, :, start:stop], 0)
    assert torch.equal(seen[0], whole.layers[0].keys)
    assert torch.equal(seen[1], whole.layers[0].values)
    used = whole.dump(0).slot_mapping.max() // 16 + 1
    np.testing.assert_array_equal(pieces.pages(0)[:used], whole.pages(0)[:used])


def test_without_a_quantized_layer_the_model_says_what_it_always_says(llama):
    net, config = llama
    cache = SimulatedCache(config, "nvfp4", skip_layers=range(4))
    assert cache.simulated_layers == ()
    with torch.no_grad():
        plain = net(prompt(), cache=DynamicCache(config=config)).logits
        through = net(prompt(), cache=cache).logits
    assert torch.equal(plain, through)


def test_a_window_sees_the_tokens_that_it_would_see_anyway():
    net, config = model("mistral")
    with torch.no_grad():
        plain, kept = DynamicCache(config=config), SimulatedCache(config, "nvfp4", keep_last=1000)
        for step in prompt(tokens=40).split(7, dim=1):
            expected = net(step, cache=plain).logits
            assert torch.equal(net(step, cache=kept).logits, expected)


def test_first_and_last_tokens_stay_and_each_other_one_is_quantized_once(llama):
    _, config = llama
    cache = SimulatedCache(config, "nvfp4", keep_first=3, keep_last=5, k_scale=0.01, v_scale=0.01)
    key, value = states(tokens=40)
    for start, stop in ((0, 2), (2, 20), (20, 21), (21, 40)):
        seen, _ = cache.update(key[:, :, start:stop], value[:, :, start:stop], 0)
        assert torch.equal(seen[:, :, :3], key[:, :, : min(3, stop)])
        assert torch.equal(seen[:, :, max(stop - 5, 0) :], key[:, :, max(stop - 5, 0) : stop])
    middle = rows(key[:, :, 3:35])
    expected = kvf.quantize(middle, "nvfp4", scale=0.01).dequantize(middle.dtype)
    np.testing.assert_array_equal(rows(seen[:, :, 3:35]).view(np.uint16), expected.view(np.uint16))
    slots = cache.dump(0).slot_mapping.reshape(2, 40)
    assert ((slots < 0) == [(token < 3 or token >= 35) for token in range(40)]).all()
    assert kvf.check(cache.dump(0)).ok


def test_k_and_v_may_have_recipes_of_their_own(llama):
    _, config = llama
    cache = SimulatedCache(config, "nvfp4", key_recipe="fp8_per_token_head", layers={2: "int8_per_token_head"})
    key, value = states()
    for layer, (k_mode, v_mode) in {0: ("fp8_per_token_head", "nvfp4"), 2: ("int8_per_token_head",) * 2}.items():
        seen = cache.update(key, value, layer)
        for one, given, mode in zip(seen, (key, value), (k_mode, v_mode), strict=True):
            expected = kvf.quantize(rows(given), mode).dequantize(rows(given).dtype)
            np.testing.assert_array_equal(rows(one).view(np.uint16), expected.view(np.uint16))
    with pytest.raises(kvf.InputError, match="name the side"):
        cache.pages(0)
    assert cache.pages(0, "k").shape != cache.pages(0, "v").shape
    assert all(kvf.check(cache.dump(0, side)).ok for side in ("k", "v"))
    assert cache.pages(2) is cache.pages(2, "v")


def test_beams_keep_pages_of_their_own(llama):
    net, config = llama
    cache = SimulatedCache(config, "int8_per_token_head")
    generate(net, prompt(), cache, num_beams=3)
    for layer in cache.simulated_layers:
        assert cache.caches(layer)["k"].layout.name == "vllm-0.33"
        assert cache.dump(layer).tokens == 2 * 3 * 35
        assert kvf.check(cache.dump(layer)).ok


def test_chosen_sequences_go_on_with_their_own_bytes(llama):
    _, config = llama
    key, value = states(batch=3, tokens=20)
    more = states(batch=2, tokens=3, seed=1)
    chosen = torch.tensor([2, 0])
    cache = SimulatedCache(config, "int8_per_token_head")
    cache.update(key, value, 0)
    cache.layers[0].reorder_cache(torch.tensor([2, 0, 0]))
    cache.layers[0].batch_select_indices(torch.tensor([0, 1]))
    seen = cache.update(*more, 0)
    fresh = SimulatedCache(config, "int8_per_token_head")
    expected = fresh.update(*(torch.cat([x[chosen], y], dim=2) for x, y in zip((key, value), more, strict=True)), 0)
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert kvf.check(cache.dump(0)).ok
    cache.layers[0].batch_repeat_interleave(2)
    assert cache.dump(0).tokens == 4 * 23
    assert kvf.check(cache.dump(0)).ok


def test_cropped_tokens_are_forgotten_and_written_anew(llama):
    _, config = llama
    key, value = states(tokens=30)
    cache = SimulatedCache(config, "int8_per_token_head", keep_last=2)
    cache.update(key, value, 0)
    cache.crop(-9)
    assert cache.get_seq_length() == 21
    other = states(tokens=9, seed=1)
    seen = cache.update(*other, 0)
    fresh = SimulatedCache(config, "int8_per_token_head", keep_last=2)
    both = (torch.cat([x[:, :, :21], y], dim=2) for x, y in zip((key, value), other, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(seen, fresh.update(*both, 0), strict=True))
    assert kvf.check(cache.dump(0)).ok


def test_after_a_reset_the_cache_is_as_new(llama):
    _, config = llama
    cache = SimulatedCache(config, "fp8_per_tensor")
    key, value = states()
    cache.update(key * 8, value * 8, 0)  # its scale must not outlive it
    cache.reset()
    assert cache.get_seq_length() == 0
    fresh = SimulatedCache(config, "fp8_per_tensor")
    pairs = zip(cache.update(key, value, 0), fresh.update(key, value, 0), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_padding_does_not_reach_the_tokens_beside_it(llama):
    net, config = llama
    ids = prompt(batch=1)
    padded = torch.cat([torch.zeros(1, 5, dtype=ids.dtype), ids], dim=1)
    mask = (padded != 0).long()
    alone = generate(net, ids, SimulatedCache(config, "int8_per_token_head"))
    beside = generate(net, padded, SimulatedCache(config, "int8_per_token_head"), mask)
    assert torch.equal(alone[:, 24:], beside[:, 29:])


def test_scales_are_given_for_all_layers_or_per_layer(llama):
    _, config = llama
    cache = SimulatedCache(config, "fp8_per_tensor", k_scale=[0.5, 0.25, 1, 1], v_scale={0: 0.125, 1: 2.0, 2: 1, 3: 1})
    for layer in (0, 1):
        cache.update(*states(), layer)
    held = [cache.caches(layer)["k"] for layer in (0, 1)]
    assert [(float(each.k_scale), float(each.v_scale)) for each in held] == [(0.5, 0.125), (0.25, 2.0)]


def test_a_layout_may_be_named_with_its_options(llama):
    _, config = llama
    chosen = {"name": "vllm-0.33", "order": "HND", "block_size": 32, "v_scales": "linear"}
    cache = SimulatedCache(config, "nvfp4", layout=chosen)
    cache.update(*states(), 1)
    layout = cache.caches(1)["k"].layout
    assert (layout.name, layout.order, layout.block_size) == ("vllm-0.33", "HND", 32)


def test_the_error_is_that_of_the_values_seen(llama):
    _, config = llama
    cache = SimulatedCache(config, "int8_per_token_head")
    key, value = states(batch=1, tokens=3)
    value[:, :, 1] = 0
    seen, _ = cache.update(key, value, 0)
    error = cache.error(0)
    x, y = (one[0].double().transpose(0, 1).reshape(3, -1) for one in (key, seen))
    expected = ((y - x).norm(dim=1) / x.norm(dim=1)).numpy()
    np.testing.assert_allclose(error.key[0], expected, rtol=1e-12)  # two sums of the same squares
    assert error.value[0, 1] == 0
    assert (error.value[0, [0, 2]] > 0).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"recipe": "int9"}, "unknown recipe 'int9'"),
        ({"layout": "vllm-9"}, "unknown layout 'vllm-9'"),
        ({"layers": {4: "nvfp4"}}, "layer 4 is no layer of this model, which has 0..3"),
        ({"skip_layers": [-1]}, "layer -1 is no layer of this model"),
        ({"keep_first": -1}, "keep_first must be a number of tokens, 0 or more; got -1"),
        ({"recipe": "fp8_per_tensor", "k_scale": [1.0]}, "k_scale has no scale for layer 1"),
        ({"recipe": "fp8_per_tensor", "k_scale": 0.0}, "scale"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(llama, options, message):
    _, config = llama
    with pytest.raises(kvf.InputError, match=message) as caught:
        SimulatedCache(config, **{"recipe": "nvfp4", **options}).update(*states(), 0)
    assert "\n" not in str(caught.value)


def test_an_encoder_decoder_is_refused():
    from transformers import T5Config

    with pytest.raises(kvf.InputError, match="T5Config is an encoder-decoder"):
        SimulatedCache(T5Config(), "nvfp4")


def test_heads_that_no_layout_holds_are_refused_with_the_reason(llama):
    _, config = llama
    cache = SimulatedCache(config, "nvfp4")
    with pytest.raises(kvf.InputError, match=r"no layout holds 2 heads of 20 \(K\) and 20 \(V\) dims"):
        cache.update(*states(head_size=20), 0)


def test_pages_of_a_layer_that_has_none_are_refused(llama):
    _, config = llama
    cache = SimulatedCache(config, "nvfp4", skip_layers=[1])
    with pytest.raises(kvf.InputError, match="layer 1 is not simulated; these are: 0, 2, 3"):
        cache.pages(1)
    with pytest.raises(kvf.InputError, match="layer 0 has no pages yet"):
        cache.pages(0)
