"""The faults of content as data: the arithmetic and the layout are right, but nothing was written, or other tokens."""

from __future__ import annotations

from kvformat.diagnose.fault import ALL, SCALED, Fault, Source, Variant

FAULTS: tuple[Fault, ...] = (
    Fault(
        "never-written",
        "content",
        "the bytes are those from before the write: one value throughout, or what the pages held",
        "the kernel did not run, ran on other pages, or stopped early",
        "graphcore-research/gfloat#36; NVIDIA/TransformerEngine#3281; kvcache-ai/Mooncake#2236",
        ALL,
        (
            Variant("one value throughout", unwritten="constant"),
            Variant("what the pages held before", unwritten="before"),
            Variant("codes alone: one value throughout", unwritten="constant", unwritten_part="code", modes=SCALED),
            Variant("codes alone: what the pages held before", unwritten="before", unwritten_part="code", modes=SCALED),
        ),
    ),
    Fault(
        "other-token",
        "content",
        "a slot holds K and V of another token",
        "an index into K and V, or into the slot mapping, is off by one; the slot mapping is that of another step",
        "vllm-project/vllm#47056; flashinfer-ai/flashinfer#3740",
        ALL,
        (
            Variant("of the next token", source=Source(tokens=1)),
            Variant("of the token before", source=Source(tokens=-1)),
        ),
    ),
    Fault(
        "other-head",
        "content",
        "a head holds K and V of another head",
        "heads are sharded, rotated or regrouped differently by writer and reader",
        "sgl-project/sglang#19086; vllm-project/vllm#52516",
        ALL,
        tuple(
            Variant(label, source=Source(heads=heads))
            for label, heads in (
                ("of the next head", "next"),
                ("of the head before", "before"),
                ("all of the first head", "first"),
                ("heads 2i and 2i + 1 exchanged", "neighbour"),
                ("the halves exchanged", "halves"),
                ("the first half twice", "first half"),
                ("each of the first half twice in a row", "repeated"),
                ("in reverse order", "reversed"),
            )
        ),
    ),
    Fault(
        "other-side",
        "content",
        "K is stored where V belongs, or V where K does",
        "one pointer is passed twice",
        "ikawrakow/ik_llama.cpp#1592",
        ALL,
        (Variant("of the other side", source=Source(other_side=True)),),
    ),
)
