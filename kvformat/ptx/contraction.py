"""Which additions ptxas may join with the multiplication before them into one fused multiply-add."""

from __future__ import annotations

from typing import NamedTuple

from kvformat.ptx.syntax import Body

_ROUNDINGS = {"rn", "rz", "rm", "rp"}
#: types whose products and sums without a rounding may be contracted
_TYPES = {"f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2"}


class Contraction(NamedTuple):
    """A sum or difference that becomes a fused multiply-add: +-(a * b) +- c."""

    a: str
    b: str
    c: str
    minus_product: bool
    minus_addend: bool


def contractible(body: Body) -> dict[int, Contraction]:
    """Statement of the addition -> what it becomes.

    The product and the sum have no rounding modifier, the same type and words, no guard, and stand in one piece of
    straight-line code in which neither the product nor its factors are written again. Of two products the first
    operand's is joined, as ptxas does.
    """
    found: dict[int, Contraction] = {}
    starts = set(body.labels.values())
    products: dict[str, tuple[str, str, str]] = {}
    for index, statement in enumerate(body.statements):
        if index in starts or statement.opcode.startswith(("bra", "bar", "call", "ret")):
            products.clear()
        words = statement.opcode.split(".")
        plain = words[-1] in _TYPES and not _ROUNDINGS & set(words)
        key = ".".join(words[1:])
        if plain and words[0] in ("add", "sub") and not statement.guard and len(statement.operands) == 3:
            _, a, b = statement.operands
            subtract = words[0] == "sub"
            if a in products and products[a][2] == key:
                found[index] = Contraction(*products[a][:2], b, minus_product=False, minus_addend=subtract)
            elif b in products and products[b][2] == key:
                found[index] = Contraction(*products[b][:2], a, minus_product=subtract, minus_addend=False)
        written = _written(statement.operands[0]) if statement.operands else set()
        for name in [n for n, (a, b, _) in products.items() if n in written or a in written or b in written]:
            del products[name]
        if plain and words[0] == "mul" and not statement.guard and len(statement.operands) == 3:
            dest, a, b = statement.operands
            if dest not in (a, b):
                products[dest] = (a, b, key)
    return found


def _written(text: str) -> set[str]:
    return {each.strip() for each in text.strip("{}[] ").replace("|", ",").split(",")}
