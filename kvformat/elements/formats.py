"""The element formats as data: one entry each, from the numbers of its own specification."""

from __future__ import annotations

from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvformat.elements.element import ElementFormat, Negatives, Overflow, Rounding
from kvformat.errors import InputError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BINARIES",
    "ELEMENTS",
    "ElementFormat",
    "Overflow",
    "Rounding",
    "codebook",
    "element",
    "floating",
    "integer",
]


def floating(
    name: str,
    exponent_bits: int,
    mantissa_bits: int,
    *,
    bias: int,
    max_code: int,
    nan_codes: Sequence[int] = (),
    nan_input_code: int,
    inf_codes: Sequence[int] = (),
    overflow_code: int | None = None,
    negatives: Negatives = "kept",
    has_negative_zero: bool | None = None,
    source: str,
    purpose: str = "",
) -> ElementFormat:
    """A float by its fields: sign (where it keeps one), exponent, mantissa; subnormals where the exponent field is 0.

    overflow_code: what overflow gives under `ieee`; None: it saturates as well.
    """
    signed = negatives == "kept"
    return ElementFormat(
        name=name,
        kind="float",
        bits=int(signed) + exponent_bits + mantissa_bits,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
        max_code=max_code,
        nan_codes=tuple(nan_codes),
        nan_input_code=nan_input_code,
        inf_codes=tuple(inf_codes),
        overflow_code=max_code if overflow_code is None else overflow_code,
        has_negative_zero=signed if has_negative_zero is None else has_negative_zero,
        roundings=("nearest_even",),
        rounding_required=False,
        source=source,
        negatives=negatives,
        purpose=purpose,
    )


def integer(bits: int, *, signed: bool, name: str = "", source: str = "", purpose: str = "") -> ElementFormat:
    """An integer of that many bits, two's complement or unsigned; saturates, a NaN becomes 0."""
    magnitude_bits = bits - signed
    return ElementFormat(
        name=name or f"{'int' if signed else 'uint'}{bits}",
        kind="integer",
        bits=bits,
        exponent_bits=0,
        mantissa_bits=magnitude_bits,
        bias=1 - magnitude_bits,  # only "subnormals", 1 apart: 2^(1 - bias - mantissa_bits) = 1
        max_code=(1 << magnitude_bits) - 1,
        nan_codes=(),
        nan_input_code=0,
        inf_codes=(),
        overflow_code=(1 << magnitude_bits) - 1,
        has_negative_zero=False,
        roundings=("nearest_even",),
        rounding_required=False,
        source=source or ("two's complement" if signed else "unsigned binary"),
        negatives="kept" if signed else "lowest",
        purpose=purpose,
    )


def codebook(
    name: str,
    table: Sequence[float],
    *,
    ties: Rounding,
    bits: int | None = None,
    nan_input_code: int = 0,
    source: str,
    purpose: str = "",
) -> ElementFormat:
    """A table of values, ascending, each a float32: code i stands for table[i], a number takes the nearest one.

    ties: `nearest_up` or `nearest_down` (the larger or the smaller value), `nearest_even` (the even code),
    `nearest_away` or `nearest_toward_zero`. bits: of a code; None: as many as the table needs. Raises InputError.
    """
    values = tuple(float(value) + 0.0 for value in table)  # a table has one zero, without sign
    width = max(1, (len(values) - 1).bit_length()) if bits is None else bits
    _check_table(name, values, width)
    if not 0 <= nan_input_code < len(values):
        raise InputError(f"{name}: a NaN becomes one of codes 0..{len(values) - 1}; got {nan_input_code}")
    return ElementFormat(
        name=name,
        kind="codebook",
        bits=width,
        exponent_bits=0,
        mantissa_bits=width,
        bias=0,
        max_code=len(values) - 1,
        nan_codes=tuple(range(len(values), 1 << width)),
        nan_input_code=nan_input_code,
        inf_codes=(),
        overflow_code=len(values) - 1,
        has_negative_zero=False,
        roundings=(ties,),
        rounding_required=False,
        source=source,
        table=values,
        purpose=purpose,
    )


def _check_table(name: str, values: tuple[float, ...], bits: int) -> None:
    import numpy as np

    if not 1 <= bits <= 8:
        raise InputError(f"{name}: a code has 1 to 8 bits; got {bits}")
    if not 2 <= len(values) <= 1 << bits:
        raise InputError(f"{name}: a table of {bits}-bit codes has 2 to {1 << bits} values; got {len(values)}")
    with np.errstate(over="ignore"):
        exact = [float(np.float32(value)) == value and abs(value) != float("inf") for value in values]
    if not all(exact):
        raise InputError(f"{name}: values of a table are finite float32 numbers; got {values[exact.index(False)]!r}")
    unsorted = next((i for i, (a, b) in enumerate(pairwise(values)) if not a < b), None)
    if unsorted is not None:
        pair = f"{values[unsorted]:g} before {values[unsorted + 1]:g}"
        raise InputError(f"{name}: the values of a table ascend; got {pair}")


