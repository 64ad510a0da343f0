"""The operators `torch.ops.kvformat.*`: CPU tensors go to the Numba engine, CUDA and HIP tensors to the Triton kernels.

Tensors may have any strides and are never copied as a whole. CPU tensors are read and written where they are. On a
device nothing waits: a slot past the end writes nothing and raises a flag that `check_errors` reads, duplicate slots
are undefined, the values of scales are not looked at; `debug=True` waits, checks, and raises as on the CPU. All raise
`kvformat.InputError` for shapes, dtypes and names that do not fit. The mode's argument is `kv_mode`: torch hands an
operator's arguments on by name, beside a `mode` of its own.
"""

# ruff: noqa: ARG001 a fake takes what its operator takes

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from kvformat import arrays, cache, recipes
from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.layouts.region import SIDES
from kvformat.recipes.quantizer import Quantized, checked
from kvformat.recipes.quantizer import quantize as quantize_array
from kvformat.slots import check_slots
from kvformat.torch.checks import (
    DTYPES,
    check_hardware,
    check_pages,
    check_queries,
    check_rows,
    check_table,
    layout_of,
    recipe_of,
    scale_of,
)
from kvformat.torch.errors import check_errors, flags

_NUMPY = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}


@torch.library.custom_op("kvformat::write_pages", mutates_args=("pages",))
def write_pages(
    key: torch.Tensor,
    value: torch.Tensor,
    pages: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    layout: str,
    kv_mode: str,
    order: str,
    block_size: int,
    head_size: int,
    recipe: str,
    v_scales: str = "",
    dtype: str = "",
    debug: bool = False,
    hardware: bool = False,
) -> None:
    """Quantize tokens and store them in their slots of `pages`, which it changes; no other byte changes.

    key: (tokens, heads, head_size), value: (tokens, heads, any head size), float32, float16 or bfloat16, any strides.
    pages: uint8 (num_blocks, page_bytes), the bytes of a page side by side; a page may be longer than the layout's.
    slot_mapping: int64 or int32 (slots,); a negative slot writes nothing; tokens beyond its length are padding and are
    not written. k_scale, v_scale: float32 () or (1,), the scale of the tensor where the mode has one; None: computed
    over the tokens that have an entry in slot_mapping. layout, kv_mode, order, block_size, v_scales, dtype: as in
    `kvformat.layout`, "" for its default. recipe: a recipe's or a mode's name, "" for the one of the layout's engine.
    hardware: convert by the GPU's instruction where the recipe's conversion is one (e4m3fn from sm_89, e2m1fn on
    sm_100a, 103a and 120a); the bytes are the same. A CPU tensor has no such choice.
    """
    check_rows(key, value, slot_mapping, head_size)
    check_pages(pages, key.device)
    sizes = (head_size, value.shape[2])
    made = layout_of(layout, kv_mode, order, block_size, key.shape[1], sizes, v_scales, pages.shape[1], dtype)
    how = recipe_of(recipe, made)
    count, on_cpu = slot_mapping.shape[0], _by_engine(key)
    if not count:
        return
    given = {"k": k_scale, "v": v_scale}
    scales = {side: scale_of(given[side], how, key.device, look=debug) for side in SIDES}
    slots = check_slots(arrays.copied(slot_mapping), len(pages) * block_size) if on_cpu or debug else None
    if hardware and not on_cpu:
        check_hardware(how, key.device, key.dtype)
    rows = {"k": key[:count], "v": value[:count]}
    if slots is not None and on_cpu:
        quantized = {
            side: cache.quantize_for(made, checked(arrays.array(rows[side])), how, _number(scales[side]))
            for side in SIDES
        }
        for side in SIDES:
            cache.store(made, arrays.array(pages), slots, side, quantized[side])
        return
    from kvformat.torch import launch

    errors, _ = flags(key.device)
    slot_mapping = slot_mapping.contiguous()
    for side in SIDES:
        launch.write(made, rows[side], side, pages, slot_mapping, how, scales[side], errors, hardware=hardware)
    if debug:
        check_errors()


@write_pages.register_fake
def _fake_write_pages(*arguments: object, **named: object) -> None:
    """Nothing comes back."""


