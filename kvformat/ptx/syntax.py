"""The text of a PTX module: its entries and variables indexed, one entry at a time taken apart into statements."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvformat.errors import InputError

#: bytes of the types that a register, a parameter or a variable can have
SIZES = {
    "pred": 1,
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "u16x2": 4,
    "s16x2": 4,
    "f16": 2,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "f32": 4,
    "f64": 8,
    "f32x2": 8,
    "b128": 16,
}

_NOISE = re.compile(r'"[^"\n]*"|//[^\n]*|/\*[\s\S]*?\*/')
_END = re.compile(r"[{};]")
_BRACE = re.compile(r"[{}]")
_LINE_DIRECTIVE = re.compile(r"\s*(\.version|\.target|\.address_size|\.file|\.loc)([^\n]*)")
_SECTION = re.compile(r"\s*\.section\s+\S+\s*")
_FUNCTION = re.compile(r"\.(entry|func)\s*(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)$")
_VARIABLE = re.compile(r"\.(global|const|shared|local)\b")
_DECLARED = re.compile(r"\.([a-z]+\d*(?:x2)?)\s+([\w$%]+)\s*((?:\[[^\]]*\])*)\s*(?:=\s*([\s\S]*))?$")
_WORD = re.compile(r"\.align\s+(\d+)")
_PARAMETER = re.compile(r"\.param\b([^,]*?)\.([a-z]+\d+(?:x2)?)\s*([^,]*?)([\w$]+)\s*(?:\[(\d+)\])?\s*$")


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry. type: `u64`, `f32`, ..., `b8` of `size` bytes for a struct passed by value."""

    name: str
    type: str
    size: int
    align: int
    offset: int


@dataclass(frozen=True)
class Variable:
    """A named place in `global`, `const`, `shared` or `local` memory. size: bytes, 0 for an extern array."""

    name: str
    space: str
    size: int
    align: int
    initial: bytes
    extern: bool = False


@dataclass(frozen=True)
class Place:
    """Where an instruction stands: its line in the PTX, and file and line of the source where `.loc` gives them."""

    line: int
    source: str = ""

    def __str__(self) -> str:
        return f"line {self.line}" + (f" ({self.source})" if self.source else "")


@dataclass(frozen=True)
class Statement:
    """One instruction: `@!%p1 ld.global.b32 %r1, [%rd1+4];` as its parts; registers renamed per scope."""

    guard: str
    opcode: str
    operands: tuple[str, ...]
    place: Place

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclass
class Body:
    """An entry taken apart."""

    statements: list[Statement] = field(default_factory=list)
    #: label -> the index of the statement it stands before
    labels: dict[str, int] = field(default_factory=dict)
    #: register -> its type
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)


@dataclass(frozen=True)
class Header:
    """An entry by its declaration; its body is a piece of the text that has not been looked at."""

    name: str
    parameters: tuple[Parameter, ...]
    directives: str
    start: int
    end: int


class Source:
    """An indexed module. Raises InputError for text that is no PTX or ends in the middle of a function."""

    def __init__(self, text: str, name: str = "PTX") -> None:
        self.name = name
        self.text = _NOISE.sub(_blank, text)
        self._lines = [match.start() for match in re.finditer("\n", self.text)]
        self.version = self.target = ""
        self.files: dict[str, str] = {}
        self.entries: dict[str, Header] = {}
        self.functions: dict[str, bool] = {}  # .func -> whether it has a body
        self.variables: dict[str, Variable] = {}
        self._index()
        if not self.version or not self.target:
            raise InputError(f"{name} is no PTX: it has no .version and .target")

    def line(self, position: int) -> int:
        """The line, from 1, of a position in the text."""
        return bisect_right(self._lines, position - 1) + 1

    def _index(self) -> None:
        text, position = self.text, 0
        while True:
            directive = _LINE_DIRECTIVE.match(text, position)
            if directive:
                self._directive(directive[1], directive[2])
                position = directive.end()
                continue
            section = _SECTION.match(text, position)
            if section and text[section.end() : section.end() + 1] == "{":
                position = self.closing(section.end())
                continue
            end = _END.search(text, position)
            if end is None:
                if text[position:].strip():
                    raise InputError(f"{self.name} is cut off at line {self.line(position)}")
                return
            head = text[position : end.start()]
            function = _FUNCTION.search(head)
            if end[0] == "}":
                raise InputError(f"{self.name} line {self.line(end.start())}: '}}' without a '{{'")
            if function:
                stop = end.end() if end[0] == ";" else self.closing(end.start())
                self._function(function, end.start(), stop, defined=end[0] == "{")
                position = stop
                continue
            while end[0] == "{":  # the values of a variable
                end = _END.search(text, self.closing(end.start()))
                if end is None:
                    raise InputError(f"{self.name} is cut off at line {self.line(position)}")
            self._declaration(text[position : end.start()], position)
            position = end.end()

    def _directive(self, name: str, rest: str) -> None:
        if name == ".version":
            self.version = rest.strip()
        elif name == ".target":
            self.target = rest.split(",", maxsplit=1)[0].strip()
        elif name == ".file":
            number, _, path = rest.strip().partition(" ")
            self.files[number] = path.strip().strip('"')

    def closing(self, opening: int) -> int:
        """Where the braces that open there are closed again."""
        depth = 0
        for brace in _BRACE.finditer(self.text, opening):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return brace.end()
        raise InputError(f"{self.name} is cut off: the '{{' of line {self.line(opening)} is never closed")

    def _function(self, match: re.Match[str], opening: int, stop: int, *, defined: bool) -> None:
        kind, name, parameters, directives = match.groups()
        if kind == "func":
            self.functions[name] = self.functions.get(name, False) or defined
        elif defined:
            self.entries[name] = Header(name, _parameters(parameters or ""), directives, opening + 1, stop - 1)

    def _declaration(self, text: str, position: int) -> None:
        if not _VARIABLE.search(text):
            return  # .pragma, .alias and the like: nothing that an entry executes
        for variable in _variables(text, f"{self.name} line {self.line(position)}"):
            self.variables[variable.name] = variable

    def body(self, header: Header) -> Body:
        """An entry's statements, labels, registers and variables."""
        return _Reader(self, header).body


