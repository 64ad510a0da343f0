"""The faults of layout as data: where a writer puts its rows."""

from __future__ import annotations

from itertools import product

from kvformat.diagnose.fault import ALL, SCALED, Fault, Variant
from kvformat.diagnose.remaps import (
    AlignedRecord,
    Exchanged,
    KThenV,
    MovedSlots,
    NoScales,
    OtherBlockSize,
    OtherOrder,
    Packed,
    PageStride,
    Regrouped,
    Swizzled,
    Swizzling,
)

_NVFP4 = ("nvfp4",)
_HOWS: tuple[Swizzling, ...] = ("", "linear", "4-token", "twice", "128x4")


def _swizzled(k: Swizzling, v: Swizzling) -> Variant:
    label = ", ".join(f"{side} scales {how}" for side, how in (("K", k), ("V", v)) if how)
    return Variant(label, remap=Swizzled(k, v))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "nibble-order",
        "layout",
        "the two 4-bit codes of a byte are exchanged, or belong to other elements",
        "hardware and libraries disagree which nibble is the first element",
        "triton-lang/triton#5197; Comfy-Org/comfy-kitchen#41; ROCm/composable_kernel#1889",
        _NVFP4,
        (
            Variant("element 0 in the high nibble", remap=Packed("high first")),
            Variant("elements i and i + head_dim / 2 in a byte", remap=Packed("halves")),
            Variant("elements i + head_dim / 2 and i in a byte", remap=Packed("halves, high first")),
            Variant("the high nibble saturates at 7 when it is shifted", remap=Packed("saturated")),
        ),
    ),
    Fault(
        "swizzle",
        "layout",
        "the block scales lie in another swizzle",
        "one reader wants V scales in groups of 4 tokens, another one rows, a matrix unit tiles of 128x4",
        "vllm-project/vllm#50084, #50085, #55976; flashinfer-ai/flashinfer#2954; NVIDIA/TransformerEngine#2924",
        _NVFP4,
        tuple(_swizzled(k, v) for k, v in product(_HOWS, _HOWS) if k or v),
    ),
    Fault(
        "order",
        "layout",
        "heads and slots are nested the other way round (NHD and HND)",
        "the two have the same shape whenever there are as many heads as slots, and the same size always",
        "vllm-project/vllm#14604, #49012",
        ALL,
        (Variant("the other order", remap=OtherOrder()),),
    ),
    Fault(
        "kv-exchanged",
        "layout",
        "K lies in V's place, V in K's",
        "two pointers or two views were swapped",
        "LMCache/LMCache#2494",
        ALL,
        (Variant("K and V exchanged", remap=Exchanged()),),
    ),
    Fault(
        "kv-fused",
        "layout",
        "K and V alternate over other axes: by cell, head, slot, page, or all K before all V",
        "a [2, pages, ...] cache is taken for [pages, 2, ...], or a fused head axis for two tensors",
        "LMCache/LMCache#2494, #2500; vllm-project/vllm#44455; ROCm/aiter#3498",
        ALL,
        (
            *(Variant(f"K and V by {per}", remap=Regrouped(per)) for per in ("cell", "head", "slot", "page")),
            Variant("all K pages before all V pages", remap=KThenV()),
        ),
    ),
    Fault(
        "stride",
        "layout",
        "pages, or records, lie further apart or closer together than the layout says",
        "a stride made of the shape forgets the padding, or padding is added where there is none",
        "vllm-project/vllm#49716, #44455; ROCm/aiter#3498; FlashML-org/FreeToken#354",
        ALL,
        (
            Variant("pages without their padding", remap=PageStride("natural")),
            Variant("scales as if pages had no padding", remap=PageStride("natural", ("scale",)), modes=SCALED),
            Variant("half a page", remap=PageStride("half")),
            Variant("two pages", remap=PageStride("double")),
            *(
                Variant(f"pages padded to a multiple of {n}", remap=PageStride(n))
                for n in (16, 64, 128, 256, 512, 1024, 4096)
            ),
            *(Variant(f"records padded to a multiple of {n}", remap=AlignedRecord(n)) for n in (16, 32, 64, 128)),
        ),
    ),
    Fault(
        "slot-shift",
        "layout",
        "every token lies one slot, or one block, from where it belongs",
        "an index that starts at 1, or a null block that is counted",
        "flashinfer-ai/flashinfer#3740; vllm/v1/worker/block_table.py in vLLM 0.33.0",
        ALL,
        (
            Variant("one slot later", remap=MovedSlots(slots=1)),
            Variant("one slot earlier", remap=MovedSlots(slots=-1)),
            Variant("one block later", remap=MovedSlots(blocks=1)),
            Variant("one block earlier", remap=MovedSlots(blocks=-1)),
        ),
    ),
    Fault(
        "block-size",
        "layout",
        "a slot is taken apart with another block size",
        "the block size is read from the head axis, or is the logical one and not the kernel's",
        "vllm-project/vllm#49012, #53681, #47056",
        ALL,
        (
            Variant("as many slots as heads", remap=OtherBlockSize(0)),
            *(Variant(f"{size} slots", remap=OtherBlockSize(size)) for size in (4, 8, 16, 32, 64, 128)),
        ),
    ),
    Fault(
        "page-missing-scales",
        "layout",
        "the page holds codes only",
        "scales live in a second buffer that was not copied, or the pool was made for codes alone",
        "kvcache-ai/Mooncake#2236; NVIDIA/TensorRT-LLM#18957, #19192",
        SCALED,
        (
            Variant("scales never written", remap=NoScales(room=True)),
            Variant("no room for scales", remap=NoScales(room=False)),
        ),
    ),
)
