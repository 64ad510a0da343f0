"""Instruction contracts: what the assembly of a kernel must and must not hold, as data, and why.

PTX is judged, not SASS: ptxas expands `div.rn.f32` into MUFU.RCP and FFMA steps that are correctly rounded as a whole.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

#: elements that one thread has of a tile of 4096
PER_THREAD = 32


class Forbidden(NamedTuple):
    """An instruction that must not be there."""

    pattern: str
    why: str


PTX = (
    Forbidden(r"div\.(?!rn\.f(?:32|64)$|[su](?:16|32|64)$)\S+", "a division that is not correctly rounded"),
    Forbidden(r"rcp\.\S+", "a reciprocal in the place of a division"),
    Forbidden(r"\S+\.ftz\S*", "flushes subnormal numbers"),
    Forbidden(r"(?:fma|mad)\.\S*f(?:16|32|64)\S*", "one rounding where the recipe has two"),
    Forbidden(r"(?:add|sub|mul)\.f(?:32|64)", "may be fused by ptxas: it lacks .rn"),
    Forbidden(r"(?:sqrt|rsqrt|ex2|lg2|sin|cos|tanh)\.\S+", "no recipe of these modes has it"),
)
INTEGER_PATH = (Forbidden(r"cvt\.\S*\.satfinite\.\S+", "a conversion by the GPU"),)

#: what one division is on AMD: LLVM's correctly rounded expansion, and nothing outside of it
AMD_DIVISION = {"v_div_scale_f32": 2, "v_rcp_f32": 1, "v_fma_f32": 5, "v_div_fmas_f32": 1, "v_div_fixup_f32": 1}
AMD = (
    Forbidden(r"v_(?:pk_)?(?:fma|mad|fmac|mac)\w*f(?:16|32|64)", "one rounding where the recipe has two"),
    Forbidden(r"v_(?:rsq|sqrt|exp|log|sin|cos|rcp)_", "an approximation"),
)
_AMD_NAMES = {"v_fmac_f32": "v_fma_f32", "v_mac_f32": "v_fma_f32", "v_mad_f32": "v_fma_f32"}

_BYTES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "byte": 1, "short": 2, "dword": 4}


def ptx_instructions(assembly: str) -> list[str]:
    """Opcodes of the code of a PTX text, in order, without predicates."""
    code = assembly.split(".section", maxsplit=1)[0]
    lines = (re.sub(r"^(?:@!?%\w+\s+)", "", line.split("//")[0].strip()) for line in code.splitlines())
    return [line.split()[0].rstrip(";") for line in lines if line and not line.startswith((".", "$", "{", "}"))]


def amd_instructions(assembly: str) -> list[str]:
    """Opcodes of the code of an AMDGCN text, the suffix of an encoding dropped."""
    code = assembly.split(".rodata", maxsplit=1)[0]
    lines = (line.split(";")[0].strip() for line in code.splitlines())
    opcodes = (line.split()[0] for line in lines if line and not line.startswith(".") and not line.endswith(":"))
    return [re.sub(r"_(?:e32|e64|dpp|sdwa)$", "", opcode) for opcode in opcodes]


def rounding(made: dict[str, Any]) -> list[str]:
    """Violations of: each operation of the recipe is one correctly rounded instruction, or group of instructions."""
    if made["target"].startswith("gfx"):
        return _amd_rounding(made)
    found = ptx_instructions(made["assembly"])
    rules = (*PTX, *(() if made["case"].startswith("hardware") else INTEGER_PATH))
    wrong = [f"{opcode}: {each.why}" for each in rules for opcode in found if re.fullmatch(each.pattern, opcode)]
    divided = sum(opcode.startswith("div.rn.f") for opcode in found)
    wanted = made["element_divisions"] * PER_THREAD
    if divided < wanted:
        wrong.append(f"{divided} divisions; the recipe has {wanted} for a thread's elements")
    return wrong


def _amd_rounding(made: dict[str, Any]) -> list[str]:
    found = Counter(_AMD_NAMES.get(opcode, opcode) for opcode in amd_instructions(made["assembly"]))
    wrong = [
        f"{found[opcode]} {opcode} in {made['divisions']} divisions; each has {each}"
        for opcode, each in AMD_DIVISION.items()
        if found[opcode] != each * made["divisions"]
    ]
    outside = [opcode for opcode in found if opcode not in AMD_DIVISION]
    wrong += [f"{opcode}: {each.why}" for each in AMD for opcode in outside if re.match(each.pattern, opcode)]
    wanted = made["element_divisions"] * PER_THREAD
    if made["divisions"] < wanted:
        wrong.append(f"{made['divisions']} divisions; the recipe has {wanted} for a thread's elements")
    if not re.search(r"amdhsa_float_denorm_mode_32 3", made["assembly"]):
        wrong.append("float_denorm_mode_32 is not 3: subnormal numbers are flushed")
    return wrong


def spills(made: dict[str, Any]) -> list[str]:
    """Violations of: what a thread computes fits its registers."""
    held = {"bytes of stack or local memory": made["local_bytes"], "spilled registers": made["spills"]}
    return [f"{count} {what}" for what, count in held.items() if count]


def store_widths(made: dict[str, Any]) -> list[str]:
    """Violations of: a store is as wide as offsets and strides allow, at most 16 bytes; scales at most 8.

    Bytes that go through an atomic or into shared memory are no stores here.
    """
    amd = made["target"].startswith("gfx")
    opcodes = amd_instructions(made["assembly"]) if amd else ptx_instructions(made["assembly"])
    found = set(filter(None, map(_amd_width if amd else _ptx_width, opcodes)))
    wanted = set(made["stores"])
    return [] if found == wanted else [f"stores of {sorted(found)} bytes; the layout allows {sorted(wanted)}"]


def load_widths(made: dict[str, Any]) -> set[int]:
    """The widths of a kernel's loads, in bytes."""
    amd = made["target"].startswith("gfx")
    opcodes = amd_instructions(made["assembly"]) if amd else ptx_instructions(made["assembly"])
    return set(filter(None, (_amd_width(each, "load") if amd else _ptx_width(each, "ld") for each in opcodes)))


