"""Times what a SimulatedCache adds to a transformers model, in times of the model's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median, quantiles
from typing import Any

from bench_rates import Row

#: of SmolLM2-135M's config.json; weights are random, which costs the same
SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
TOKENS = 512
#: recipe -> the times of the model's own that it may add
RECIPES = {"int8_per_token_head": 1.0, "fp8_per_token_head": None, "nvfp4": 1.5}
PAIRS = 15


def model_rates(skip: Callable[[str], None]) -> Iterator[Row]:
    """A forward pass over 512 tokens, batch 1, bfloat16, with each recipe's cache and with transformers' own."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        skip(f"SimulatedCache: {error.name} is not installed")
        return
    from kvformat.transformers import SimulatedCache

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMOLLM2)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(config.vocab_size, (1, TOKENS))

    def seconds(cache: Any) -> float:
        start = time.perf_counter()
        with torch.no_grad():
            model(input_ids=ids, cache=cache, use_cache=True)
        return time.perf_counter() - start

    for recipe, most in RECIPES.items():
        pairs = [
            (seconds(SimulatedCache(config, recipe)), seconds(transformers.DynamicCache(config=config)))
            for _ in range(PAIRS + 2)
        ][2:]  # the first ones compile
        own = median(own for _, own in pairs)
        added = [simulated - alone for simulated, alone in pairs]
        shares = [own / each for each in added]
        low, _, high = quantiles(shares, n=4)
        yield Row(
            f"SimulatedCache {recipe} adds, {TOKENS} tokens at once", median(added), "s", "the model itself", own,
            median(shares), (low, high), at_least=None if most is None else 1 / most,
        )  # fmt: skip
