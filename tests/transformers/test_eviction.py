"""Under `evicting` a model sees what StreamingLLM and H2O leave, whatever cache it has and however tokens arrive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from kvformat.errors import InputError
from kvformat.simulate.eviction import Budget, Eviction, h2o, streaming
from kvformat.transformers import SimulatedCache, evicting
from kvformat.transformers.eviction import Evicted
from kvformat.transformers.measure import Journal, Run, measure
from tests.transformers.models import CONFIGS, generate, model, prompt

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torch
POLICIES = ("streaming", "h2o")


@pytest.fixture(scope="module")
def llama():
    return model("llama")[0]


def logits(net, ids, cache=None, **more):
    with torch.no_grad():
        return net(ids, cache=cache or DynamicCache(config=net.config), use_cache=True, **more).logits


def eager(net, ids, **more):
    before = net.config._attn_implementation
    net.set_attn_implementation("eager")
    try:
        return logits(net, ids, **more)
    finally:
        net.set_attn_implementation(before)


#: gpt_oss has sinks in its softmax, falcon an attention of its own
KNOWN = sorted(set(CONFIGS) - {"gpt_oss", "falcon"})


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_for_all_tokens_changes_no_bit(name, policy):
    net, _ = model(name)
    with evicting(net, Eviction.of(policy, 64)):
        made = logits(net, prompt())
    assert torch.equal(made, eager(net, prompt()))


def test_streaming_is_the_mask_of_its_paper(llama):
    """transformers takes a mask of one's own: (batch, 1, queries, keys), added to the logits."""
    ids, budget = prompt(batch=1, tokens=40), Budget.streaming(12)
    mask = torch.from_numpy(streaming(40, budget))[None]
    added = torch.zeros(mask.shape, dtype=llama.dtype).masked_fill(~mask, torch.finfo(llama.dtype).min)
    with evicting(llama, Eviction("streaming", budget)):
        made = logits(llama, ids)
    assert torch.equal(made, eager(llama, ids, attention_mask=added))
    assert not torch.equal(made, eager(llama, ids))


@pytest.mark.parametrize("steps", [(24,), (10, 14), (1,) * 24, (7, 1, 1, 15)])
def test_h2o_is_that_of_the_experiments_however_tokens_arrive(steps):
    draw = np.random.default_rng(0)
    query, key = draw.normal(size=(24, 4, 16)), draw.normal(size=(24, 2, 16))
    eviction = Eviction("h2o", Budget(3, 5))
    expected = h2o(query, key, eviction.budget)
    scores = np.einsum("thgd,shd->hgts", query.reshape(24, 2, 2, 16), key) * 16**-0.5
    scores = np.where(np.tri(24, dtype=bool), scores, -np.inf)
    evicted, start = Evicted(eviction), 0
    for count in steps:
        stop = start + count
        seen = evicted.seen(0, scores[:, :, start:stop, :stop])
        assert np.array_equal(seen, expected[:, start:stop, :stop])
        start = stop


def test_h2o_keeps_the_heaviest_and_the_last_by_hand():
    """Budget 1 + 1, and the new token. Key 0 has been given the most until token 3, key 3 in token 4."""
    rows = [[0], [9, 0], [9, 0, 0], [0, 0, 0, 30], [0, 0, 0, 30, 0], [0] * 6]
    evicted = Evicted(Eviction("h2o", Budget(1, 1)))
    seen = [evicted.seen(0, np.array(row, np.float64)[None, None, None]) for row in rows]
    kept = [np.flatnonzero(each[0, 0]).tolist() for each in seen]
    assert kept == [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 5]]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3", "gpt2"])
@pytest.mark.parametrize("policy", POLICIES)
def test_any_model_generates_through_pages_while_tokens_are_evicted(name, policy):
    net, config = model(name)
    with evicting(net, Eviction.of(policy, 8)) as evicted:
        made = generate(net, prompt(), SimulatedCache(config, "int8_per_token_head"))
    assert made.shape == (2, 36)
    if policy == "h2o":
        assert all((held.kept.sum(axis=1) == 8).all() for held in evicted._hitters.values())


def test_the_model_is_afterwards_as_before(llama):
    before, refused = logits(llama, prompt()), torch.zeros((2, 65), dtype=torch.int64)
    with pytest.raises(AttributeError), evicting(llama, Eviction.of("h2o", 4)):
        llama(refused, cache=0)  # no cache
    assert torch.equal(logits(llama, prompt()), before)


def test_padding_and_sinks_are_refused(llama):
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[0, :3] = 0
    with pytest.raises(InputError, match="padded"), evicting(llama, Eviction.of("h2o", 4)):
        logits(llama, prompt(), attention_mask=mask)
    net, _ = model("gpt_oss")
    with pytest.raises(InputError, match="sinks"), evicting(net, Eviction.of("h2o", 4)):
        logits(net, prompt())
    falcon, _ = model("falcon")
    with pytest.raises(InputError, match=r"Falcon.* cannot be replaced"), evicting(falcon, Eviction.of("h2o", 4)):
        pass
    with pytest.raises(InputError, match="streaming"):
        Eviction.of("stream", 4)


def test_what_is_measured_is_the_eviction_and_not_its_base(llama):
    ids = [prompt(batch=1, tokens=40)]
    (plain,) = measure(llama, ids, ["none"], Journal(None, ""))
    (row,) = measure(llama, ids, ["none"], Journal(None, ""), eviction=Eviction.of("h2o", 6))
    assert (plain.kl.mean, row.base_ppl) == (0, plain.base_ppl)
    assert row.kl.mean > 0


def test_a_run_with_eviction_is_another_run():
    names = {
        Run("m", "0" * 64, 8, (prompt(),), each).name for each in (None, Eviction.of("h2o", 6), Eviction.of("h2o", 7))
    }
    assert len(names) == 3
