"""What ptxas makes of an entry: whether it joined multiplications and additions that PTX leaves apart."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvformat.errors import InputError
from kvformat.ptx import toolchain
from kvformat.ptx.module import Kernel

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\S+?)\s*,", re.MULTILINE)
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")
_FUSED = ("FFMA", "FFMA2", "DFMA", "HFMA2")
_APART = ("FMUL", "FMUL2", "FADD", "FADD2", "DMUL", "DADD", "HMUL2", "HADD2")


@dataclass(frozen=True)
class Sass:
    """One entry as assembled twice, with ptxas' default and with `--fmad=false`.

    Attributes
    ----------
    ptxas : its version
    counts, apart : how often each floating-point opcode stands in it, by default and without contraction

    """

    ptxas: str
    counts: Mapping[str, int]
    apart: Mapping[str, int]

    @property
    def contracted(self) -> int:
        """Fused multiply-adds that stand in the default code only."""
        return sum(self.counts.get(name, 0) - self.apart.get(name, 0) for name in _FUSED)


def assembled(kernel: Kernel) -> Sass:
    """Assemble an entry for its own target, by the first ptxas that takes the module.

    Raises
    ------
    InputError : no ptxas or no nvdisasm is installed, or none takes the module.

    """
    disassembler = toolchain.nvdisasm()
    said = "no ptxas is installed: pip install 'kvformat[cuda]'"
    with tempfile.TemporaryDirectory(prefix="kvformat-sass-") as folder:
        text = Path(folder) / "kernel.ptx"
        text.write_text(kernel.module.source.text, encoding="utf-8")
        for assembler in toolchain.assemblers():
            made: list[Counter[str]] = []
            for word in ("--fmad=true", "--fmad=false"):
                cubin = Path(folder) / "kernel.cubin"
                command: list[str | Path] = [
                    assembler.path,
                    f"-arch={kernel.module.target}",
                    word,
                    "-e",
                    kernel.name,
                    text,
                    "-o",
                    cubin,
                ]
                done = toolchain.run(command)
                if done.returncode:
                    lines = (done.stderr or done.stdout).strip().splitlines() or ["it failed and said nothing"]
                    said = f"ptxas {assembler.version}: {lines[0].strip()}"
                    break
                listing = toolchain.run([disassembler, "-c", cubin])
                if listing.returncode:
                    raise InputError(f"nvdisasm: {(listing.stderr or 'failed').strip().splitlines()[0]}")
                made.append(_counts(listing.stdout, kernel.name))
            if len(made) == 2:
                return Sass(assembler.version, dict(made[0]), dict(made[1]))
    raise InputError(said)


def _counts(listing: str, name: str) -> Counter[str]:
    starts = [(match.start(), match[1]) for match in _SECTION.finditer(listing)]
    ends = [start for start, _ in starts[1:]] + [len(listing)]
    for (start, section), end in zip(starts, ends, strict=True):
        if section == name:
            found = Counter(_OPCODE.findall(listing[start:end]))
            return Counter({word: found[word] for word in (*_FUSED, *_APART) if found[word]})
    raise InputError(f"nvdisasm shows no code for {name}")
