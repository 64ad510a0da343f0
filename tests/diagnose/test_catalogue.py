"""One catalogue of faults: each has an edit, a kernel that shares nothing with it, and both leave the same bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from kvformat.diagnose.bench import Bench
from kvformat.diagnose.canvas import Canvas
from kvformat.diagnose.catalogue import FAULTS
from kvformat.diagnose.hypothesis import Geometry, Scene, Writer
from kvformat.diagnose.probe import probe
from kvformat.diagnose.remaps import Frame, right_places
from kvformat.fuzz.zoo.catalogue import kernels
from kvformat.fuzz.zoo.entry import FP8_ROW, FP8_TENSOR, INT8, NONE, NVFP4
from kvformat.recipes.catalogue import recipe

KERNELS = [each for each in kernels() if each.fault is not None and not each.slow]
#: faults of which the zoo has no kernel: their independent writers are those of test_faults and test_scopes
BY_HAND = {"block-size", "other-head", "other-side", "other-token", "saturate-nan", "tie-up"}
#: kernels whose very bytes no edit leaves in these modes: they depart a second time where a row is zeros or NaN or an
#: address ends a block, their fault has another id there, or these K, V and pages do not show it (no padding)
OTHERWISE = {
    "scale by reciprocal": (
        FP8_TENSOR,
        FP8_ROW,
        INT8,
    ),
    "scale floor": (FP8_TENSOR,),
    "amax floor": (FP8_TENSOR,),
    "zero row divides by zero": (
        FP8_TENSOR,
        FP8_ROW,
        INT8,
    ),
    "unstored scale": (FP8_TENSOR,),
    "scale flushed": (
        FP8_TENSOR,
        FP8_ROW,
        INT8,
    ),
    "encode scale stored": (FP8_TENSOR,),
    "scale of previous token": (
        FP8_ROW,
        INT8,
    ),
    "scale of first tokens": (FP8_TENSOR,),
    "scaled by qmax over amax": (
        FP8_TENSOR,
        FP8_ROW,
    ),
    "quotient flushed": (
        FP8_TENSOR,
        FP8_ROW,
        INT8,
    ),
    "half up": (
        FP8_TENSOR,
        FP8_ROW,
    ),
    "no saturation": (INT8,),
    "global scale inverted": (NVFP4,),
    "block scale never zero": (NVFP4,),
    "zero block is nan": (NVFP4,),
    "underflowed block saturates": (NVFP4,),
    "always four": (NVFP4,),
    "power of two scale": (NVFP4,),
    "given scale inverted": (NVFP4,),
    "two half pages": (
        FP8_ROW,
        INT8,
    ),
    "stride from shape": (
        NONE,
        FP8_TENSOR,
        FP8_ROW,
        INT8,
        NVFP4,
    ),
    "scale stride from shape": (
        FP8_ROW,
        INT8,
        NVFP4,
    ),
    "slot shifted": (
        NONE,
        FP8_TENSOR,
        FP8_ROW,
        INT8,
        NVFP4,
    ),
    "block size of heads": (
        NONE,
        FP8_TENSOR,
        FP8_ROW,
        INT8,
        NVFP4,
    ),
    "always swizzled": (NVFP4,),
    "tiled scales": (NVFP4,),
}
IN_NUMPY = [each for each in KERNELS if not each.function.__class__.__module__.endswith("torch_kernels")]
WRITERS = [
    each for each in IN_NUMPY
    if each.kind != "reader" and FAULTS[each.fault].variants and each.mode not in OTHERWISE.get(each.name, ())
]  # fmt: skip
#: of each kind of fault the first ones
FEW = [kernel for kind in ("content", "arithmetic", "scale", "layout")
       for kernel in [each for each in WRITERS if FAULTS[each.fault].kind == kind][:2]]  # fmt: skip


def test_every_kernel_of_the_zoo_has_a_fault_of_the_catalogue():
    assert {kernel.fault for kernel in KERNELS} | BY_HAND == set(FAULTS)
    assert {kernel.fault for kernel in KERNELS} & BY_HAND == set()


def test_the_faults_without_an_edit_are_those_that_no_byte_of_a_token_shows():
    assert {each.id for each in FAULTS.values() if not each.variants} == {
        each.id for each in FAULTS.values() if each.kind == "elsewhere"
    }


def test_every_fault_says_what_it_is_why_and_where_it_was_seen():
    for fault in FAULTS.values():
        assert all((fault.meaning, fault.reason, fault.source)), fault.id
        assert not fault.meaning.endswith("."), fault.id


@cache
def inputs(mode):
    """Dumps to write: ordinary K and V, some with ties and zeros, and those of a probe; scales given and computed."""
    made = [probe(mode, dtype="float32", stored=dtype) for dtype in (DTYPES if mode == "none" else (None,))]
    for each in list(made):
        sides = [rows(seed, each.key.shape, ties=ties) for ties in (False, True) for seed in (1, 2)]
        made += [replace(each, key=key, value=value) for key, value in (sides[:2], sides[2:])]
    return [dump for each in made for dump in (each, replace(each, k_scale=None, v_scale=None))[: 1 + (mode in GIVEN)]]


def rows(seed, shape, *, ties):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-3, 4, (*shape[:2], 1))
    if ties:  # an amax that makes a power of two of every scale, and halves of steps below it
        x = rng.integers(-24, 25, shape) / 2
        x[rng.random(shape) < 0.1] *= -0.0
        x[..., ::16] = {0: 127, 1: 448, 2: 6}[seed % 3]
    return x.astype(np.float32)


def by_kernel(kernel, dump):
    """The pages that a quantizer or a writer of the zoo leaves."""
    made, pages, scales = dump.layout, dump.pages.copy(), (dump.k_scale, dump.v_scale)
    if kernel.kind == "writer":
        kernel.function(
            dump.key.copy(), dump.value.copy(), pages, dump.slot_mapping, block_size=made.block_size,
            num_kv_heads=made.num_kv_heads, head_size=made.head_size, order=made.order, v_scales=made.v_scales,
            dtype=made.dtype, k_scale=scales[0], v_scale=scales[1],
        )  # fmt: skip
        return pages
    at, flat = right_places(Frame(made, dump.slot_mapping, len(pages))).at, pages.reshape(-1)
    for side, x, scale in zip("kv", (dump.key, dump.value), scales, strict=True):
        codes, scales_of, *_ = kernel.function.quantize(x.astype(np.float32), scale)
        codes = np.ascontiguousarray(codes).view(np.uint8)
        packed = codes.shape[2] == x.shape[2] and kernel.mode == "nvfp4"
        flat[at[side, "code"]] = codes[..., 0::2] | codes[..., 1::2] << 4 if packed else codes
        if (side, "scale") in at:
            flat[at[side, "scale"]] = np.ascontiguousarray(scales_of).view(np.uint8).reshape(*x.shape[:2], -1)
    return pages


class Edits:
    """What the edits of a fault leave of a dump's tokens."""

    def __init__(self, dump, pages):
        declared = recipe(f"golden/{dump.mode}").for_input(dump.key.dtype.name)
        self.dump = replace(dump, pages=pages)
        tokens = np.flatnonzero(dump.slot_mapping >= 0)
        self.scene = Scene(Bench(self.dump, declared, tokens), Canvas(self.dump))
        self.right, self.home = Writer(declared), Geometry(dump.layout.name)

    def left_by(self, writer, geometry, sides):
        """The pages with some sides written by that writer in that place; None where the edit does not apply."""
        if self.scene.places(geometry) is None:
            return None
        flat = self.dump.pages.reshape(-1).copy()
        chosen = {side: (writer, geometry) if side in sides else (self.right, self.home) for side in "kv"}
        where = self.scene.places(self.home).at.values()
        flat[np.concatenate([each.reshape(-1) for each in where])] = BLANK
        for side, (who, place) in chosen.items():
            strip = self.scene.strip(who, place, side)
            if strip is None:
                return None
            said = strip.known & (strip.at >= 0)
            flat[strip.at[said]] = strip.value[said]
        return flat.reshape(self.dump.pages.shape)

    def all(self, fault):
        """What each variant leaves, on both sides and on one."""
        for variant in FAULTS[fault].variants_in(self.dump.mode):
            layout_fault = FAULTS[fault].kind == "layout"
            writer = self.right if layout_fault else Writer(self.right.recipe, FAULTS[fault], variant)
            geometry = Geometry(self.home.layout, FAULTS[fault], variant) if layout_fault else self.home
            for sides in ("kv", "k", "v"):
                yield variant, self.left_by(writer, geometry, sides)


#: what no writer leaves in its places: a byte that stays is one that an edit says nothing of
BLANK = 0xA5
GIVEN, DTYPES = ("fp8_per_tensor", "nvfp4"), ("bfloat16", "float16")


@pytest.mark.parametrize(
    "kernel", [pytest.param(each, id=f"{each.name}-{each.kind}-{each.mode}",
                            marks=() if each in FEW else pytest.mark.exhaustive) for each in WRITERS]
)  # fmt: skip
def test_an_edit_of_its_fault_leaves_the_very_bytes_of_a_kernel(kernel):
    for dump in inputs(kernel.mode):
        with np.errstate(all="ignore"):
            pages = by_kernel(kernel, dump)
        edits = Edits(dump, pages)
        shown = not np.array_equal(edits.left_by(edits.right, edits.home, "kv"), pages)
        if shown and any(np.array_equal(left, pages) for _, left in edits.all(kernel.fault) if left is not None):
            return
    pytest.fail(f"no edit of {kernel.fault} leaves the bytes of {kernel.name}")
