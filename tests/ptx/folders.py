"""Foreign answers for single instructions: constants folded by every ptxas that is installed, and by LLVM.

ptxas folds an instruction whose operands are constants and stores the result as an immediate: it is read from the
instruction's encoding. Code that is not straight-line, and what was not folded, gives no answer.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np

from kvformat import ptx
from kvformat.ptx import toolchain

HEADER = ".version 8.7\n.target sm_100a\n.address_size 64\n"
CHUNK = 500

_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);\s+/\* 0x([0-9a-f]{16}) \*/")
_STORE = re.compile(r"STG\.E(?:\.(64|128))? (?:desc\[\w+\])?\[\w+(?:\.64)?(?:\+(?:\w+\+)?0x([0-9a-f]+))?\], (R\w+)")
_IMMEDIATE = re.compile(r"(?:U?MOV|HFMA2|IMAD\.MOV\.U32|HFMA2\.MMA|HFMA2\.BF16\S*) (U?R\d+), (?:-?RZ, -?RZ, )?\S*\d")
_COPY = re.compile(r"(?:U?MOV|IMAD\.MOV\.U32|IMAD\.U32) (U?R\d+), (?:RZ, RZ, )?(U?R(?:\d+|Z))$")
_ZEROS = re.compile(r"CS2R(\.32)? R(\d+), SRZ")
_RESULT = re.compile(r"^(?:@!?U?P\w+ )?\S+ (U?R\d+)")


def program(opcode, operands, letter):
    """PTX that stores the result of each row of operands; `letter` is f (floats) or r (integers) for the result."""
    kind = "f32" if letter == "f" else "b32"
    lines = [HEADER + ".visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<2>; .reg .f32 %f<2>; .reg .b64 %rd<3>;"]
    lines.append("ld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;")
    prefix = "0f" if opcode.split(".")[-1].startswith("f") else "0x"
    for index, row in enumerate(operands):
        words = ", ".join(f"{prefix}{int(value):08X}" for value in row)
        lines.append(f"{opcode} %{letter}1, {words};\nst.global.{kind} [%rd2+{4 * index}], %{letter}1;")
    return "\n".join([*lines, "ret;\n}\n"])


def ptxas(assembler, opcode, operands, letter="f"):
    """(answers, whether there is one) of one ptxas for rows of 32-bit patterns."""
    answers, known = np.zeros(len(operands), np.uint32), np.zeros(len(operands), bool)
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        for start in range(0, len(operands), CHUNK):
            text.write_text(program(opcode, operands[start : start + CHUNK], letter))
            done = toolchain.run([assembler.path, "-arch=sm_100a", text, "-o", cubin])
            assert done.returncode == 0, done.stderr[:500]
            listing = toolchain.run([toolchain.nvdisasm(), "-hex", "-c", cubin]).stdout
            for offset, value in stores(listing).items():
                answers[start + offset // 4], known[start + offset // 4] = value, True
    return answers, known


def stores(listing):
    """Offset -> pattern of the constants that straight-line code stores."""
    constants, found = {"RZ": 0, "URZ": 0}, {}
    for text, word in _LINE.findall(listing):
        if text.startswith("EXIT"):
            break
        if text.startswith(("BRA", "@")):
            return {}
        if store := _STORE.match(text):
            first, offset = store[3], int(store[2] or "0", 16)
            for part in range({None: 1, "64": 2, "128": 4}[store[1]]):
                name = first if first == "RZ" else f"R{int(first[1:]) + part}"
                if name in constants:
                    found[offset + 4 * part] = constants[name]
        elif zeros := _ZEROS.match(text):
            for part in range(1 if zeros[1] else 2):
                constants[f"R{int(zeros[2]) + part}"] = 0
        elif copy := _COPY.match(text):
            constants.pop(copy[1], None)
            if copy[2] in constants:
                constants[copy[1]] = constants[copy[2]]
        elif (made := _IMMEDIATE.match(text)) and not re.search(r"\bR\d+\b", text[made.end(1) :]):
            constants[made[1]] = int(word, 16) >> 32
        elif result := _RESULT.match(text):
            constants.pop(result[1], None)
            if ".64" in text or ".WIDE" in text:
                constants.pop(f"R{int(result[1].strip('UR')) + 1}", None)
    return found


def llvm(call, operands):
    """(answers, whether there is one) of LLVM's folder: `call` is a format of IR with {0}, {1}, {2} for floats."""
    from llvmlite import binding

    def real(pattern):
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            wide = np.array([pattern], np.uint32).view(np.float32).astype(np.float64).view(np.uint64)[0]
        return f"0x{int(wide):016X}"

    lines = ['target triple = "nvptx64-nvidia-cuda"', f"declare {call.declaration}", "define void @k(ptr %out) {"]
    for index, row in enumerate(operands):
        arguments = ", ".join(f"float {real(value)}" for value in row)
        lines += [
            f"%v{index} = call float @{call.name}({arguments})",
            f"%b{index} = bitcast float %v{index} to i32",
            f"%p{index} = getelementptr i32, ptr %out, i64 {index}",
            f"store i32 %b{index}, ptr %p{index}",
        ]
    module = binding.parse_assembly("\n".join([*lines, "ret void", "}"]))
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu="sm_100")
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options())
    passes = binding.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.run(module, builder)
    answers, known = np.zeros(len(operands), np.uint32), np.zeros(len(operands), bool)
    text = str(module)
    first = re.search(r"store i32 (-?\d+), ptr %out", text)
    if first:
        answers[0], known[0] = int(first[1]) % 2**32, True
    where = {
        name: int(offset) // 4
        for name, offset in re.findall(r"%(p\d+) = getelementptr.*?i8, ptr %out, i64 (\d+)", text)
    }
    where |= {name: int(at) for name, at in re.findall(r"%(p\d+) = getelementptr.*?i32, ptr %out, i64 (\d+)", text)}
    for value, name in re.findall(r"store i32 (-?\d+), ptr %(p\d+)", text):
        answers[where[name]], known[where[name]] = int(value) % 2**32, True
    return answers, known


