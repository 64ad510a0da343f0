"""Recipes by what they store: "int8 group 32 scale fp16" -> those that store most of that."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.program import Level, Recipe

#: what people write, and what is meant
_MEANT = {
    "fp8": "e4m3fn", "e4m3": "e4m3fn", "fp4": "e2m1fn", "e2m1": "e2m1fn", "e8m0": "e8m0fnu", "i8": "int8", "i4": "int4",
    "u8": "uint8", "u4": "uint4", "fp16": "float16", "half": "float16", "f16": "float16", "fp32": "float32",
    "f32": "float32", "bf16": "bfloat16", "groups": "group", "block": "group", "blocks": "group", "scales": "scale",
    "zero-point": "zero", "zeropoint": "zero", "bias": "zero", "truncate": "truncates", "truncated": "truncates",
    "away": "ties-away", "even": "ties-even", "rotation": "hadamard", "tensor": "per-tensor", "token": "per-token",
    "head": "per-head", "channel": "per-channel",
    "llama.cpp": "ggml", "llama-cpp": "ggml", "llamacpp": "ggml",
}  # fmt: skip
#: words that say nothing
_EMPTY = frozenset(
    ("with", "and", "of", "the", "a", "per", "one", "point", "bit", "bits", "by", "in", "to", "from", "for")
)
#: words that speak of the next one
_PAIRS = frozenset(("group", "scale"))
_ROUNDS = {"toward_zero": "truncates", "half_even": "ties-even", "half_away": "ties-away", "up": "up", "down": "down"}


@dataclass(frozen=True)
class Match:
    """A recipe, and which of the wanted facts it has."""

    recipe: Recipe
    has: tuple[str, ...]
    lacks: tuple[str, ...]


def like(text: str, most: int = 10) -> list[Match]:
    """The recipes that have most of what a text speaks of, best first.

    Parameters
    ----------
    text: words such as `int8`, `group 32`, `scale fp16`, `zero point`, `per token head`, `truncate`, `hadamard`, the
        name of an engine or a mode; in any order.
    most: how many are wanted.

    Raises
    ------
    InputError: for a text without such a word, or one that no recipe has anything of.
    """
    asked = wanted(text)
    if not asked:
        raise InputError(f"say what to look for, as in 'int8 group 32 scale fp16'; got {text!r:.80}")
    found = []
    for name in names():
        known = facts(recipe(name))
        has = tuple(each for each in asked if each in known)
        if has:
            found.append(Match(recipe(name), has, tuple(each for each in asked if each not in known)))
    if not found:
        raise InputError(f"no recipe has anything of {', '.join(asked)}; facts are formats, 'group 32', engines, modes")
    return sorted(found, key=lambda match: (len(match.lacks), match.recipe.name))[:most]


def wanted(text: str) -> list[str]:
    """The facts that a text speaks of, each once, in order."""
    words = [_MEANT.get(word, word) for word in re.findall(r"[a-z0-9_.-]+", text.lower())]
    asked: list[str] = []
    waiting = ""
    for word in words:
        grouped = re.fullmatch(r"g(?:roup)?-?(\d+)", word)
        if grouped:
            asked.append(f"group {grouped[1]}")
        elif waiting == "group" and word.isdigit():
            asked.append(f"group {word}")
        elif waiting == "scale" and word in _STORES:
            asked.append(f"scale {word}")
        elif word not in _EMPTY and word not in _PAIRS:
            asked.append(word)
        waiting = word if word in _PAIRS else ""
    return list(dict.fromkeys(asked))


_STORES = frozenset(("float16", "float32", "bfloat16", "input", "e4m3fn", "e5m2", "e8m0fnu", "int8", "uint8"))


def facts(how: Recipe) -> frozenset[str]:
    """What can be asked of a recipe, in words: its format, groups, scales, rounding, engine and mode."""
    known = {how.mode, *re.split(r"[/_]", how.name), *re.split(r"[/_-]", how.name), *how.mode.split("_")}
    known |= {step.word for step in how.prepare}
    if how.element is not None:
        known |= {how.element, element(how.element).kind}
    for level in how.levels:
        known |= _of_level(level)
    if len(how.group) > 1:
        known.add("zero")
    rounds = {_ROUNDS[each] for step in how.code.steps for each in step.attributes if each in _ROUNDS}
    known |= rounds or {"ties-even"}  # as `encode` rounds
    return frozenset(known)


def _of_level(level: Level) -> set[str]:
    shared = level.granularity
    stored = level.store.split()[0]
    known = {stored, f"scale {stored}"}
    if shared.dims:
        known.add(f"group {shared.dims}")
    known |= {f"per-{word}" for word in shared.name.removeprefix("per_").split("_")}
    return known