@torch.library.custom_op("kvformat::gather_pages", mutates_args=())
def gather_pages(
    pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_len: int,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    layout: str,
    kv_mode: str,
    order: str,
    block_size: int,
    num_kv_heads: int,
    head_size: int,
    recipe: str,
    head_size_v: int = 0,
    v_scales: str = "",
    dtype: str = "",
    out_dtype: torch.dtype = torch.float32,
    debug: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first seq_len tokens of a sequence: key and value (seq_len, heads, head size), dequantized, contiguous.

    pages and the layout's arguments: as in `write_pages`; head_size_v 0 means head_size. block_table: the sequence's
    blocks in order, int64 or int32 (blocks,). k_scale, v_scale: needed where the recipe has a scale per tensor.
    out_dtype: float32, float16 or bfloat16, rounded to once. On a device a block that the cache does not have reads as
    0 and raises the flag.
    """
    check_pages(pages, block_table.device)
    check_table(block_table, seq_len, block_size)
    _check_out(out_dtype)
    sizes = (head_size, head_size_v or head_size)
    made = layout_of(layout, kv_mode, order, block_size, num_kv_heads, sizes, v_scales, pages.shape[1], dtype)
    how = recipe_of(recipe, made)
    given = {"k": k_scale, "v": v_scale}
    for side in SIDES:
        if how.outer and given[side] is None:
            raise InputError(f"recipe {how.name} needs a {side}_scale to be read")
    scales = {side: scale_of(given[side], how, pages.device, look=debug) for side in SIDES}
    if _by_engine(pages):
        slots = _slots_of(block_table, seq_len, block_size, len(pages))
        read = (cache.load(made, arrays.array(pages), slots, side, how, _number(scales[side])) for side in SIDES)
        key, value = (arrays.tensor(each.dequantize(_NUMPY[out_dtype])) for each in read)
        return key, value
    from kvformat.torch import launch

    _, errors = flags(pages.device)
    block_table = block_table.contiguous()
    key, value = (
        launch.gather(made, pages, side, block_table, seq_len, how, scales[side], errors, out_dtype) for side in SIDES
    )
    if debug:
        check_errors()
    return key, value


@gather_pages.register_fake
def _fake_gather_pages(
    pages: torch.Tensor, block_table: torch.Tensor, seq_len: int, k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None, layout: str, kv_mode: str, order: str, block_size: int, num_kv_heads: int,
    head_size: int, recipe: str, head_size_v: int = 0, v_scales: str = "", dtype: str = "",
    out_dtype: torch.dtype = torch.float32, debug: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    rows = (seq_len, num_kv_heads)
    return (
        pages.new_empty((*rows, head_size), dtype=out_dtype),
        pages.new_empty((*rows, head_size_v or head_size), dtype=out_dtype),
    )


@torch.library.custom_op("kvformat::paged_attention", mutates_args=())
def paged_attention(
    query: torch.Tensor,
    pages: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    layout: str,
    kv_mode: str,
    order: str,
    block_size: int,
    num_kv_heads: int,
    recipe: str,
    scale: float,
    head_size_v: int = 0,
    v_scales: str = "",
    dtype: str = "",
    num_splits: int = 8,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode attention over pages: for each sequence one query token against all its tokens.

    query: (sequences, query heads, head_size), float32, float16 or bfloat16, any strides; query head i reads KV head i
    // (query heads / num_kv_heads). block_tables: int64 or int32 (sequences, blocks), seq_lens: int64 or int32
    (sequences,). scale: what the dot products are multiplied by, 1 / sqrt(head_size) as a rule. num_splits: parts that
    a sequence is cut into, which run side by side. The other arguments: as in `gather_pages`.

    Gives the output (sequences, query heads, head size of V) in the query's dtype, and the log of the sum of weights,
    float32 (sequences, query heads); 0 and -Inf where a sequence has no token. K and V are exactly what `gather_pages`
    gives; `kvformat.torch.attention` says how far rounding can move the rest. On the CPU it is float64, rounded once.
    On a device a token whose block the cache or its table does not have is left out, and raises the flag.
    """
    sizes = (query.shape[-1], head_size_v or query.shape[-1])
    made = layout_of(layout, kv_mode, order, block_size, num_kv_heads, sizes, v_scales, pages.shape[1], dtype)
    how = recipe_of(recipe, made)
    check_pages(pages, query.device)
    check_queries(query, num_kv_heads, block_tables, seq_lens, num_splits)
    k_given, v_given = (scale_of(given, how, pages.device, look=False) for given in (k_scale, v_scale))
    if how.outer and (k_given is None or v_given is None):
        raise InputError(f"recipe {how.name} needs k_scale and v_scale to be read")
    if not _by_engine(query):
        from kvformat.torch.attention import attend

        _, errors = flags(pages.device)
        return attend(made, query, pages, block_tables, seq_lens, how, (k_given, v_given), errors, scale, num_splits)
    for table, length in zip(block_tables, seq_lens.tolist(), strict=True):
        check_table(table, length, block_size)
    out = query.new_zeros((*query.shape[:2], sizes[1]))
    lse = query.new_full(query.shape[:2], float("-inf"), dtype=torch.float32)
    group = query.shape[1] // num_kv_heads
    for sequence, length in enumerate(seq_lens.tolist()):
        if length:
            slots = _slots_of(block_tables[sequence], length, block_size, len(pages))
            key, value = (
                arrays.tensor(cache.load(made, arrays.array(pages), slots, side, how, _number(given)).dequantize())
                for side, given in zip(SIDES, (k_given, v_given), strict=True)
            )
            key, value = (x.double().repeat_interleave(group, dim=1) for x in (key, value))
            logits = scale * torch.einsum("hd,nhd->hn", query[sequence].double(), key)
            out[sequence] = torch.einsum("hn,nhd->hd", logits.softmax(dim=1), value).to(query.dtype)
            lse[sequence] = logits.logsumexp(dim=1)
    return out, lse


@paged_attention.register_fake
def _fake_paged_attention(
    query: torch.Tensor, pages: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor,
    k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, layout: str, kv_mode: str, order: str,
    block_size: int, num_kv_heads: int, recipe: str, scale: float, head_size_v: int = 0, v_scales: str = "",
    dtype: str = "", num_splits: int = 8,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    heads = query.shape[:2]
    out = query.new_empty((*heads, head_size_v or query.shape[2]))
    return out, query.new_empty(heads, dtype=torch.float32)


@torch.library.custom_op("kvformat::quantize", mutates_args=())
def quantize(
    x: torch.Tensor, recipe: str, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and the tensor's scale, as `kvformat.quantize` gives them.

    x: (tokens, heads, head_dim), float32, float16 or bfloat16, any strides. recipe: a recipe's or a mode's name. scale:
    float32 () or (1,), where the recipe takes one. codes: x's shape, int8 for int8, else uint8, 4-bit codes one per
    byte; mode none: a copy of x. scales: float32 (1,) per tensor, float32 (tokens, heads) per token and head, uint8
    codes (tokens, heads, head_dim // block) per block. global_scale: float32 (1,), 1.0 where the recipe has none.
    """
    how = recipes.recipe(recipe)
    _check_x(x)
    given = scale_of(scale, how, x.device, look=False)
    if _by_engine(x):
        made = quantize_array(arrays.array(x), how, scale=_number(given))
        shared = arrays.tensor(np.full(1, made.global_scale, np.float32))
        return arrays.tensor(made.codes), arrays.tensor(made.scales), shared
    if how.element is None:
        return x.clone(), x.new_empty(0, dtype=torch.float32), x.new_ones(1, dtype=torch.float32)
    from kvformat.torch import launch

    codes, scales, shared = launch.quantize(x, how, given)
    return codes.view(_code_dtype(how, x.dtype)), scales, shared


@quantize.register_fake
def _fake_quantize(
    x: torch.Tensor, recipe: str, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    how = recipes.recipe(recipe)
    codes = x.new_empty(x.shape, dtype=_code_dtype(how, x.dtype))
    shape: tuple[int, ...] = (1,) if how.outer else (0,)
    floats = True
    if how.inner is not None:
        dims, floats = how.inner.granularity.dims, how.inner.format.is_float
        shape = (*x.shape[:2], x.shape[2] // dims) if dims else tuple(x.shape[:2])
    scales = x.new_empty(shape, dtype=torch.float32 if floats else torch.uint8)
    return codes, scales, x.new_empty(1, dtype=torch.float32)


@torch.library.custom_op("kvformat::dequantize", mutates_args=())
def dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    recipe: str,
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The values (tokens, heads, head_dim) of what `quantize` gives, rounded once to float32, float16 or bfloat16."""
    how = recipes.recipe(recipe)
    _check_out(out_dtype)
    if how.element is None:
        return codes.to(out_dtype, copy=True)
    if codes.ndim != 3 or codes.dtype != _code_dtype(how, codes.dtype):
        raise InputError(f"codes of {how.name} are {_code_dtype(how, codes.dtype)} (tokens, heads, head_dim)")
    if _by_engine(codes):
        shared = np.float32(global_scale.item())
        made = Quantized(arrays.array(codes), arrays.array(scales), shared, how)
        return arrays.tensor(made.dequantize(_NUMPY[out_dtype]))
    from kvformat.torch import launch

    return launch.dequantize(codes.contiguous(), scales.contiguous(), global_scale, how, out_dtype)


@dequantize.register_fake
def _fake_dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    recipe: str,
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    return codes.new_empty(codes.shape, dtype=out_dtype)


def _by_engine(x: torch.Tensor) -> bool:
    """Whether a tensor is the Numba engine's to work on, and not a kernel's."""
    return x.device.type == "cpu"


def _check_x(x: torch.Tensor) -> None:
    if x.ndim != 3 or x.dtype not in DTYPES.values() or not x.numel():
        raise InputError(
            f"x must be float32, float16 or bfloat16 (tokens, heads, head_dim), not empty; got {x.dtype} "
            f"{tuple(x.shape)}"
        )


def _check_out(dtype: torch.dtype) -> None:
    if dtype not in DTYPES.values():
        raise InputError(f"values come as float32, float16 or bfloat16; got {dtype}")


def _code_dtype(how: recipes.Recipe, values: torch.dtype) -> torch.dtype:
    if how.element is None:
        return values
    return torch.int8 if element(how.element).signed_integer else torch.uint8


def _number(scale: torch.Tensor | None) -> np.float32 | None:
    return None if scale is None else np.float32(scale.item())


def _slots_of(block_table: torch.Tensor, seq_len: int, block_size: int, num_blocks: int) -> np.ndarray:
    blocks = arrays.array(block_table).astype(np.int64)
    outside = (blocks < 0) | (blocks >= num_blocks)
    if outside.any():
        raise InputError(f"block_table names block {blocks[outside][0]}; blocks are 0..{num_blocks - 1}")
    tokens = np.arange(seq_len)
    return blocks[tokens // block_size] * block_size + tokens % block_size
