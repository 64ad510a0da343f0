"""Launches the kernels: from tensors, a layout and a recipe to a grid and its compile-time constants.

Tensors are on one device, CUDA or HIP; in Triton's interpreter they are on the CPU. Arguments are checked before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import triton

from kvformat.errors import InputError
from kvformat.torch import kernels
from kvformat.torch.codec import narrowing
from kvformat.torch.places import Place, dense, place
from kvformat.torch.program import Dequantizer, Quantizer, dequantizer, outer_level, quantizer, scaler

if TYPE_CHECKING:
    from kvformat.layouts import Layout
    from kvformat.recipes import Recipe

Side = Literal["k", "v"]

#: elements of a tile, 32 per thread
_ELEMENTS = 4096
_THREADS = 128


def options(warp_size: int) -> dict[str, Any]:
    """What kernels are compiled with, by the threads of a warp.

    `enable_fp_fusion` off: a product is rounded before it is added, as the recipe says.
    """
    return {"num_warps": _THREADS // warp_size, "enable_fp_fusion": False}


_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_PATTERNS = {"float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}


class Launch(NamedTuple):
    """A kernel and everything it is launched with; `constants` are known when it is compiled."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


_recording: ContextVar[list[Launch] | None] = ContextVar("recording", default=None)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Within it kernels are not run: the list holds their launches, to be looked at or compiled ahead of time."""
    launches: list[Launch] = []
    token = _recording.set(launches)
    try:
        yield launches
    finally:
        _recording.reset(token)


def start(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Launch a kernel, in float32 arithmetic as it is written."""
    recording = _recording.get()
    if recording is not None:
        recording.append(Launch(kernel, grid, arguments, constants))
    else:
        warp_size = 64 if torch.version.hip else 32  # of the GPUs that kernels are built for, gfx9 among AMD's
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel[grid](*arguments, **constants, **options(warp_size))


