"""Find each recipe's nearest neighbour and an input that tells them apart: spec/recipes/neighbours.json.

    python tools/make_neighbours.py                 of all recipes
    python tools/make_neighbours.py --only PREFIX   those whose name begins so, and new ones; others are kept

The nearest neighbour of a recipe is the one of its mode, storing the same kinds of codes and scales, whose normal form
differs in the fewest operations. The search takes some minutes; tests/recipes/test_neighbours.py runs what it found
through the exact twin.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.difference import comparable, difference
from kvformat.recipes.normal import normal
from kvformat.recipes.program import Recipe

TARGET = Path(__file__).resolve().parents[1] / "spec" / "recipes" / "neighbours.json"


def distance(left: Recipe, right: Recipe) -> int:
    """In how many lines the normal forms differ."""
    forms = [{(part, line) for part, lines in normal(each).items() for line in lines} for each in (left, right)]
    return len(forms[0] ^ forms[1])


def neighbours(of: Recipe) -> list[Recipe]:
    """The comparable recipes with another normal form, nearest first."""
    others = [recipe(name) for name in names() if name != of.name]
    fitting = [other for other in others if comparable(of, other) and normal(other) != normal(of)]
    return sorted(fitting, key=lambda other: (distance(of, other), other.name))


def entry(of: Recipe) -> dict[str, Any]:
    """The nearest neighbour and the input, as plain data; `same` lists recipes with the same operations."""
    same = [n for n in names() if n != of.name and comparable(of, recipe(n)) and normal(recipe(n)) == normal(of)]
    found: dict[str, Any] = {"recipe": of.name, "same": same, "neighbour": None, "tried": 0, "x": None}
    for other in neighbours(of):
        result = difference(of, other)
        found |= {"neighbour": other.name, "tried": result.tried}
        witness = result.witness
        if witness is not None:
            bits = witness.x.view(f"u{witness.x.dtype.itemsize}").reshape(-1)
            found["scale"] = None if witness.scale is None else float(witness.scale).hex()
            found["dtype"] = witness.x.dtype.name
            found["head_dim"] = int(witness.x.shape[2])
            found["x"] = {str(place): f"0x{int(pattern):X}" for place, pattern in enumerate(bits) if pattern}
            return found
        # nothing tells these two apart in the domain that was searched: say so, and try the next one
        found.setdefault("inseparable", []).append({"recipe": other.name, "tried": result.tried})
    return found


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Find each recipe's nearest neighbour.")
    parser.add_argument("--only", metavar="PREFIX", default="", help="only recipes whose name begins so")
    only = parser.parse_args().only
    kept = {each["recipe"]: each for each in json.loads(TARGET.read_text(encoding="utf-8"))} if only else {}
    coded = [name for name in names() if recipe(name).element is not None]
    made = [name for name in coded if name.startswith(only) or name not in kept]
    entries = [entry(recipe(name)) if name in made else kept[name] for name in coded]
    TARGET.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    print(f"{len(entries)} recipes, {sum(each['x'] is not None for each in entries)} told from their neighbour")


if __name__ == "__main__":
    main()