_OCP = "OCP OFP8 1.0, tables 1 and 2"
_FNUZ = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks (arXiv 2206.02915); AMD CDNA3 ISA"
_MX = "OCP Microscaling Formats (MX) 1.0, section 5.3"
_PTX_NAN = "a NaN becomes +max: PTX ISA, cvt"

_FORMATS = (
    floating(
        "e4m3fn",
        4,
        3,
        bias=7,
        max_code=0b0_1111_110,  # 448
        nan_codes=(0b0_1111_111, 0b1_1111_111),
        nan_input_code=0b0_1111_111,
        overflow_code=0b0_1111_111,  # no Inf: overflow is NaN
        source=_OCP,
        purpose="The 8-bit float of FP8 K and V, and the format of NVFP4's block scales. It trades range for "
        "precision: no Inf, one NaN for each sign, and the exponent field of all ones holds numbers up to 448.",
    ),
    floating(
        "e5m2",
        5,
        2,
        bias=15,
        max_code=0b0_11110_11,  # 57344
        nan_codes=(0b0_11111_01, 0b0_11111_10, 0b0_11111_11, 0b1_11111_01, 0b1_11111_10, 0b1_11111_11),
        nan_input_code=0b0_11111_11,
        inf_codes=(0b0_11111_00, 0b1_11111_00),
        overflow_code=0b0_11111_00,
        source=_OCP,
        purpose="The 8-bit float with the range of float16: the upper byte of a float16, with its Inf and its NaNs.",
    ),
    floating(
        "e4m3fnuz",
        4,
        3,
        bias=8,
        max_code=0b0_1111_111,  # 240
        nan_codes=(0b1_0000_000,),
        nan_input_code=0b1_0000_000,
        overflow_code=0b1_0000_000,
        has_negative_zero=False,
        source=_FNUZ,
        purpose="The 8-bit float of AMD's CDNA3: as e4m3fn with the bias one higher, one NaN in all, and no -0.",
    ),
    floating(
        "e5m2fnuz",
        5,
        2,
        bias=16,
        max_code=0b0_11111_11,  # 57344
        nan_codes=(0b1_00000_00,),
        nan_input_code=0b1_00000_00,
        overflow_code=0b1_00000_00,
        has_negative_zero=False,
        source=_FNUZ,
        purpose="The wide 8-bit float of AMD's CDNA3: as e5m2 with the bias one higher, no Inf, one NaN in all, and "
        "no -0.",
    ),
    floating(
        "e2m1fn",
        2,
        1,
        bias=1,
        max_code=0b0_11_1,  # 6
        nan_input_code=0b0_11_1,  # +6: PTX ISA, cvt.rn.satfinite.e2m1x2
        source=_MX,
        purpose="The 4-bit float of NVFP4 and of the OCP MX formats: eight magnitudes, 0 to 6, and nothing else.",
    ),
    ElementFormat(
        name="e8m0fnu",
        kind="exponent",
        bits=8,
        exponent_bits=8,
        mantissa_bits=0,
        bias=127,
        max_code=0b11111110,  # 2^127
        nan_codes=(0b11111111,),
        nan_input_code=0b11111111,
        inf_codes=(),
        overflow_code=0b11111111,
        has_negative_zero=False,
        roundings=("nearest_even", "up", "down"),
        rounding_required=True,
        source=_MX,
        negatives="magnitude",
        purpose="A scale that is a power of two: the exponent byte of a float32, without sign and mantissa. "
        "OCP MX blocks are scaled with it.",
    ),
    integer(8, signed=True, purpose="The integers of INT8 K and V."),
    integer(
        4,
        signed=True,
        purpose="The integers of 4-bit integer caches. Unpacked codes are int8, one per byte.",
    ),
    floating(
        "e4m3",
        4,
        3,
        bias=7,
        max_code=0b0_1110_111,  # 240
        nan_codes=(*range(0b0_1111_001, 0b1_0000_000), *range(0b1_1111_001, 0b1_0000_0000)),
        nan_input_code=0b0_1111_100,  # the quiet NaN without payload, as ml_dtypes casts
        inf_codes=(0b0_1111_000, 0b1_1111_000),
        overflow_code=0b0_1111_000,
        source="IEEE 754-2019 section 3.4 with these field widths; ml_dtypes float8_e4m3",
        purpose="An 8-bit float with the fields of e4m3fn and the specials of IEEE 754: Inf, NaNs, and 240 as the "
        "largest number.",
    ),
    floating(
        "e4b15",
        4,
        3,
        bias=15,
        max_code=0b0_1111_111,  # 1.875
        nan_input_code=0b0_1111_111,
        source="Triton 3.9, fp8e4b15 (triton/language/extra/cuda/utils.py)",
        purpose="Triton's 8-bit float for GPUs before sm_89: the fields of e4m3fn with bias 15, so that its bits are "
        "those of a float16 below 2; no Inf, no NaN. Triton's own conversion clamps to 1.75 and sends ties away from "
        "zero; this format is the set of its values, and rounds as all formats here do.",
    ),
    floating(
        "ue5m3",
        5,
        3,
        bias=15,
        max_code=0b11111_110,  # 114688
        nan_codes=(0b11111_111,),
        nan_input_code=0b11111_111,
        overflow_code=0b11111_111,
        negatives="lowest",
        source="e5m3 without sign, the NaN of all ones as in e4m3fn",
        purpose="An 8-bit float without sign, for block scales: the range of e5m2 with one more bit of mantissa.",
    ),
    floating(
        "ue4m3",
        4,
        3,
        bias=7,
        max_code=0b1111_110,  # 448
        nan_codes=(0b1111_111,),
        nan_input_code=0b1111_111,
        overflow_code=0b1111_111,
        negatives="lowest",
        source="PTX ISA, ue4m3 of the block-scaled mma: e4m3fn without its sign",
        purpose="e4m3fn without its sign, 7 bits, for block scales: where it lies in a byte of its own, the top bit "
        "is 0 and the byte is that of e4m3fn.",
    ),
    floating(
        "e2m3fn",
        2,
        3,
        bias=1,
        max_code=0b0_11_111,  # 7.5
        nan_input_code=0b0_11_111,
        source=f"{_MX}; {_PTX_NAN}",
        purpose="The 6-bit float of the OCP MX formats with more precision: 0 to 7.5, no Inf, no NaN.",
    ),
    floating(
        "e3m2fn",
        3,
        2,
        bias=3,
        max_code=0b0_111_11,  # 28
        nan_input_code=0b0_111_11,
        source=f"{_MX}; {_PTX_NAN}",
        purpose="The 6-bit float of the OCP MX formats with more range: 0 to 28, no Inf, no NaN.",
    ),
    codebook(
        "iq4_nl",
        (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
        ties="nearest_up",
        nan_input_code=15,  # every comparison with a NaN fails, so the search ends at the last value
        source="ggml 0.25.3, kvalues_iq4nl (ggml-common.h) and best_index_int8 (ggml-quants.c)",
        purpose="The 16 values of llama.cpp's iq4_nl: denser around zero, with no zero among them.",
    ),
    *(
        integer(bits, signed=signed, purpose=f"The {'signed' if signed else 'unsigned'} integers of {bits} bits.")
        for signed in (True, False)
        for bits in range(1, 9)
        if not (signed and bits in (4, 8))
    ),
)


def _binary(name: str, exponent_bits: int, mantissa_bits: int) -> ElementFormat:
    top = ((1 << exponent_bits) - 1) << mantissa_bits  # exponent field of Inf and NaN
    sign = 1 << (exponent_bits + mantissa_bits)
    payloads = range(1, 1 << mantissa_bits)
    return floating(
        name,
        exponent_bits,
        mantissa_bits,
        bias=(1 << (exponent_bits - 1)) - 1,
        max_code=top - 1,
        nan_codes=tuple(s + top + payload for s in (0, sign) for payload in payloads),
        nan_input_code=top + (1 << (mantissa_bits - 1)),
        inf_codes=(top, sign + top),
        overflow_code=top,
        source="IEEE 754-2019 section 3.4" if name == "float16" else "the upper half of IEEE binary32",
    )


#: binary formats that arithmetic may round through on its way; caches of mode none hold them, no codes do
BINARIES: Mapping[str, ElementFormat] = MappingProxyType(
    {"float16": _binary("float16", 5, 10), "bfloat16": _binary("bfloat16", 8, 7)}
)

_known = {fmt.name: fmt for fmt in _FORMATS}
#: every element format by name; `define` adds to it
ELEMENTS: Mapping[str, ElementFormat] = MappingProxyType(_known)
#: the names that come with the package: nobody else's
_OWN = frozenset((*_known, *BINARIES, "float32", "float64", "input"))


def define(fmt: ElementFormat) -> ElementFormat:
    """Make a format known by its name, until the program ends. Raises InputError for a name of the catalogue."""
    if fmt.name in _OWN:
        raise InputError(f"{fmt.name!r} is a format of kvformat's own; choose another name")
    _known[fmt.name] = fmt
    return fmt


def defined() -> dict[str, ElementFormat]:
    """Where `define` keeps formats: for `kvformat.register`, which takes back a file that does not hold."""
    return _known


def element(name: str | ElementFormat) -> ElementFormat:
    """The element format of that name. Raises InputError, naming the close names, for an unknown one."""
    if isinstance(name, ElementFormat):
        return name
    if name not in ELEMENTS:
        raise unknown_name("element format", name, ELEMENTS)
    return ELEMENTS[name]
