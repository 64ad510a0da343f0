"""Right pages of every kind of numbers, every mode and every writer: what `lint` must find nothing in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache as cached

import ml_dtypes
import numpy as np

import kvformat as kvf
from kvformat import cache
from kvformat.data import sample
from kvformat.layouts import LAYOUTS
from kvformat.lint.rules import RULES
from kvformat.lint.traits import traits
from kvformat.recipes import plain
from kvformat.recipes.catalogue import names
from tests.verify.profiles import PROFILES, key_value

BLOCK, HEADS, DIM = 16, 2, 64
DTYPES = (ml_dtypes.bfloat16, np.float16, np.float32)


def _real(rng, tokens, heads, dims):
    layer = sample()[rng.integers(2)]
    rows = (layer.key, layer.value)[rng.integers(2)].astype(np.float32)
    start = rng.integers(len(rows))
    wide = np.tile(rows, (1, 1, -(-dims // rows.shape[2])))[..., :dims]
    return np.take(wide, (start + np.arange(tokens)) % len(rows), axis=0)[:, (rng.integers(3) + np.arange(heads)) % 3]


def _model(rng, tokens, heads, dims):
    profile = PROFILES[rng.integers(len(PROFILES))]
    return key_value(profile, tokens, heads, dims, rng.integers(1 << 30))[rng.integers(2)].astype(np.float32)


def _normal(rng, tokens, heads, dims):
    return rng.standard_normal((tokens, heads, dims)) * 2.0 ** rng.integers(-6, 7)


def _zero_padded(rng, tokens, heads, dims):
    x = _model(rng, tokens, heads, dims)
    x[..., dims // 2 :] = 0
    return x


def _every_second_zero(rng, tokens, heads, dims):
    x = _model(rng, tokens, heads, dims)
    x[..., rng.integers(2) :: 2] = 0
    return x


def _log_uniform(rng, tokens, heads, dims):
    shape = (tokens, heads, dims)
    return rng.choice((-1.0, 1.0), shape) * np.exp2(rng.uniform(-10, 10, shape))


def _constant(rng, tokens, heads, dims):
    shape = [(1, 1, 1), (tokens, 1, 1), (tokens, heads, 1), (1, 1, dims)][rng.integers(4)]
    base = rng.choice((1.0, 3.0, 127.0, 448.0, rng.uniform(0.01, 500)))
    signs = rng.choice((-1.0, 1.0), shape)
    return np.broadcast_to(signs * base * rng.choice((1.0, 2.0, 0.5), shape), (tokens, heads, dims))


def _one_hot(rng, tokens, heads, dims):
    x = np.zeros((tokens, heads, dims))
    np.put_along_axis(x, rng.integers(dims, size=(tokens, heads, 1)), rng.choice((1.0, -1.0, 7.0)), axis=2)
    return x


def _sparse(rng, tokens, heads, dims):
    return _normal(rng, tokens, heads, dims) * (rng.random((tokens, heads, dims)) < 0.1)


def _one_signed(rng, tokens, heads, dims):
    return rng.choice((-1, 1)) * np.abs(_normal(rng, tokens, heads, dims))


KINDS = {
    each.__name__.strip("_"): each
    for each in (_real, _model, _normal, _zero_padded, _every_second_zero, _log_uniform, _constant, _one_hot, _sparse,
                 _one_signed)
}  # fmt: skip


def layout_for(recipe):
    """A small page of the first layout that holds what the recipe stores; None where there is none."""
    if any(level.granularity.name != "per_tensor" for level in recipe.outer):
        return None
    for name, entry in LAYOUTS.items():
        if recipe.mode not in dict(entry.modes) or name.startswith("test/"):
            continue
        form = entry.form(recipe.mode)
        sizes = {"num_kv_heads": form.num_kv_heads or HEADS, "head_size": form.head_size or DIM}
        block = 32 if name == "sglang" else BLOCK
        try:
            made = kvf.layout(name, mode=recipe.mode, block_size=block, **sizes)
            cache.check_fits(made, recipe)
        except kvf.InputError:
            continue
        return made
    return None


def needs_engine(recipe):
    """Whether the NumPy reader leaves the recipe to compiled code."""
    return bool(recipe.prepare) or (recipe.inner is not None and bool(recipe.inner.trials))


@cached
def writers(mode):
    """(recipe, layout) of everything that writes pages of a mode."""
    found = [(kvf.recipe(name), layout_for(kvf.recipe(name))) for name in names() if kvf.recipe(name).mode == mode]
    return [(recipe, made) for recipe, made in found if made is not None]


def written(recipe, made, key, value, slots, blocks):
    """Pages of right bytes, 0 where nothing is written."""
    pages = np.zeros((blocks, made.page_bytes), np.uint8)
    for side, x in (("k", key), ("v", value)):
        for segment in made.segments(side) if side in made.sides else ():
            how, _ = cache.covering(segment, recipe, None)
            dims = np.ascontiguousarray(x[..., segment.dims.start : segment.dims.stop])
            with np.errstate(all="ignore"):
                if how.element is None:
                    quantized = cache.quantize_for(made, dims, how, None, segment)
                else:
                    quantized = plain.quantize(dims, how)
            cache.store(made, pages, slots, side, quantized, segment)
    return pages


def caches(mode, pages, seed=0, *, engine=False) -> Iterator[tuple[str, dict, np.ndarray]]:
    """Right caches of a mode, so many pages in all: what they are, what `lint` is told, and the pages."""
    rng = np.random.default_rng(seed)
    able = [pair for pair in writers(mode) if engine or not needs_engine(pair[0])] or writers(mode)
    count = 0
    while count < pages:
        recipe, made = able[rng.integers(len(able))]
        blocks = min(int(rng.choice((1, 1, 2, 4, 8, 16, 64, 80))), pages - count)
        full = rng.random() < 0.8
        tokens = blocks * made.block_size - (0 if full else int(rng.integers(made.block_size)))
        dtype = DTYPES[rng.integers(3)]
        if made.dtype and recipe.element is not None:  # parameters of the model's dtype
            dtype = next(each for each in DTYPES if np.dtype(each).name == made.dtype)
        kinds = [list(KINDS)[i] for i in rng.integers(len(KINDS), size=2)]
        with np.errstate(over="ignore"):
            sides = [
                np.asarray(KINDS[kind](rng, tokens, made.num_kv_heads, made.head_size)).astype(dtype) for kind in kinds
            ]
        slots = np.arange(tokens)
        told = {"layout": made, "recipe": recipe.name}
        if rng.random() < 0.5:
            told["slot_mapping"] = slots
        yield f"{recipe.name} {made.name} {kinds} {np.dtype(dtype).name} {blocks} blocks", told, written(
            recipe, made, *sides, slots, blocks
        )  # fmt: skip
        count += blocks


class Rates:
    """What `lint` says of right caches: by rule, how many it looks at and in how many of them it finds something."""

    def __init__(self) -> None:
        self.pages = self.caches = self.blank = 0
        self.judged: Counter[str] = Counter()
        self.alarms: Counter[str] = Counter()
        self.found: list[str] = []

    def add(self, what, told, right):
        """Lint one right cache."""
        self.pages += len(right)
        self.caches += 1
        try:
            report = kvf.lint(right, **told)
        except kvf.InputError as error:  # a page of one byte alone looks like one that was never written
            if "nothing to judge" not in str(error):
                self.found.append(f"{what}: {error}")
            self.blank += 1
            return
        how = traits(kvf.recipe(told["recipe"]))
        self.judged.update(rule.id for rule in RULES.values() if rule.applies(how))
        self.alarms.update(report.counts.keys())
        if not report.ok:
            self.found.append(f"{what}: {report.findings[0]}")


def rates(mode, pages, **options) -> Rates:
    """The rates of a mode on so many right pages."""
    made = Rates()
    for each in caches(mode, pages, **options):
        made.add(*each)
    return made
