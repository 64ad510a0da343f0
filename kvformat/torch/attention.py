"""Paged decode attention on codes: one query token per sequence, GQA, float32 accumulation, sequences in splits.

K and V are read by the kernel that gathers, so each value is exactly what `gather_pages` gives; only the attention
around them is rounded. How far it can be off, with u = 2^-24, gamma(n) = n u / (1 - n u), D the head size, N tokens in
tiles of T, S splits, and exp2 within 2^-21 of itself (ex2.approx.ftz.f32 is within 2^-22, v_exp_f32 within 1 ulp; what
they flush is below 2^-126, where the largest weight is 1):

* a logit t_j = log2(e) tau q.k_j is off by at most gamma(D + 3) log2(e) tau sum_c |q_c k_jc|: D products and sums in
  any order, fused or not, and the constant log2(e) tau, rounded once.
* token j's weight is 2^(t_j - m), m the maximum so far, times a factor 2^(m - m') each time the maximum rises. The
  differences add up to max t - t_j =: r_j, so their roundings to u r_j; N / T + S exponentials and products of factors
  each add 2^-21 + u. In all the weight is as if its logit were off by eps_j, in nats, with
      |eps_j| <= ln 2 (gamma(D + 3) log2(e) tau sum_c |q_c k_jc| + u r_j) + (N / T + S + 2) (2^-21 + u).
* logits that are off by eps move the output of channel c by at most tanh(omega / 4) (max_j v_jc - min_j v_jc), omega =
  max eps - min eps <= 2 max |eps_j|: the odds of a set of tokens change by at most e^omega, so their probability by at
  most tanh(omega / 4).
* the sums over tokens, of p v and of p, and their quotient add 2 gamma(N + N / T + S + 3) max_j |v_jc|.
* the output is rounded once to the query's dtype.

`rounding_bound` is that sum; the tests hold the kernels to it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from kvformat.torch.codec import narrow, narrowing, widen
from kvformat.torch.kernels import read_rows
from kvformat.torch.launch import name_of, patterns, reader, start

if TYPE_CHECKING:
    from kvformat.layouts import Layout
    from kvformat.recipes import Recipe

#: elements of a tile of K or V, 16 per thread; with 32 some kernels spill
_ELEMENTS = 2048


@triton.jit
def attend_split(
    query: tl.tensor,
    blocks: tl.tensor,
    lengths: tl.tensor,
    k_outer: tl.tensor,
    v_outer: tl.tensor,
    pages: tl.tensor,
    sums: tl.tensor,
    maxima: tl.tensor,
    weights: tl.tensor,
    errors: tl.tensor,
    num_blocks: tl.tensor,
    table_blocks: tl.tensor,
    table_stride: tl.tensor,
    query_stride: tl.tensor,
    head_stride: tl.tensor,
    dim_stride: tl.tensor,
    factor: tl.tensor,
    DTYPE: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """One split of one sequence and KV head: weighted sums of V, the maximum of the logits in bits, and the weights.

    query: patterns (sequences, HEADS * GROUP, dims) of DTYPE. blocks: (sequences, blocks), lengths: (sequences,). sums:
    float32 (sequences, query heads, SPLITS, V.dims); maxima, weights: float32 (sequences, query heads, SPLITS). K, V: a
    `Reader` each. errors: the flag that names a token whose block the cache or the table does not have, plus 1; such a
    token has no weight. table_blocks: blocks of a table. factor: log2(e) times the scale of the logits.
    """
    COLUMNS: tl.constexpr = V.padded
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence).to(tl.int32)
    per_split = tl.cdiv(tl.cdiv(length, SPLITS), TOKENS) * TOKENS
    first = split * per_split
    last = tl.minimum(first + per_split, length)
    of_group, k_dim, v_dim = tl.arange(0, QUERIES), tl.arange(0, K.padded), tl.arange(0, COLUMNS)
    first_query = head.to(tl.int64) * GROUP
    row = query + sequence.to(tl.int64) * query_stride
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    weight, total = tl.zeros((QUERIES,), tl.float32), tl.zeros((QUERIES, COLUMNS), tl.float32)
    for begin in range(first, last, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        exists, column = token < last, token // BLOCK_SIZE
        block = tl.load(
            blocks + sequence.to(tl.int64) * table_stride + column, mask=exists & (column < table_blocks), other=-1
        ).to(tl.int64)
        here = exists & (block >= 0) & (block < num_blocks)
        tl.atomic_max(errors + token * 0, (token + 1).to(tl.int64), mask=exists & (here == 0), sem="relaxed")
        slot, heads = token % BLOCK_SIZE, token * 0 + head
        k = _rows(k_outer, pages, block, slot, heads, here, K, TOKENS)
        logits = tl.zeros((QUERIES, TOKENS), tl.float32)
        for i in tl.static_range(GROUP):
            where = row + (first_query + i) * head_stride + k_dim.to(tl.int64) * dim_stride
            q = widen(tl.load(where, mask=k_dim < K.dims, other=0), DTYPE)
            logits = tl.where((of_group == i)[:, None], tl.sum(k * q[None, :], axis=1)[None, :], logits)
        logits = tl.where(here[None, :], logits * factor, float("-inf"))
        rise = tl.maximum(top, tl.max(logits, axis=1))
        safe = tl.where(rise == float("-inf"), 0.0, rise)
        kept, p = tl.exp2(top - safe), tl.exp2(logits - safe[:, None])
        v = _rows(v_outer, pages, block, slot, heads, here, V, TOKENS)
        total = total * kept[:, None]
        for i in tl.static_range(GROUP):
            mine = (of_group == i)[:, None]
            p_of_query = tl.sum(tl.where(mine, p, 0.0), axis=0)  # one term is not 0
            total = tl.where(mine, total + tl.sum(p_of_query[:, None] * v, axis=0)[None, :], total)
        weight = weight * kept + tl.sum(p, axis=1)
        top = rise
    at = (sequence * HEADS * GROUP + head * GROUP + of_group) * SPLITS + split
    tl.store(maxima + at, top, mask=of_group < GROUP)
    tl.store(weights + at, weight, mask=of_group < GROUP)
    there = (of_group < GROUP)[:, None] & (v_dim < V.dims)[None, :]
    tl.store(sums + (at.to(tl.int64)[:, None] * V.dims + v_dim[None, :]), total, mask=there)


@triton.jit
def _rows(
    outer: tl.tensor, pages: tl.tensor, block: tl.tensor, slot: tl.tensor, head: tl.tensor, here: tl.tensor,
    READER: tl.constexpr, TOKENS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    STORED: tl.constexpr = READER.stored
    HOW: tl.constexpr = READER.how
    CODES: tl.constexpr = READER.codes
    SCALES: tl.constexpr = READER.scales
    TILE: tl.constexpr = READER.tile
    values = read_rows(
        outer, pages, pages, block, slot, head, here, STORED, HOW, CODES, SCALES, TOKENS, TILE, READER.packed
    )
    dim = tl.arange(0, READER.padded)
    return tl.where(here[:, None] & (dim < READER.dims)[None, :], values, 0.0)  # a code of 0 need not mean 0


@triton.jit
def merge_splits(
    sums: tl.tensor,
    maxima: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    OUT: tl.constexpr,
    NARROW: tl.constexpr,
    DIMS: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """The splits of one sequence and query head in one: `out` patterns of OUT, `lse` the log of the sum of weights."""
    row = tl.program_id(0)
    split, dim = tl.arange(0, TILE), tl.arange(0, PADDED)
    exists = split < SPLITS
    tops = tl.load(maxima + row * SPLITS + split, mask=exists, other=float("-inf"))
    top = tl.max(tops, axis=0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    factor = tl.exp2(tops - safe)
    weight = tl.sum(tl.load(weights + row * SPLITS + split, mask=exists, other=0.0) * factor, axis=0)
    where = (row.to(tl.int64) * SPLITS + split)[:, None] * DIMS + dim[None, :]
    parts = tl.load(sums + where, mask=exists[:, None] & (dim < DIMS)[None, :], other=0.0)
    total = tl.sum(parts * factor[:, None], axis=0)
    nothing = top == float("-inf")  # no token: 0
    value = tl.div_rn(total, tl.zeros((PADDED,), tl.float32) + tl.where(nothing, 1.0, weight))
    tl.store(out + row.to(tl.int64) * DIMS + dim, narrow(value, OUT, NARROW), mask=dim < DIMS)
    tl.store(lse + row, tl.where(nothing, float("-inf"), (safe + tl.log2(weight)) * 0.6931471805599453))


def attend(
    layout: Layout,
    query: torch.Tensor,
    pages: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    recipe: Recipe,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    errors: torch.Tensor,
    tau: float,
    splits: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the two kernels; see `kvformat.torch.ops.paged_attention`."""
    sequences, query_heads, _ = query.shape
    k, v = reader(layout, pages, "k", recipe), reader(layout, pages, "v", recipe)
    group = query_heads // layout.num_kv_heads
    sums = torch.empty((sequences, query_heads, splits, v.dims), dtype=torch.float32, device=query.device)
    maxima, weights = (torch.empty(sums.shape[:3], dtype=torch.float32, device=query.device) for _ in range(2))
    out = torch.empty((sequences, query_heads, v.dims), dtype=query.dtype, device=query.device)
    lse = torch.empty((sequences, query_heads), dtype=torch.float32, device=query.device)
    if not sequences:
        return out, lse
    start(
        attend_split,
        (sequences, layout.num_kv_heads, splits),
        (
            patterns(query), block_tables, lengths, scales[0], scales[1], pages, sums, maxima, weights,
            errors, pages.shape[0], block_tables.shape[1], block_tables.stride(0), *query.stride(), log2_scale(tau),
        ),
        {
            "DTYPE": name_of(query.dtype), "K": k, "V": v, "BLOCK_SIZE": layout.block_size,
            "HEADS": layout.num_kv_heads, "GROUP": group,
            "QUERIES": triton.next_power_of_2(group),
            "TOKENS": tokens_per_tile(k.padded, v.padded), "SPLITS": splits,
        },
    )  # fmt: skip
    name = name_of(query.dtype)
    start(
        merge_splits,
        (sequences * query_heads,),
        (sums, maxima, weights, patterns(out), lse),
        {
            "OUT": name, "NARROW": None if name == "float32" else narrowing(name, "float32"), "DIMS": v.dims,
            "PADDED": v.padded, "SPLITS": splits, "TILE": triton.next_power_of_2(splits),
        },
    )  # fmt: skip
    return out, lse


