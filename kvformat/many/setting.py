"""What a worker has to know beside its tasks: formats, recipes and layouts of the user's own, from their files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from kvformat.definitions import register, registered
from kvformat.layouts import load_layout
from kvformat.recipes.program import Recipe


@dataclass(frozen=True)
class Setting:
    """Files that are read once in each process. definitions: of `kvformat.register`; layouts: of `load_layout`."""

    definitions: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()

    @classmethod
    def here(cls, layouts: tuple[str, ...] = ()) -> Setting:
        """What this process was told by --define, and files of layouts."""
        return cls(registered(), tuple(str(Path(path).resolve()) for path in layouts))

    def apply(self) -> None:
        """Make known what the files define."""
        _apply(self)

    @property
    def digest(self) -> str:
        """Of their contents: results depend on it."""
        digest = sha256(b"".join(Path(path).read_bytes() for path in (*self.definitions, *self.layouts)))
        return f", definitions {digest.hexdigest()[:16]}" if self != Setting() else ""


def named(recipe: Recipe) -> str:
    """A recipe by its name and a digest of what it is: a file of the user's may change."""
    return f"{recipe.name} {sha256(repr(recipe).encode()).hexdigest()[:12]}"


@cache
def _apply(setting: Setting) -> None:
    for path in setting.definitions:
        register(path)
    for path in setting.layouts:
        load_layout(path)
