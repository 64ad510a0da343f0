"""The instructions: opcode, types, the words it may carry, the steps it is made of, and where the ISA defines it.

An instruction that is not here is refused, and so is one with a word that its entry does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvformat.ptx.emit import Emitter, NotModelled
from kvformat.ptx.steps import CODES
from kvformat.ptx.syntax import SIZES

#: types that only conversions know
NARROW = tuple(CODES)
TYPES = frozenset((*SIZES, *NARROW))

U_TYPES, S_TYPES, B_TYPES = "u16 u32 u64", "s16 s32 s64", "b16 b32 b64"
HALVES = "f16 f16x2 bf16 bf16x2"


@dataclass(frozen=True)
class Call:
    """One instruction as it stands: its words, its types and its operands."""

    root: str
    words: frozenset[str]
    types: tuple[str, ...]
    operands: tuple[str, ...]

    def has(self, word: str) -> bool:
        """Whether the instruction carries the word."""
        return word in self.words

    def take(self, count: int) -> tuple[str, ...]:
        """The operands, if there are so many."""
        if len(self.operands) != count:
            raise NotModelled(f"takes {count} operands, has {len(self.operands)}")
        return self.operands


Build = Callable[[Emitter, Call], None]


@dataclass(frozen=True)
class Instruction:
    """One entry of the table.

    types: what may stand at the end; words: what may stand between; build: the steps, from an instruction as it stands;
    section: of the PTX ISA; approximate: results are known up to a documented bound.
    """

    root: str
    types: frozenset[tuple[str, ...]]
    words: frozenset[str]
    build: Build
    section: str
    needs: tuple[frozenset[str], ...] = ()
    approximate: bool = False


@dataclass
class Table:
    """Instructions by their first word."""

    entries: dict[str, list[Instruction]] = field(default_factory=dict)

    def add(
        self, roots: str, types: str, words: str, build: Build, section: str, needs: str = "", *, approximate: bool =
        False
    ) -> None:  # fmt: skip
        """Add an entry for each root. types: one alternative a word, `s32.f32` for a pair; needs: `lo|hi|wide`."""
        kinds = frozenset(tuple(each.split(".")) if each != "-" else () for each in types.split())
        wanted = tuple(frozenset(each.split("|")) for each in needs.split())
        allowed = frozenset(words.split()).union(*wanted)
        for root in roots.split():
            entry = Instruction(root, kinds, allowed, build, section, wanted, approximate)
            self.entries.setdefault(root, []).append(entry)

    def find(self, opcode: str) -> tuple[Instruction, frozenset[str], tuple[str, ...]]:
        """The entry of an opcode, its words and its types. Raises NotModelled with the word that no entry allows."""
        root, *rest = opcode.split(".")
        if root not in self.entries:
            raise NotModelled(f"the instruction {root} is not modelled")
        cut = len(rest)
        while cut and rest[cut - 1] in TYPES:
            cut -= 1
        types, words = tuple(rest[cut:]), frozenset(rest[:cut])
        problem = ""
        for entry in self.entries[root]:
            if types not in entry.types:
                problem = problem or f"{root} of .{'.'.join(types) or 'no type'} is not modelled"
                continue
            unknown = sorted(words - entry.words)
            missing = [need for need in entry.needs if not need & words]
            if not unknown and not missing:
                return entry, words, types
            problem = (
                f"the word .{unknown[0]} is not modelled here"
                if unknown
                else (f"needs one of .{', .'.join(sorted(missing[0]))}")
            )
        raise NotModelled(problem)


TABLE = Table()


def table() -> Table:
    """The table, filled."""
    if not TABLE.entries:
        from kvformat.ptx import arithmetic, convert, logic, movement

        for part in (arithmetic, convert, logic, movement):
            part.fill(TABLE)
    return TABLE


def is_approximate(opcode: str) -> bool:
    """Whether the instruction is known up to a bound only."""
    try:
        return table().find(opcode)[0].approximate
    except NotModelled:
        return False
