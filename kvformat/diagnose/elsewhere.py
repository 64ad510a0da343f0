"""The faults that no byte of a dump's tokens shows: what readers do, and what writers do beside the rows they write.

`kvformat fuzz` finds them: its zoo has a kernel with each.
"""

from __future__ import annotations

from kvformat.diagnose.fault import ALL, FLOATS, Fault


def _fault(name: str, meaning: str, reason: str, source: str, modes: tuple[str, ...] = ALL) -> Fault:
    return Fault(name, "elsewhere", meaning, reason, source, modes, ())


FAULTS: tuple[Fault, ...] = (
    _fault(
        "slot-padding",
        "a token with a negative slot is written",
        "the slot is unsigned, or only -1 is tested for",
        "huggingface/transformers#46765; flashinfer-ai/flashinfer#3740",
    ),
    _fault(
        "page-cleared",
        "tokens that a page held already are gone after the next write to it",
        "a page is taken for a new one whenever its first slot is written",
        "vllm-project/vllm#51091",
    ),
    _fault(
        "row-overrun",
        "the bytes behind a row are written as well",
        "a row is stored in vectors that are wider than what is left of it",
        "FlashML-org/FreeToken#354",
    ),
    _fault(
        "input-changed",
        "K or V are other numbers after they were written",
        "they are divided by the scale in place",
        "SGLang 0.5.23 srt/mem_cache/memory_pool.py L2928",
    ),
    _fault(
        "block-table",
        "a reader takes tokens from blocks that are not theirs",
        "the blocks of a sequence are taken to lie in a row",
        "NVIDIA/TensorRT-LLM#18957, #19192",
    ),
    _fault(
        "unwritten-slot",
        "a reader makes NaN of what lies in slots without a token",
        "they are masked by a factor of 0, and 0 * NaN is NaN",
        "Dao-AILab/flash-attention#1745; nod-ai/amd-shark-ai#665",
    ),
    _fault(
        "nan-decode",
        "a reader makes numbers of NaN codes, or NaN of numbers",
        "the exponent field alone is looked at",
        "triton-lang/triton#10745, #10747; ROCm/rocm-systems#6870, #8800",
        FLOATS,
    ),
    _fault(
        "subnormal-decode",
        "a reader takes subnormal codes for normal ones",
        "one formula for all exponents",
        "local-inference-lab/b12x#388; JuliaMath/Float8s.jl#22",
        FLOATS,
    ),
)
