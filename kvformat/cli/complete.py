"""What the Tab key completes: the names of element formats, recipes, layouts, modes and models."""

from __future__ import annotations

from collections.abc import Iterable


def elements(incomplete: str) -> list[str]:
    """Element formats."""
    from kvformat.elements.formats import ELEMENTS

    return _beginning(incomplete, ELEMENTS)


def recipes(incomplete: str) -> list[str]:
    """Recipes, and modes, which stand for their golden ones."""
    from kvformat.recipes.catalogue import names

    golden = [name.removeprefix("golden/") for name in names() if name.startswith("golden/")]
    return _beginning(incomplete, (*names(), *golden))


def layouts(incomplete: str) -> list[str]:
    """Layouts."""
    from kvformat.layouts.catalogue import LAYOUTS

    return _beginning(incomplete, LAYOUTS)


def modes(incomplete: str) -> list[str]:
    """Modes that a layout stores."""
    from kvformat.layouts.catalogue import LAYOUTS

    return _beginning(incomplete, {mode for entry in LAYOUTS.values() for mode, _ in entry.modes})


def models(incomplete: str) -> list[str]:
    """Models whose layers are known; a path is completed by the shell."""
    from kvformat.sizing import MODELS

    return _beginning(incomplete, MODELS)


def _beginning(incomplete: str, known: Iterable[str]) -> list[str]:
    return sorted(name for name in known if name.startswith(incomplete))