def _ptx_width(opcode: str, word: str = "st") -> int | None:
    match = re.fullmatch(word + r"\.global(?:\.v([248]))?\.(b\d+)", opcode)
    return int(match[1] or 1) * _BYTES[match[2]] if match else None


def _amd_width(opcode: str, word: str = "store") -> int | None:
    match = re.fullmatch(rf"(?:global|buffer|flat)_{word}_(byte|short|dword)(?:x([234]))?", opcode)
    return int(match[2] or 1) * _BYTES[match[1]] if match else None


def operand_order(made: dict[str, Any]) -> list[str]:
    """Violations of: the second operand of a packing conversion, which lands low, comes of the element with even index.

    Of a bfloat16 pair in one register the even element is the low half, widened by a shift; the odd one is masked.
    """
    code = made["assembly"].split(".section")[0]
    sources, pairs = {}, {}
    for line in code.splitlines():
        match = re.match(r"\s*(?:@!?%\w+\s+)?([\w.]+)\s+(%\w+),\s*(.*?);", line)
        if match:
            sources[match[2]] = (match[1], re.findall(r"%\w+|-?\d+\b", match[3]))
        packed = re.match(r"\s*mov\.b64\s+(%\w+), \{(%\w+), (%\w+)\};", line)
        if packed:
            pairs[packed[1]] = (packed[2], packed[3])
        parted = re.match(r"\s*mov\.b64\s+\{(%\w+), (%\w+)\}, (%\w+);", line)
        if parted and parted[3] in pairs:
            sources |= {parted[half + 1]: ("mov", [pairs[parted[3]][half]]) for half in (0, 1)}
        unpacked = re.match(r"\s*mov\.b32\s+\{(%\w+), (%\w+)\},\s*(%\w+);", line)
        if unpacked:
            sources[unpacked[1]], sources[unpacked[2]] = ("low", [unpacked[3]]), ("high", [unpacked[3]])
    wrong, conversions = [], re.findall(r"cvt\.rn\.satfinite\.e\dm\dx2\.f32\s+\w+, (%\w+), (%\w+);", code)
    for first, second in conversions:
        high, low = _element(first, sources), _element(second, sources)
        if (high[0], low[0]) != ("odd", "even") or high[1] != low[1]:
            wrong.append(f"cvt of {first} ({high}) and {second} ({low})")
    return wrong if conversions else ["no packing conversion"]


def _element(register: str, sources: dict[str, tuple[str, list[str]]]) -> tuple[str, str]:
    """Which half of which loaded register a number is, followed back through the arithmetic."""
    for _ in range(64):
        opcode, operands = sources.get(register, ("", []))
        registers = [each for each in operands if each.startswith("%")]
        if opcode == "shl.b32" and operands[-1] == "16":
            half = sources.get(registers[0], ("", []))
            return ("even", half[1][0]) if half[0] == "low" else _through(registers[0], sources)
        if opcode == "and.b32" and operands[-1] == "-65536":
            return "odd", registers[0]
        if not registers:
            return opcode, register
        register = registers[0]
    return "?", register


def _through(register: str, sources: dict[str, tuple[str, list[str]]]) -> tuple[str, str]:
    opcode, operands = sources.get(register, ("", []))
    while opcode.startswith("cvt.u32.u16") or opcode == "mov.b16":
        register = operands[0]
        opcode, operands = sources.get(register, ("", []))
    if opcode in ("low", "high"):
        return ("even" if opcode == "low" else "odd"), operands[0]
    return ("even", register) if not opcode or opcode.startswith("ld") else (opcode, register)
