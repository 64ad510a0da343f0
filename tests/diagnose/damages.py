"""Random damage to right pages of any mode, layout and size, and what a diagnosis of it must say.

What must be wrong is counted here: from the bytes before and after, the slots that tokens have, and `Layout.explain`,
of which a diagnosis asks nothing but the place of a single byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from kvformat import Dump, InputError, PagedCache, diagnose, layout
from kvformat.diagnose.diagnosis import Diagnosis
from kvformat.diagnose.length import MARGIN
from kvformat.layouts import LAYOUTS
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find_recipe

#: kv heads and head size; None: as the layout has them
SIZES = ((1, 64), (2, 64), (3, 32), (1, 128), (2, 32), (None, None))
KINDS = ("a bit", "a byte", "a run", "a run of one value", "bytes here and there", "a run moved")
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Damage:
    """A dump whose pages were right before some bytes of them were changed."""

    dump: Dump
    kind: str
    #: places in all pages of the bytes that changed, and of those among them that tokens have
    changed: np.ndarray
    judged: np.ndarray

    def __str__(self) -> str:
        spec = self.dump.layout.spec
        sizes = f"{spec['num_kv_heads']}x{spec['head_size']}, {self.dump.tokens} tokens, blocks of {spec['block_size']}"
        what = f"{self.kind}, {len(self.changed)} bytes from {self.changed[0]}"
        return f"{spec['name']} {spec['mode']} {spec['order']} {self.dump.recipe} {sizes}: {what}"


@cache
def places() -> tuple[tuple[str, str], ...]:
    """Every mode of every layout that comes with the package, where a group has one scale: others are refused."""
    found = [(name, mode, form.recipe) for name, entry in LAYOUTS.items() for mode, form in entry.modes]
    return tuple((name, mode) for name, mode, recipe in found if find_recipe(recipe).one_scale_a_group)


def right_dump(rng: np.random.Generator) -> Dump:
    """Right pages of random K and V: any mode and layout, 2 to 40 tokens in slots of any order."""
    while True:
        name, mode = places()[rng.integers(len(places()))]
        heads, size = SIZES[rng.integers(len(SIZES))]
        sizes = {} if heads is None else {"num_kv_heads": heads, "head_size": size}
        orders = {"order": ("NHD", "HND")[rng.integers(2)]} if rng.integers(2) else {}
        try:
            made = layout(name, mode=mode, block_size=int(rng.choice([8, 16, 64])), **sizes, **orders)
            return written(rng, made)
        except InputError:
            continue


def written(rng, made):
    dtype = DTYPES[rng.integers(len(DTYPES))]
    tokens = int(rng.integers(2, 10 if made.head_size > 200 else 41))
    key, value = (
        (rng.normal(size=(tokens, made.num_kv_heads, size)) * 2.0 ** rng.integers(-3, 4)).astype(dtype)
        for size in (made.head_size, made.head_size_v)
    )
    blocks = -(-tokens // made.block_size) + int(rng.integers(0, 2))
    slots = np.arange(tokens) if rng.integers(2) else rng.permutation(blocks * made.block_size)[:tokens]
    how = made.recipe if rng.integers(2) or f"golden/{made.mode}" not in names() else f"golden/{made.mode}"
    cache = PagedCache(made, blocks)
    if rng.integers(2):
        cache.pages[:] = rng.integers(0, 256, cache.pages.shape)
    cache.write(key, value if "v" in made.sides else None, slots, recipe=how)
    return Dump.from_arrays(
        key, value, cache.pages, slots.astype(np.int64), layout=made, recipe=how, k_scale=cache.k_scale,
        v_scale=cache.v_scale,
    )  # fmt: skip


def damaged(seed: int) -> Damage:
    """The damage of a seed: at least one byte that a token has is another one."""
    rng = np.random.default_rng((2024, seed))
    while True:
        dump = right_dump(rng)
        kind = KINDS[rng.integers(len(KINDS))]
        flat, before = dump.pages.reshape(-1), dump.pages.reshape(-1).copy()
        hit(rng, kind, flat)
        changed = np.flatnonzero(flat != before)
        judged = np.array([at for at in changed if has_a_token(dump, int(at))], np.int64)
        if len(judged):
            return Damage(dump, kind, changed, judged)


def hit(rng, kind, flat):
    count = 1 if kind in ("a bit", "a byte") else int(rng.integers(2, min(64, len(flat) // 2) + 1))
    start = int(rng.integers(0, len(flat) - count + 1))
    run = slice(start, start + count)
    if kind == "a bit":
        flat[start] ^= 1 << rng.integers(8)
    elif kind == "a run of one value":
        flat[run] = rng.choice([0, 0xFF, 0x7F, int(rng.integers(256))])
    elif kind == "a run moved":
        other = int(rng.integers(0, len(flat) - count + 1))
        flat[run] = flat[other : other + count].copy()
    elif kind == "bytes here and there":
        flat[rng.permutation(len(flat))[:count]] ^= rng.integers(1, 256, count).astype(np.uint8)
    else:
        flat[run] ^= rng.integers(1, 256, count).astype(np.uint8)


def has_a_token(dump: Dump, at: int) -> bool:
    block, byte = divmod(at, dump.layout.page_bytes)
    found = dump.layout.explain(byte=byte)
    return found.side is not None and block * dump.layout.block_size + found.slot in dump.slot_mapping


def faults(damage: Damage, found: Diagnosis) -> list[str]:
    """What is wrong with a diagnosis of it; nothing where it says what is known and no more."""
    wrong = []
    best, own = found.explanations[0], found.own
    loose = is_approximate(find_recipe(found.declared.recipe))
    if own not in found.explanations:
        wrong.append("the declared recipe is not listed")
    if own.wrong > len(damage.judged) or (own.wrong < len(damage.judged) and not loose):
        wrong.append(f"{own.wrong} bytes are said to be wrong, {len(damage.judged)} are")
    if own.wrong == 0:
        return wrong
    if best is not own:
        spare = 0 if "never-written" in best.faults else MARGIN
        if best.bits + spare > own.bits:
            wrong.append(f"{best.first} is named and takes {best.bits} bits, the declared one {own.bits}")
        if best.wrong > own.wrong or best.open > own.open:
            wrong.append(f"{best.first} is named and explains less than the declared one")
    if own.wrong == 1 and len(damage.judged) == 1:
        block, byte = divmod(int(damage.judged[0]), damage.dump.layout.page_bytes)
        line = f"as declared, except byte {byte} of block {block} ("
        if best is not own or not str(found).startswith(line):
            wrong.append(f"one byte is wrong and it says: {str(found).splitlines()[0]}")
    return wrong


def judged(seed: int) -> tuple[Damage, Diagnosis, list[str]]:
    """One damage, its diagnosis and what is wrong with that."""
    damage = damaged(seed)
    found = diagnose(damage.dump)
    return damage, found, faults(damage, found)
