"""What the plugin sees of vLLM, without vLLM: layers, impls with a writer, a worker that runs steps."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import kvformat as kvf
from kvformat import arrays
from kvformat.torch.adapters import from_pages, to_pages

BLOCK, HEADS, SIZE, BLOCKS = 32, 2, 32, 4
MODES = {"auto": "none", "fp8": "fp8_per_tensor"}


class Backend:
    """The CPU backend by name."""

    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name():
        return "CPU_ATTN"


class Impl:
    """An impl with vLLM's signatures, whose writer is kvformat's own cache with a fault planted if there is one."""

    kv_sharing_target_layer_name = None
    scale = SIZE**-0.5

    def __init__(self, dtype, version, fault=None):
        self.kv_cache_dtype, self.fault, self.written = dtype, fault, 0
        named = {"dtype": "bfloat16"} if dtype == "auto" else {}
        self.layout = kvf.layout(
            f"vllm-{version}-cpu", mode=MODES[dtype], block_size=BLOCK, num_kv_heads=HEADS, head_size=SIZE, **named
        )

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        self.written += 1
        scales = (
            {} if self.kv_cache_dtype == "auto" else {"k_scale": layer._k_scale_float, "v_scale": layer._v_scale_float}
        )
        cache = kvf.PagedCache(self.layout, num_blocks=BLOCKS, **scales)
        cache.pages[:] = arrays.copied(to_pages(kv_cache, self.layout))
        slots = arrays.copied(slot_mapping)
        cache.write(*(arrays.copied(each[: len(slots)]) for each in (key, value)), slots, recipe=self.layout.recipe)
        if self.fault:
            self.fault(cache, self.layout, slots)
        from_pages(torch.from_numpy(cache.pages), kv_cache, self.layout)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output):  # noqa: ARG002 vLLM's signature
        output.copy_(query)
        return output


def make_layer(dtype="auto", version="0.32", fault=None):
    size = 2 * SIZE
    kv_cache = torch.zeros((BLOCKS, HEADS, BLOCK, size), dtype=torch.bfloat16 if dtype == "auto" else torch.uint8)
    return SimpleNamespace(
        impl=Impl(dtype, version, fault), attn_backend=Backend, isa="vec", head_size=SIZE, num_heads=HEADS,
        num_kv_heads=HEADS, _k_scale_float=0.5, _v_scale_float=2.0, kv_cache=kv_cache,
    )  # fmt: skip


def make_worker(*, tensor=1, data=1):
    """A class of workers as vLLM's: load_model, execute_model; a step writes its slots in every layer.

    tensor, data: how many of them share a model's heads, and how many models there are.
    """

    class Worker:
        device = torch.device("cpu")

        def __init__(self, layers, rank=0):
            self.rank = rank
            self.vllm_config = SimpleNamespace(
                compilation_config=SimpleNamespace(static_forward_context=layers),
                scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
                model_config=SimpleNamespace(dtype=torch.bfloat16),
                parallel_config=SimpleNamespace(
                    world_size=tensor, data_parallel_size=data, data_parallel_rank=rank // tensor
                ),
            )

        def load_model(self):
            return "loaded"

        def execute_model(self, scheduled):
            generator = torch.Generator().manual_seed(len(scheduled.slots))
            for layer in self.vllm_config.compilation_config.static_forward_context.values():
                tokens = len(scheduled.slots)
                query, key, value = (
                    torch.randn((tokens, HEADS, SIZE), generator=generator).to(torch.bfloat16) for _ in "qkv"
                )
                slots = torch.tensor(scheduled.slots, dtype=torch.int64)
                writer = getattr(layer.impl, "do_kv_cache_update", None)
                if writer:
                    writer(layer, key, value, layer.kv_cache, slots)
                layer.impl.forward(layer, query, key, value, layer.kv_cache, None, output=torch.empty_like(query))
            return "result"

    return Worker


def step(slots, *, new=True):
    """A step's schedule: one request, from its first token or later."""
    request = [SimpleNamespace(num_computed_tokens=0)] if new else []
    return SimpleNamespace(slots=list(slots), scheduled_new_reqs=request, num_scheduled_tokens={"0": len(slots)})