@dataclass(frozen=True)
class Shape:
    """The tile of a kernel: rows, and the groups of elements in each, all powers of two."""

    rows: int
    groups: int
    elements: int

    @classmethod
    def of(cls, dims: int, group: int) -> Shape:
        """Tiles for rows of `dims` elements, `group` of which share a scale (0: all)."""
        elements = triton.next_power_of_2(group or dims)
        groups = triton.next_power_of_2(-(-dims // group)) if group else 1
        return cls(max(1, _ELEMENTS // (elements * groups)), groups, elements)

    @property
    def tile(self) -> tuple[int, int]:
        """Groups and elements of a row."""
        return self.groups, self.elements


def name_of(dtype: torch.dtype) -> str:
    """The recipe's name of a tensor's dtype. Raises InputError for one that cannot be quantized."""
    if dtype not in _NAMES:
        raise InputError(f"tensors must be float32, float16 or bfloat16; got {str(dtype).removeprefix('torch.')}")
    return _NAMES[dtype]


def places(layout: Layout, side: Side, pages: torch.Tensor) -> tuple[Place, Place | None]:
    """Where the codes and the scales of a side lie in these pages; None where the page holds no scale.

    Raises InputError for a page that holds them in several pieces.
    """
    (segment,) = layout.segments(side)
    if len(segment.codes) > 1 or len(segment.scales) > 1:
        raise InputError(f"layout {layout.name} holds {side.upper()} in several pieces; use CPU tensors")
    codes, *scales = (place(region, pages.stride(0), pages.data_ptr()) for region in (*segment.codes, *segment.scales))
    return codes, scales[0] if scales else None


def patterns(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width."""
    return x.view(_PATTERNS[name_of(x.dtype)])


def write(
    layout: Layout,
    x: torch.Tensor,
    side: Side,
    pages: torch.Tensor,
    slots: torch.Tensor,
    recipe: Recipe,
    scale: torch.Tensor | None,
    errors: torch.Tensor,
    *,
    hardware: bool = False,
) -> None:
    """Quantize x (tokens, heads, dims) into the slots of `pages`, uint8 (num_blocks, page_bytes), rows contiguous."""
    num_slots, rows = pages.shape[0] * layout.block_size, x.shape[0] * x.shape[1]
    if not rows:
        return
    codes, scales = places(layout, side, pages)
    geometry = {"BLOCK_SIZE": layout.block_size, "HEADS": x.shape[1], "DIMS": x.shape[2]}
    if recipe.element is None:
        assert layout.dtype is not None
        shape, dtype = Shape.of(x.shape[2], 0), name_of(x.dtype)
        _launch(
            kernels.write_values, rows, shape, (patterns(x), slots, pages, errors, rows, num_slots, *x.stride()),
            DTYPE=dtype, STORED=layout.dtype, NARROW=_narrowing(layout.dtype), PLACE=codes, **geometry,
        )  # fmt: skip
        return
    outer = tensor_scale(x, recipe) if scale is None else scale
    _write(
        x, recipe, outer, (slots, pages, pages, errors, num_slots), (codes, scales), geometry,
        packed=layout.region(side=side).bits == 4, hardware=hardware,
    )  # fmt: skip


def quantize(
    x: torch.Tensor, recipe: Recipe, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (x's shape, uint8 patterns), the scales as `kvformat.quantize` gives them, and the scale of the tensor."""
    tokens, heads, dims = x.shape
    outer = tensor_scale(x, recipe) if scale is None else scale
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    inner, scales, scale_place = recipe.inner, codes, None
    if inner is not None:
        columns = inner.granularity.columns(dims)
        scales = torch.empty(
            (tokens, heads, columns), dtype=torch.float32 if inner.format.is_float else torch.uint8, device=x.device
        )
        scale_place = dense(heads, columns * scales.element_size(), scales.element_size())
    geometry = {"BLOCK_SIZE": 1, "HEADS": heads, "DIMS": dims}
    both = (dense(heads, dims, 1), scale_place)
    into = (None, codes, scales.view(torch.uint8), None, tokens)
    _write(x, recipe, outer, into, both, geometry, packed=False, hardware=False)
    one = torch.ones(1, dtype=torch.float32, device=x.device)
    if inner is None:
        return codes, torch.empty(0, device=x.device) if outer is None else outer.reshape(1), one
    return codes, scales if inner.granularity.dims else scales.reshape(tokens, heads), one if outer is None else outer


def _write(
    x: torch.Tensor,
    recipe: Recipe,
    outer: torch.Tensor | None,
    into: tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None, int],
    places: tuple[Place, Place | None],
    geometry: dict[str, int],
    *,
    packed: bool,
    hardware: bool,
) -> None:
    slots, codes, scales, errors, num_slots = into
    rows, dtype = x.shape[0] * x.shape[1], name_of(x.dtype)
    how: Quantizer = quantizer(recipe, dtype)
    shape = Shape.of(x.shape[2], _group(recipe))
    arguments = (patterns(x), slots, outer, codes, scales, errors, rows, num_slots, *x.stride())
    _launch(
        kernels.write_rows, rows, shape, arguments,
        DTYPE=dtype, HOW=how, CODES=places[0], SCALES=places[1], PACKED=packed, HARDWARE=hardware, **geometry,
    )  # fmt: skip


def gather(
    layout: Layout,
    pages: torch.Tensor,
    side: Side,
    blocks: torch.Tensor,
    tokens: int,
    recipe: Recipe,
    scale: torch.Tensor | None,
    errors: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The first `tokens` tokens of a sequence: (tokens, heads, dims) of `dtype`, dequantized."""
    read = reader(layout, pages, side, recipe)
    out = torch.empty((tokens, layout.num_kv_heads, read.dims), dtype=dtype, device=pages.device)
    _gather(out, (blocks, scale, pages, pages, errors, pages.shape[0]), read, layout.block_size)
    return out


def dequantize(
    codes: torch.Tensor, scales: torch.Tensor, outer: torch.Tensor, recipe: Recipe, dtype: torch.dtype
) -> torch.Tensor:
    """The values of what `quantize` gives, rounded once to `dtype`."""
    tokens, heads, dims = codes.shape
    out = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    inner, scale_place, tensor = recipe.inner, None, outer
    if inner is None:
        tensor = scales
    else:
        scale_place = dense(heads, inner.granularity.columns(dims) * scales.element_size(), scales.element_size())
    into = (None, tensor if recipe.outer else None, codes.view(torch.uint8), scales.view(torch.uint8), None, tokens)
    shape = Shape.of(dims, _group(recipe))
    padded = shape.groups * shape.elements
    how = Reader(dequantizer(recipe), None, dense(heads, dims, 1), scale_place, False, shape.tile, dims, padded)
    _gather(out, into, how, 1)
    return out


def _gather(
    out: torch.Tensor,
    read: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None, int],
    how: Reader,
    block_size: int,
) -> None:
    blocks, outer, codes, scales, errors, num_blocks = read
    rows, name = out.shape[0] * out.shape[1], name_of(out.dtype)
    if not rows:
        return
    _launch(
        kernels.gather_rows, rows, Shape(max(1, _ELEMENTS // how.padded), *how.tile),
        (patterns(out), blocks, outer, codes, scales, errors, rows, num_blocks),
        OUT=name, NARROW=_narrowing(name), STORED=how.stored, HOW=how.how, CODES=how.codes, SCALES=how.scales,
        BLOCK_SIZE=block_size, HEADS=out.shape[1], DIMS=how.dims, PACKED=how.packed,
    )  # fmt: skip


def tensor_scale(x: torch.Tensor, recipe: Recipe) -> torch.Tensor | None:
    """The scale of the whole tensor by the recipe's outer level: float32 (1,), None where the recipe has none."""
    level = outer_level(recipe.for_input(name_of(x.dtype)))
    if level is None:
        return None
    how, rows, shape = scaler(level), x.shape[0] * x.shape[1], Shape.of(x.shape[2], 0)
    count = triton.cdiv(rows, shape.rows)
    partial = torch.empty((count, len(how.reductions)), dtype=torch.float32, device=x.device)
    _launch(
        kernels.reduce_rows, rows, shape, (patterns(x), partial, rows, *x.stride()),
        DTYPE=name_of(x.dtype), HOW=how, HEADS=x.shape[1], DIMS=x.shape[2],
    )  # fmt: skip
    scale = torch.empty(1, dtype=torch.float32, device=x.device)
    start(kernels.scale_tensor, (1,), (partial, scale, count), {"HOW": how, "TILE": 1024})
    return scale


def _launch(kernel: Any, rows: int, shape: Shape, arguments: tuple[Any, ...], **constants: Any) -> None:
    start(kernel, (triton.cdiv(rows, shape.rows),), arguments, {**constants, "ROWS": shape.rows, "TILE": shape.tile})


def _group(recipe: Recipe) -> int:
    return recipe.inner.granularity.dims if recipe.inner else 0


def _narrowing(dtype: str) -> Any:
    return None if dtype == "float32" else narrowing(dtype, "float32")


@dataclass(frozen=True)
class Reader:
    """What a kernel that reads one side of a cache is specialised on."""

    how: Dequantizer | None
    stored: str | None
    codes: Place
    scales: Place | None
    packed: bool
    tile: tuple[int, int]
    #: elements of a row, and those of its tile
    dims: int
    padded: int


def reader(layout: Layout, pages: torch.Tensor, side: Side, recipe: Recipe) -> Reader:
    """One side of a cache as kernels read it. Raises InputError for a recipe that kernels do not know."""
    codes, scales = places(layout, side, pages)
    dims = layout.head_size if side == "k" else layout.head_size_v
    shape = Shape.of(dims, _group(recipe))
    return Reader(
        None if recipe.element is None else dequantizer(recipe),
        layout.dtype,
        codes,
        scales,
        layout.region(side=side).bits == 4,
        shape.tile,
        dims,
        shape.groups * shape.elements,
    )