def _blank(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.startswith('"') else "\n" * found.count("\n") or " "


def _parameters(text: str) -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    offset = 0
    for piece in filter(str.strip, text.split(",")):
        match = _PARAMETER.search(piece.strip())
        if match is None:
            raise InputError(f"cannot read the parameter {piece.strip()!r}")
        before, kind, _, name, count = match.groups()
        align = _WORD.search(before)
        size = SIZES[kind] * int(count or 1)
        step = int(align[1]) if align else SIZES[kind]
        offset = -(-offset // step) * step
        found.append(Parameter(name, kind, size, step, offset))
        offset += size
    return tuple(found)


def _variables(text: str, where: str) -> Iterator[Variable]:
    space = _VARIABLE.search(text)
    declared = _DECLARED.search(text.strip())
    if space is None or declared is None or declared[1] not in SIZES:
        raise InputError(f"{where}: cannot read the declaration {' '.join(text.split())[:80]!r}")
    kind, name, extents, values = declared.groups()
    align = _WORD.search(text)
    count, open_ended = 1, False
    for extent in re.findall(r"\[([^\]]*)\]", extents):
        open_ended |= not extent.strip()
        count *= int(extent.strip() or "0", 0)
    initial = _initial(values, kind, where) if values else b""
    size = max(count * SIZES[kind], len(initial))
    extern = ".extern" in text or (open_ended and not initial)
    yield Variable(name, space[1], size, int(align[1]) if align else SIZES[kind], initial.ljust(size, b"\0"), extern)


def _initial(values: str, kind: str, where: str) -> bytes:
    size, out = SIZES[kind], bytearray()
    for value in filter(None, (each.strip(" {}\n\t\r") for each in values.split(","))):
        try:
            out += (immediate(value, kind) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        except ValueError:
            raise InputError(f"{where}: an initial value that is no number: {value[:40]!r}") from None
    return bytes(out)


def immediate(text: str, kind: str) -> int:
    """The bits of a constant as an operand of that type has them. Raises ValueError for what is none."""
    import numpy as np

    sign, digits = (-1, text[1:].strip()) if text.startswith("-") else (1, text.lstrip("+"))
    if digits[:2] in ("0f", "0F") and len(digits) == 10:
        bits = int(f"0x{digits[2:]}", 0) ^ (0x8000_0000 if sign < 0 else 0)
        return int(np.uint32(bits).view(np.float32).astype(np.float64).view(np.uint64)) if kind == "f64" else bits
    if digits[:2] in ("0d", "0D") and len(digits) == 18:
        bits = int(f"0x{digits[2:]}", 0) ^ (1 << 63 if sign < 0 else 0)
        return int(np.uint64(bits).view(np.float64).astype(np.float32).view(np.uint32)) if kind == "f32" else bits
    if re.fullmatch(r"\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+", digits):
        number = np.float64(sign * float(digits))
        return int(number.astype(np.float32).view(np.uint32)) if kind == "f32" else int(number.view(np.uint64))
    digits = digits.rstrip("uU")
    octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
    return sign * (int(digits, 8) if octal else int(digits, 0))


_SPACE = re.compile(r"\s+")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*")
_SKIPPED = re.compile(r"\.(?:section|file)[^\n]*")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_LABELS = re.compile(r"(?:^|[;{}\s])([A-Za-z_$][\w$]*)\s*:(?!:)")
_STATEMENT = re.compile(r"[^;]*;")
_PARTS = re.compile(r"(?:@(!?\s*[\w$%]+)\s+)?([a-zA-Z][\w.:]*)\s*([\s\S]*)$")
_REGISTER = re.compile(r"(?<![\w$%.])([%A-Za-z_$][\w$]*)")


class _Reader:
    """Reads one body, statement by statement; names that inline assembly repeats get the number of their scope."""

    def __init__(self, source: Source, header: Header) -> None:
        self.source, self.header = source, header
        self.body = Body()
        self.scopes: list[dict[str, str]] = [{}]
        self.families: dict[str, str] = {}  # "%r" -> b32, of ".reg .b32 %r<9>"
        self.renamed = False
        self.count = 0
        self.place = ""
        self._read()

    def _read(self) -> None:
        text, position, end = self.source.text, self.header.start, self.header.end
        while True:
            position = self._after(_SPACE, position, end)
            if position >= end:
                break
            loc = _LOC.match(text, position, end)
            skipped = loc or _SKIPPED.match(text, position, end)
            if skipped:
                if loc:
                    path = self.source.files.get(loc[1], loc[1])
                    self.place = f"{path.rpartition('/')[2]}:{loc[2]}"
                position = skipped.end()
                continue
            if text[position] == "{":
                self._open(position)
                position += 1
                continue
            if text[position] == "}":
                self.scopes.pop()
                position += 1
                continue
            label = _LABEL.match(text, position, end)
            if label:
                self._label(label[1])
                position = label.end()
                continue
            statement = _STATEMENT.match(text, position, end)
            if statement is None:
                raise InputError(
                    f"{self.source.name} line {self.source.line(position)}: a statement without its ';': "
                    f"{text[position:end].strip()[:60]!r}"
                )
            self._statement(statement[0][:-1].strip(), position)
            position = statement.end()

    def _after(self, pattern: re.Pattern[str], position: int, end: int) -> int:
        match = pattern.match(self.source.text, position, end)
        return match.end() if match else position

    def _open(self, position: int) -> None:
        """A scope, with its labels: a branch may stand before the label it goes to."""
        self.renamed = True
        inside = self.source.text[position : self.source.closing(position)]
        self.scopes.append({})
        for match in _LABELS.finditer(inside):
            self.count += 1
            self.scopes[-1][match[1]] = f"{match[1]}@{self.count}"

    def _label(self, name: str) -> None:
        name = next((scope[name] for scope in reversed(self.scopes) if name in scope), name)
        self.body.labels[name] = len(self.body.statements)

    def _statement(self, text: str, position: int) -> None:
        if text.startswith("."):
            self._directive(text, position)
            return
        parts = _PARTS.match(text)
        if parts is None:
            raise InputError(f"{self.source.name} line {self.source.line(position)}: cannot read {text[:60]!r}")
        guard, opcode, rest = parts.groups()
        if self.renamed or len(self.scopes) > 1:
            guard, rest = self._scoped(guard or ""), self._scoped(rest)
        place = Place(self.source.line(position), self.place)
        self.body.statements.append(
            Statement((guard or "").replace(" ", ""), opcode, tuple(split_operands(rest)), place)
        )

    def _scoped(self, text: str) -> str:
        def rename(match: re.Match[str]) -> str:
            for scope in reversed(self.scopes[1:]):
                if match[1] in scope:
                    return scope[match[1]]
            return match[1]

        return _REGISTER.sub(rename, text) if len(self.scopes) > 1 else text

    def _directive(self, text: str, position: int) -> None:
        where = f"{self.source.name} line {self.source.line(position)}"
        kind = text.split(maxsplit=1)[0]
        if kind == ".reg":
            self._registers(text[4:].strip(), where)
        elif kind in (".shared", ".local", ".extern", ".global", ".const"):
            for variable in _variables(text, where):
                self.body.variables[variable.name] = variable
        elif kind not in (".param", ".pragma", ".callprototype", ".branchtargets"):
            raise InputError(f"{where}: the directive {kind} is not known")

    def _registers(self, text: str, where: str) -> None:
        kind, _, names = text.replace("\t", " ").partition(" ")
        kind = kind[1:]
        if kind not in SIZES:
            raise InputError(f"{where}: registers of type .{kind} are not known")
        for name in (each.strip() for each in names.split(",")):
            many = re.fullmatch(r"([\w$%]+)<(\d+)>", name)
            if len(self.scopes) > 1:
                self.count += 1
                new = f"{many[1] if many else name}@{self.count}_"
                for index in range(int(many[2]) if many else 1):
                    local = f"{many[1]}{index}" if many else name
                    self.scopes[-1][local] = f"{new}{index}"
                    self.body.registers[f"{new}{index}"] = kind
            elif many:
                self.body.registers.update(dict.fromkeys((f"{many[1]}{i}" for i in range(int(many[2]))), kind))
            else:
                self.body.registers[name] = kind


def split_operands(text: str) -> Iterator[str]:
    """The operands of an instruction: commas inside braces, brackets and parentheses do not part them."""
    if not text:
        return
    if "{" not in text and "(" not in text:
        yield from (each.strip() for each in text.split(","))
        return
    depth, start = 0, 0
    for index, letter in enumerate(text):
        if letter in "{[(":
            depth += 1
        elif letter in "}])":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()