def machine(opcode, operands, letter="f", approximate="ptxas"):
    """The same rows through kvformat.ptx: loaded, computed and stored by a kernel."""
    count = operands.shape[1]
    letters = ["f" if opcode.split(".")[-1].startswith("f") else "r"] * count
    lines = [HEADER + ".visible .entry k(.param .u64 out, .param .u64 in)\n{"]
    lines.append(".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;")
    lines.append("ld.param.u64 %rd1, [out];\nld.param.u64 %rd2, [in];")
    lines.append("mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %tid.x;\nmad.lo.s32 %r1, %r1, 128, %r2;")
    lines.append(f"mul.wide.u32 %rd3, %r1, 4;\nmul.wide.u32 %rd4, %r1, {4 * count};")
    lines.append("add.s64 %rd5, %rd1, %rd3;\nadd.s64 %rd6, %rd2, %rd4;")
    for index, each in enumerate(letters):
        lines.append(f"ld.global.{'f32' if each == 'f' else 'b32'} %{each}{3 + index}, [%rd6+{4 * index}];")
    words = ", ".join(f"%{each}{3 + index}" for index, each in enumerate(letters))
    lines.append(f"{opcode} %{letter}8, {words};")
    lines.append(f"st.global.{'f32' if letter == 'f' else 'b32'} [%rd5], %{letter}8;\nret;\n}}\n")
    blocks = -(-len(operands) // 128)
    padded = np.resize(operands, (128 * blocks, count)).astype(np.uint32)
    out = np.zeros(128 * blocks, np.uint32)
    ptx.load("\n".join(lines))["k"].launch(blocks, 128, [out, padded], approximate=approximate)
    return out[: len(operands)]