def log2_scale(tau: float) -> float:
    """What a dot product is multiplied by to be a logit in bits."""
    return tau * math.log2(math.e)


def tokens_per_tile(k_dims: int, v_dims: int) -> int:
    """Tokens that a step of the kernel takes together."""
    return max(4, _ELEMENTS // max(k_dims, v_dims))


def rounding_bound(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], tau: float, splits: int
) -> NDArray[np.float64]:
    """How far one head's output can be off for rounding alone: float64 (head size of V,), as derived above.

    query: (D,), key: (N, D) and value: (N, Dv): the numbers that the kernel reads, as float64. The rounding to the
    query's dtype is not in it.
    """
    tokens, dims = key.shape
    padded = [triton.next_power_of_2(size) for size in (dims, value.shape[1])]
    unit, steps = 2.0**-24, -(-tokens // tokens_per_tile(*padded)) + splits
    logits = log2_scale(tau) * (key @ query)
    sizes = abs(log2_scale(tau)) * (np.abs(key) @ np.abs(query))
    eps = math.log(2) * (_gamma(dims + 3) * sizes + unit * (logits.max() - logits)) + (steps + 2) * (2.0**-21 + unit)
    moved = np.tanh(eps.max() / 2) * (value.max(axis=0) - value.min(axis=0))
    bound: NDArray[np.float64] = moved + 2 * _gamma(tokens + steps + 3) * np.abs(value).max(axis=0)
    return bound


def _gamma(count: int) -> float:
    return count * 2.0**-24 / (1 - count * 2.0**-24)
