"""What the operators ask of their tensors, and the layout and the recipe that their strings name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kvformat import arrays, recipes
from kvformat.cache import check_fits
from kvformat.errors import InputError
from kvformat.layouts import Layout, layout
from kvformat.recipes.quantizer import given_scale

#: the dtypes of keys, values and results, by the names that layouts and recipes use
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def layout_of(
    name: str, mode: str, order: str, block_size: int, heads: int, sizes: tuple[int, int], v_scales: str,
    page_bytes: int, dtype: str,
) -> Layout:  # fmt: skip
    """The layout of a call; "" stands for a choice that the caller leaves to the layout."""
    made = layout(
        name, mode=mode, order=order, block_size=block_size, num_kv_heads=heads, head_size=sizes[0],
        head_size_v=sizes[1], v_scales=v_scales or None, page_bytes=page_bytes, dtype=dtype or None,
    )  # fmt: skip
    if not made.uniform:
        raise InputError(
            f"layout {name} in mode {mode} changes format along a head or has no V; use kvformat.PagedCache"
        )
    return made


def recipe_of(name: str, made: Layout) -> recipes.Recipe:
    """The recipe of that name, of the layout's engine for "". Raises InputError for one of another mode."""
    how = recipes.recipe(name or made.recipe)
    if how.mode != made.mode:
        raise InputError(f"recipe {how.name} is for mode {how.mode}; this layout is for mode {made.mode}")
    check_fits(made, how)
    return how


def check_pages(pages: torch.Tensor, device: torch.device) -> None:
    """Raise InputError unless pages are uint8 (num_blocks, page_bytes) with contiguous rows, on that device."""
    if pages.dtype != torch.uint8 or pages.ndim != 2 or (pages.numel() and pages.stride(1) != 1):
        raise InputError(
            f"pages must be uint8 (num_blocks, page_bytes), the bytes of a page side by side; got {pages.dtype} "
            f"{tuple(pages.shape)} with strides {pages.stride()}"
        )
    if pages.device != device:
        raise InputError(f"all tensors must be on one device; pages are on {pages.device}, another one on {device}")


def check_rows(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, head_size: int) -> None:
    """Raise InputError unless key, value and slots fit together."""
    for name, x in (("key", key), ("value", value)):
        if x.ndim != 3 or x.dtype not in DTYPES.values():
            raise InputError(
                f"{name} must be float32, float16 or bfloat16 (tokens, heads, head size); got {x.dtype} "
                f"{tuple(x.shape)}"
            )
    if key.shape[:2] != value.shape[:2] or key.dtype != value.dtype or key.device != value.device:
        raise InputError(
            f"key and value must have the same tokens, heads, dtype and device; got {tuple(key.shape)} {key.dtype} "
            f"{key.device} and {tuple(value.shape)} {value.dtype} {value.device}"
        )
    if key.shape[2] != head_size:
        raise InputError(f"key has head size {key.shape[2]}; head_size says {head_size}")
    if slots.ndim != 1 or slots.dtype not in (torch.int64, torch.int32) or slots.device != key.device:
        raise InputError(f"slot_mapping must be int64 or int32 (tokens,) on {key.device}; got {slots.dtype}")
    if slots.shape[0] > key.shape[0]:
        raise InputError(f"slot_mapping has {slots.shape[0]} slots for {key.shape[0]} tokens")


def scale_of(
    given: torch.Tensor | None, how: recipes.Recipe, device: torch.device, *, look: bool
) -> torch.Tensor | None:
    """A given scale as float32 (1,); its value is looked at only if that costs nothing or `look` says so."""
    if given is None:
        return None
    if given.numel() != 1 or not given.is_floating_point():
        raise InputError(f"a scale is one float, of shape () or (1,); got {given.dtype} {tuple(given.shape)}")
    if not any(level.may_be_given for level in how.levels) or look or device.type == "cpu":
        given_scale(arrays.copied(given), how)
    return given.reshape(1).to(device=device, dtype=torch.float32)


#: the compute capabilities that have a conversion
_INSTRUCTIONS: Mapping[str, tuple[str, Callable[[tuple[int, int]], bool]]] = {
    "e4m3x2": ("sm_89 or newer", lambda capability: capability >= (8, 9)),
    "e2m1x2": ("sm_100a, sm_103a or sm_120a", lambda capability: capability in ((10, 0), (10, 3), (12, 0))),
}


def check_hardware(how: recipes.Recipe, device: torch.device, dtype: torch.dtype) -> None:
    """Raise InputError unless the GPU has the instruction that the recipe's last conversion is."""
    from kvformat.torch.program import quantizer

    name = str(dtype).removeprefix("torch.")
    instruction = "" if how.element is None else quantizer(how, name).encode.instruction
    if not instruction:
        raise InputError(f"recipe {how.name} ends in no conversion that is an instruction; leave hardware out")
    wanted, has = _INSTRUCTIONS[instruction]
    nvidia = device.type == "cuda" and torch.version.cuda
    capability = torch.cuda.get_device_capability(device) if nvidia else (0, 0)
    if not has(capability):
        raise InputError(f"cvt.rn.satfinite.{instruction}.f32 needs {wanted}; {device} is not; leave hardware out")


def check_table(blocks: torch.Tensor, seq_len: int, block_size: int) -> None:
    """Raise InputError unless the table holds so many tokens."""
    if blocks.ndim != 1 or blocks.dtype not in (torch.int64, torch.int32):
        raise InputError(f"block_table must be int64 or int32 (blocks,); got {blocks.dtype} {tuple(blocks.shape)}")
    if not 0 <= seq_len <= blocks.shape[0] * block_size:
        held = blocks.shape[0] * block_size
        raise InputError(f"seq_len must be in 0..{held}, what the block table holds; got {seq_len}")


def check_queries(
    query: torch.Tensor, num_kv_heads: int, block_tables: torch.Tensor, seq_lens: torch.Tensor, splits: int
) -> None:
    """Raise InputError unless queries, tables and lengths fit together."""
    if query.ndim != 3 or query.dtype not in DTYPES.values() or query.shape[1] % num_kv_heads:
        raise InputError(
            "query must be float32, float16 or bfloat16 (sequences, query heads, head size), with a multiple of "
            f"{num_kv_heads} query heads; got {query.dtype} {tuple(query.shape)}"
        )
    integers = (torch.int64, torch.int32)
    if block_tables.ndim != 2 or block_tables.dtype not in integers or block_tables.stride(1) != 1:
        raise InputError("block_tables must be int64 or int32 (sequences, blocks), rows contiguous")
    if seq_lens.ndim != 1 or seq_lens.dtype not in integers or not seq_lens.is_contiguous():
        raise InputError("seq_lens must be int64 or int32 (sequences,), contiguous")
    if not query.shape[0] == block_tables.shape[0] == seq_lens.shape[0]:
        raise InputError("query, block_tables and seq_lens must name the same sequences")
    if splits < 1:
        raise InputError(f"num_splits must be at least 1; got {splits}")
