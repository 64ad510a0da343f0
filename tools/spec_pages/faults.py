"""The pages of faults that `kvformat diagnose` knows and of rules that `kvformat lint` has."""

from __future__ import annotations

from itertools import groupby

from kvformat.diagnose.catalogue import FAULTS
from kvformat.diagnose.fault import Fault, Variant
from kvformat.lint.rules import RULES, Rule
from kvformat.lint.traits import traits
from kvformat.modes import MODES, RECORDS
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find_recipe
from spec_pages.text import page, table, wrap


def files() -> dict[str, str]:
    """Path under spec/ and text of the pages."""
    return {
        "faults.md": page("faults.md", {"summary": _summary(), "faults": "\n\n".join(map(_fault, FAULTS.values()))}),
        "lint.md": page("lint.md", {"rules": _rules()}),
    }


def _summary() -> str:
    rows = [(f"[`{each.id}`](#{each.id})", each.kind, each.meaning, _modes(each.modes)) for each in FAULTS.values()]
    return table(("id", "kind", "what it is", "modes"), rows)


def _fault(fault: Fault) -> str:
    lines = [
        f"## {fault.id}",
        wrap(f"What it is: {fault.meaning}. Why: {fault.reason}.".replace(" * ", " \\* ")),
        wrap(f"Seen in {fault.source}."),
    ]
    variants = []
    for modes, group in groupby(fault.variants, key=lambda each: each.modes or fault.modes):
        listed = list(group)
        names = [_variant(each) for each in listed if "; " not in each.label]
        if len(names) < len(listed):
            names.append("any of these block scales with any of these quotients")
        variants.append(wrap(f"- {_modes(modes)}: {', '.join(names)}", indent="  "))
    return "\n\n".join([*lines, "\n".join(variants)])


def _variant(each: Variant) -> str:
    return f"`{each.label}`{f' (on no input seen: {each.never})' if each.never else ''}"


def _rules() -> str:
    rows = [(f"`{each.id}`", each.meaning, each.reason, each.source, _held_by(each)) for each in RULES.values()]
    return table(("rule", "found", "why that is no right page", "a public case", "modes"), rows)


def _held_by(rule: Rule) -> str:
    """The modes whose codes, or those of some of whose recipes, the rule looks at."""
    judged = [recipe for recipe in map(find_recipe, names()) if recipe.one_scale_a_group]  # others are refused
    modes = {recipe.mode for recipe in judged if rule.applies(traits(recipe))}
    every = {recipe.mode for recipe in judged}
    return "all modes" if modes == every else ", ".join(f"`{mode}`" for mode in (*MODES, *RECORDS) if mode in modes)


def _modes(modes: tuple[str, ...]) -> str:
    every = (*MODES, *RECORDS)
    return "all modes" if set(modes) == set(MODES) else ", ".join(f"`{mode}`" for mode in every if mode in modes)
