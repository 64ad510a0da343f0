"""Each instruction by the ISA: vectors made by hand, and NumPy or exact fractions on random patterns."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from kvformat import InputError, ptx
from kvformat.ptx.table import table

NAN, INF = 0x7FFF_FFFF, 0x7F80_0000


def f32(value):
    return int(np.float32(value).view(np.uint32))


def one(opcode, *operands, **options):
    """The result of one instruction on one lane; floats are binary32."""
    arrays = []
    for each in operands:
        if isinstance(each, np.ndarray):
            arrays.append(each)
        elif isinstance(each, float):
            arrays.append(np.array([f32(each)], np.uint32))
        else:
            arrays.append(np.array([each], np.uint64))
    return int(ptx.evaluate(opcode, arrays, **options)[0])


#: (opcode, operands, result); * confirmed by ptxas' constant folder, the others by the ISA's text
VECTORS = [
    ("cvt.rn.satfinite.e2m1x2.f32", (2.5, NAN), 0x47),
    ("cvt.rn.satfinite.e2m1x2.f32", (-0.25, 0.75), 0x82),
    ("cvt.rn.satfinite.e4m3x2.f32", (0xFFFF_FFFF, -np.inf), 0x7FFE),
    ("cvt.rn.satfinite.e4m3x2.f32", (2.0**-10, 3 * 2.0**-10), 0x0002),
    ("cvt.rn.satfinite.e5m2x2.f32", (np.inf, -61440.0), 0x7BFB),
    ("min.xorsign.abs.f32", (NAN, 448.0), f32(448)),
    ("min.xorsign.abs.f32", (0xFFFF_FFFF, 448.0), f32(-448)),
    ("max.f32", (NAN, -448.0), f32(-448)),  # *
    ("max.f32", (0xFFC0_0000, 0x7FC0_0000), NAN),
    ("max.NaN.f32", (NAN, 1.0), NAN),  # *
    ("min.f32", (0.0, -0.0), 0x8000_0000),  # *
    ("max.f32", (-0.0, 0.0), 0),  # *
    ("rcp.approx.ftz.f32", (0x8000_0001,), 0xFF80_0000),  # *
    ("rcp.approx.ftz.f32", (6.0,), 0x3E2A_AAAB),  # *
    ("fma.rn.f32", (0x3F80_0001, 0x3F80_0001, 0xBF80_0002), 0x2880_0000),
    ("prmt.b32", (0x8012_3456, 0, 0x7FB3), 0x0000_FF80),
    ("bfi.b32", (0xABCD_EF01, 0, 28, 8), 0x1000_0000),  # *
    ("div.approx.ftz.f32", (1e38, 1.5e38), 0),  # *
    ("div.approx.f32", (np.inf, 1.5e38), NAN),
    ("ex2.approx.f32", (-10.0,), 0x3A80_0000),  # *
    ("shl.b32", (1, 32), 0),  # *
    ("shr.s32", (0x8000_0000, 40), 0xFFFF_FFFF),  # *
    ("shr.u32", (0x8000_0000, 32), 0),
    ("mul.f32", (NAN, 1.0), NAN),
    ("add.f32", (np.inf, -np.inf), NAN),
    ("add.f32", (0xFFC0_1234, 1.0), NAN),
    ("neg.f32", (0x7FC0_1234,), 0xFFC0_1234),  # *
    ("abs.f32", (0xFFC0_1234,), 0x7FC0_1234),
    ("add.ftz.f32", (0x8000_0001, -0.0), 0x8000_0000),
    ("mul.ftz.f32", (2.0**-100, 2.0**-40), 0),
    ("mul.f32", (2.0**-100, 2.0**-40), 1 << 9),
    ("setp.eq.f32", (NAN, NAN), 0),  # *
    ("setp.ne.f32", (NAN, 1.0), 0),  # *
    ("setp.neu.f32", (NAN, 1.0), 1),
    ("setp.ltu.f32", (NAN, 1.0), 1),
    ("setp.eq.ftz.f32", (1, 0x8000_0000), 1),
    ("cvt.rpi.f32.f32", (-0.5,), 0x8000_0000),  # *
    ("cvt.rn.bf16.f32", (0xFFC0_1234,), 0x7FFF),  # *
    ("cvt.rn.f16.f32", (0xFF80_0001,), 0x7FFF),  # *
    ("cvt.rzi.s32.f32", (NAN,), 0),
    ("cvt.rzi.s32.f32", (3e9,), 0x7FFF_FFFF),
    ("cvt.rzi.u32.f32", (-1.0,), 0),
    ("cvt.rzi.s64.f32", (NAN,), 1 << 63),
    ("cvt.rni.s32.f32", (2.5,), 2),
    ("cvt.rn.satfinite.relu.e4m3x2.f32", (-1.0, 1.0), 0x0038),
    ("cvt.rp.satfinite.ue8m0x2.f32", (1.5, 1.0), 0x807F),
    ("cvt.rz.satfinite.ue8m0x2.f32", (1.5, 1.0), 0x7F7F),
    ("cvt.rn.f16x2.e2m1x2", (0x71,), 0x4600_3800),
    ("cvt.rn.satfinite.e2m3x2.f32", (-7.6, NAN), 0x3F1F),
    ("cvt.rn.satfinite.e2m3x2.f32", (0.1875, -0.0625), 0x0220),  # both a tie, of 1 and 2 and of 0 and 1 eighths
    ("cvt.rn.satfinite.e3m2x2.f32", (-np.inf, 0.09375), 0x3F02),  # a tie of 1 and 2 sixteenths
    ("cvt.rn.f16x2.e2m3x2", (0x3F01,), 0xC780_3000),  # -7.5 and 1/8
    ("cvt.rn.f16x2.e3m2x2", (0x1F21,), 0x4F00_AC00),  # 28 and -1/16
    ("bfe.u32", (0xABCD_1234, 4, 8), 0x23),
    ("bfe.s32", (0x0000_0080, 4, 4), 0xFFFF_FFF8),
    ("bfe.s32", (0x8000_0000, 28, 8), 0xFFFF_FFF8),
    ("bfind.u32", (0,), 0xFFFF_FFFF),
    ("clz.b32", (1,), 31),
    ("popc.b64", (0xFFFF_0000_0000_0001,), 17),
    ("brev.b32", (1,), 0x8000_0000),
    ("copysign.f32", (-0.0, 3.0), f32(-3.0)),
    ("mul.hi.s32", (0xFFFF_FFFF, 0xFFFF_FFFF), 0),
    ("mul.wide.s16", (0xFFFF, 2), 0xFFFF_FFFE),
    ("div.s32", (0xFFFF_FFF9, 2), 0xFFFF_FFFD),
    ("rem.s32", (0xFFFF_FFF9, 2), 0xFFFF_FFFF),
    ("add.sat.s32", (0x7FFF_FFFF, 1), 0x7FFF_FFFF),
    ("min.xorsign.abs.f16", (0xFE00, 0x3C00), 0xBC00),  # the sign of the NaN that gives way
    ("max.xorsign.abs.bf16x2", (0xFFC0_3F80, 0x3F80_FFC0), 0xBF80_BF80),
    ("max.NaN.bf16x2", (0x7FC1_3F80, 0x3F80_4000), 0x7FFF_4000),
    ("max.bf16x2", (0x7FC1_3F80, 0x3F80_4000), 0x3F80_4000),
    ("fma.rn.relu.bf16x2", (0x3F80_3F80, 0xBF80_3F80, 0), 0x0000_3F80),
]


@pytest.mark.parametrize(("opcode", "operands", "result"), VECTORS)
def test_an_instruction_gives_what_the_isa_says(opcode, operands, result):
    assert hex(one(opcode, *operands)) == hex(result)


@pytest.mark.parametrize(
    "opcode",
    ["add.rs.f32", "add.sat.u32", "cvt.rs.satfinite.e2m1x4.f32", "mul.lo.f32", "wgmma.mma_async", "cvt.rn.e4m3x2.f32",
     "min.xorsign.f32", "fma.f32", "lop3.or.b32"],
)  # fmt: skip
def test_a_word_that_the_table_lacks_is_refused(opcode):
    with pytest.raises(ptx.Refused, match=opcode.replace(".", r"\.")):
        ptx.evaluate(opcode, [np.zeros(1, np.uint32)] * 2)


def test_a_wrong_count_of_operands_is_refused():
    with pytest.raises(ptx.Refused, match="takes 3 operands, has 2"):
        ptx.evaluate("add.s32", [np.zeros(1, np.uint32)])
    with pytest.raises(InputError, match="one length"):
        ptx.evaluate("add.s32", [np.zeros(1, np.uint32), np.zeros(2, np.uint32)])


SPECIALS = np.array(
    [0, 1, 0x7F_FFFF, 0x80_0000, 0x3F80_0000, 0x3F80_0001, 0x3F00_0000, 0x4B80_0001, 0x7F7F_FFFF, INF, NAN, NAN - 99],
    np.uint32,
)


@pytest.fixture(scope="module")
def patterns():
    """Pairs of binary32 patterns: every special with every other, both signs, and random ones."""
    both = np.concatenate([SPECIALS, SPECIALS | np.uint32(1 << 31)])
    a, b = (each.ravel() for each in np.meshgrid(both, both))
    random = np.random.default_rng(0).integers(0, 2**32, (2, 20_000), np.uint32)
    near = (random[0] & 0x00FF_FFFF) | 0x3F00_0000  # exponents close to each other: ties and cancellation
    return np.concatenate([a, random[0], near]), np.concatenate([b, random[1], near[::-1] ^ random[1] & (1 << 31)])


def canonical(value):
    bits = value.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(value), np.uint32(NAN), bits)


@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_binary32_arithmetic_is_ieee_and_flushes_where_it_says(opcode, ftz, patterns):
    a, b = (each.view(np.float32) for each in patterns)

    def flushed(x):
        return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x) if ftz else x

    apply = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[opcode]
    with np.errstate(all="ignore"):
        wanted = canonical(flushed(apply(flushed(a), flushed(b))))
    assert np.array_equal(ptx.evaluate(f"{opcode}.rn{ftz}.f32", patterns), wanted)


def nearest(value, rounding, mantissa, low, high):
    """A fraction rounded to a binary format by its definition: (magnitude as a Fraction, or None for Inf)."""
    size, sign = abs(value), value < 0
    exponent = low
    while exponent < high and size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - mantissa)
    whole, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1), "rz": False,
        "rm": sign and rest > 0, "rp": not sign and rest > 0,
    }[rounding]  # fmt: skip
    result = (whole + up) * unit
    return (None if result >= Fraction(2) ** (high + 1) else result), sign


def as_bits(result, sign, rounding):
    if result is None:
        away = rounding == "rn" or (rounding == "rm" and sign) or (rounding == "rp" and not sign)
        magnitude = INF if away else 0x7F7F_FFFF
    else:
        magnitude = int(np.float32(float(result)).view(np.uint32))
    return magnitude | (1 << 31 if sign else 0)


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("opcode", ["add", "mul", "fma", "div"])
def test_every_rounding_of_binary32_is_the_exact_result_rounded_once(opcode, rounding):
    rng = np.random.default_rng(1)
    a, b, c = rng.integers(0, 2**32, (3, 300), np.uint32)
    b[:150] = (a[:150] & 0xFF80_0000) | (b[:150] & 0x007F_FFFF)
    c[:100] = a[:100] ^ np.uint32(1 << 31)
    keep = [x for x in range(300) if all((int(v[x]) >> 23) & 255 not in (0, 255) for v in (a, b, c))]
    operands = [v[keep] for v in ((a, b, c) if opcode == "fma" else (a, b))]
    found = ptx.evaluate(f"{opcode}.{rounding}.f32", operands)
    for lane, bits in enumerate(found):
        p, *rest = (Fraction(float(v.view(np.float32)[lane])) for v in operands)
        value = {"add": lambda p, q: p + q, "mul": lambda p, q: p * q, "div": lambda p, q: p / q,
                 "fma": lambda p, q, r: p * q + r}[opcode](p, *rest)  # fmt: skip
        if value == 0:
            continue
        assert int(bits) == as_bits(*nearest(value, rounding, 23, -126, 127), rounding), lane


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_every_half_becomes_its_binary32_and_comes_back(name, dtype):
    codes = np.arange(2**16, dtype=np.uint16)
    wide = codes.view(dtype).astype(np.float32)
    assert np.array_equal(ptx.evaluate(f"cvt.f32.{name}", [codes]), canonical(wide))
    back = np.where(np.isnan(wide), np.uint16(0x7FFF), codes)
    assert np.array_equal(ptx.evaluate(f"cvt.rn.{name}.f32", [wide.view(np.uint32)]), back)


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_binary32_is_rounded_to_halves_to_nearest_even(name, dtype, patterns):
    x = patterns[0].view(np.float32)
    with np.errstate(all="ignore"):
        wanted = x.astype(dtype).view(np.uint16)
    wanted = np.where(np.isnan(x), np.uint16(0x7FFF), wanted)
    assert np.array_equal(ptx.evaluate(f"cvt.rn.{name}.f32", [patterns[0]]), wanted)


@pytest.mark.parametrize("rounding", ["rz", "rm", "rp"])
def test_the_next_half_in_a_direction_is_never_on_the_wrong_side(rounding, patterns):
    x = patterns[0].view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) < 65504)]
    y = ptx.evaluate(f"cvt.{rounding}.f16.f32", [x.view(np.uint32)]).view(np.float16)
    wide = y.astype(np.float32)
    size, limit = np.abs(wide), np.abs(x)
    assert {"rz": size <= limit, "rm": wide <= x, "rp": wide >= x}[rounding].all()
    beyond = np.nextafter(y, {"rz": np.copysign(np.float16(np.inf), y), "rm": np.float16(np.inf),
                              "rp": np.float16(-np.inf)}[rounding]).astype(np.float32)  # fmt: skip
    exact = wide == x
    assert (exact | {"rz": np.abs(beyond) > limit, "rm": beyond > x, "rp": beyond < x}[rounding]).all()


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "u16", "s16"])
def test_integer_arithmetic_wraps_at_its_width(kind):
    signed, bits = kind[0] == "s", int(kind[1:])
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 2**bits, 2000, np.uint64, endpoint=False) if bits < 64 else
            rng.integers(0, 2**64 - 1, 2000, np.uint64) for _ in range(2))  # fmt: skip
    b[b == 0] = 1
    p, q = ([int(v) - (1 << bits if signed and int(v) >> (bits - 1) else 0) for v in x] for x in (a, b))
    mask = (1 << bits) - 1

    def trunc(n, d):
        return abs(n) // abs(d) * (1 if (n < 0) == (d < 0) else -1)

    for opcode, exact in {
        "add": lambda n, d: n + d, "sub": lambda n, d: n - d, "mul.lo": lambda n, d: n * d,
        "mul.hi": lambda n, d: n * d >> bits, "div": trunc, "rem": lambda n, d: n - d * trunc(n, d), "min": min,
        "max": max,
    }.items():  # fmt: skip
        found = ptx.evaluate(f"{opcode}.{kind}", [a, b])
        assert [int(v) for v in found] == [exact(n, d) & mask for n, d in zip(p, q, strict=True)], opcode


@pytest.mark.parametrize("policy", ["lowest", "highest"])
def test_an_approximate_quotient_stays_within_its_bound_and_on_its_side(policy, patterns):
    a, b = (each[np.isfinite(each.view(np.float32))][:4000] for each in patterns)
    n = min(a.size, b.size)
    a, b = a[:n], b[:n]
    found = ptx.evaluate("div.full.f32", [a, b], approximate=policy)
    with np.errstate(all="ignore"):
        exact = a.view(np.float32) / b.view(np.float32)
    normal = (np.abs(exact) > 2.0**-120) & (np.abs(exact) < 2.0**120)
    moved = (places(found) - places(exact.view(np.uint32)))[normal]
    assert (moved == (-2 if policy == "lowest" else 2)).all()
    kept = ~np.isfinite(exact) | (exact == 0)
    assert np.array_equal(found[kept], canonical(exact[kept]))


def places(bits):
    """Patterns as integers in the order of their values."""
    signed = bits.astype(np.int64)
    return np.where(signed >> 31, -(signed & 0x7FFF_FFFF), signed)


def test_a_quotient_by_a_constant_is_what_ptxas_makes_of_it(patterns):
    a = patterns[0]
    found = ptx.evaluate("div.full.f32", [a, f32(448.0)])
    with np.errstate(all="ignore"):
        wanted = canonical(a.view(np.float32) * np.uint32(0x3B12_4925).view(np.float32))
    assert np.array_equal(found, wanted)


def test_every_entry_names_its_section():
    for entries in table().entries.values():
        for entry in entries:
            assert entry.section
            assert entry.types
