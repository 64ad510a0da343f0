"""The steps that instructions are made of: a number for the machine, and how undefined bits pass through.

Every register is 64 bits wide per lane; the bits above a register's own width are zero. A step reads up to four rows
of lanes (a, b, c, g), writes one or two (d, e), and has three constants (x, y, z).
"""

from __future__ import annotations

from dataclasses import dataclass

#: how undefined bits of the sources reach the result.
#: `ALL`: one undefined bit makes every bit of the result undefined. `MOVE1`, `MOVE2`, `MOVE4`: the step moves the bits
#: of its first one, two or four sources, so the same step on their undefined bits tells where they go. `XORS`, `ANDS`,
#: `ORS`: bit by bit; a defined 0 decides an AND, a defined 1 an OR.
ALL, MOVE1, MOVE2, MOVE4, XORS, ANDS, ORS = range(7)

INTEGER, FLOAT, CONVERT, MEMORY, CONTROL, WARP = range(6)


@dataclass(frozen=True)
class Step:
    """One step: its number, the file that runs it, its rule for undefined bits."""

    name: str
    number: int
    family: int
    rule: int


STEPS: list[Step] = []


def _step(name: str, family: int, rule: int = ALL) -> int:
    STEPS.append(Step(name, len(STEPS), family, rule))
    return len(STEPS) - 1


# --- integers: x is the mask of the result's width, y = 64 - width of the operands ----------------------------------
MOV = _step("MOV", INTEGER, MOVE1)  # a & x
ADD = _step("ADD", INTEGER)
SUB = _step("SUB", INTEGER)
MUL = _step("MUL", INTEGER)
MAD = _step("MAD", INTEGER)
AND = _step("AND", INTEGER, ANDS)
OR = _step("OR", INTEGER, ORS)
XOR = _step("XOR", INTEGER, XORS)
NOT = _step("NOT", INTEGER, MOVE1)
CNOT = _step("CNOT", INTEGER)
SEXT = _step("SEXT", INTEGER, MOVE1)  # the sign of 64 - y bits, extended, & x
MINU = _step("MINU", INTEGER)
MAXU = _step("MAXU", INTEGER)
MINS = _step("MINS", INTEGER)
MAXS = _step("MAXS", INTEGER)
SHL = _step("SHL", INTEGER, MOVE1)
SHRU = _step("SHRU", INTEGER, MOVE1)
SHRS = _step("SHRS", INTEGER, MOVE1)
DIVU = _step("DIVU", INTEGER)
DIVS = _step("DIVS", INTEGER)
REMU = _step("REMU", INTEGER)
REMS = _step("REMS", INTEGER)
MULHIU = _step("MULHIU", INTEGER)  # the upper half of a product of 64 - y bits
MULHIS = _step("MULHIS", INTEGER)
MULWIDES = _step("MULWIDES", INTEGER)  # signed operands of 64 - y bits, all bits of the product & x
ADDCC = _step("ADDCC", INTEGER)  # d = a + b + c, e = the carry; of 64 - y bits
SUBCC = _step("SUBCC", INTEGER)  # d = a - b - c, e = the borrow
CMPU = _step("CMPU", INTEGER)  # z: the results for less, equal, greater as bits 0, 1, 2
CMPS = _step("CMPS", INTEGER)
SELP = _step("SELP", INTEGER, MOVE2)  # a if c else b
PRMT = _step("PRMT", INTEGER, MOVE2)
BFEU = _step("BFEU", INTEGER, MOVE1)
BFES = _step("BFES", INTEGER, MOVE1)
BFI = _step("BFI", INTEGER, MOVE2)
BFIND = _step("BFIND", INTEGER)  # of an unsigned number; z: the shift that brings the bit to the top instead
BREV = _step("BREV", INTEGER, MOVE1)
CLZ = _step("CLZ", INTEGER)
POPC = _step("POPC", INTEGER)
SHFL = _step("SHFL", INTEGER, MOVE2)  # funnel shift to the left of b:a by c; z: 1 clamps c at 32, 0 wraps it
SHFR = _step("SHFR", INTEGER, MOVE2)
LOP3 = _step("LOP3", INTEGER, XORS)  # z: the table
COPYSIGN = _step("COPYSIGN", INTEGER, MOVE2)  # a's sign on b's magnitude; z: the sign bit
PACK = _step("PACK", INTEGER, MOVE4)  # a | b << y | c << 2y | g << 3y
PART = _step("PART", INTEGER, MOVE1)  # (a >> y) & x

# --- floats: bit patterns of binary32 (F) or binary64 (D), rounded to nearest even ------------------------------------
FADD = _step("FADD", FLOAT)
FSUB = _step("FSUB", FLOAT)
FMUL = _step("FMUL", FLOAT)
FFMA = _step("FFMA", FLOAT)
FDIV = _step("FDIV", FLOAT)
FDIVAPPROX = _step("FDIVAPPROX", FLOAT)  # div.approx: 0 for a divisor above 2^126
FSQRT = _step("FSQRT", FLOAT)
FMIN = _step("FMIN", FLOAT)  # z: 1 NaN wins, 2 xorsign.abs, 4 abs
FMAX = _step("FMAX", FLOAT)
FCMP = _step("FCMP", FLOAT)  # z: the results for less, equal, greater, unordered as bits 0 to 3
FLUSH = _step("FLUSH", FLOAT)  # a subnormal becomes a zero of its sign
FSAT = _step("FSAT", FLOAT)  # to 0 .. 1, NaN to +0
FRELU = _step("FRELU", FLOAT)  # negatives to +0, NaN to the canonical NaN
FCANON = _step("FCANON", FLOAT)  # a NaN becomes 0x7FFFFFFF
FULPS = _step("FULPS", FLOAT)  # y places in the order of values further; zeros, Inf and NaN stay
FAPPROX = _step("FAPPROX", FLOAT)  # z: the function, y: 0 nearest, 1 lowest, 2 highest; x: the bound, a binary64
DADD = _step("DADD", FLOAT)
DSUB = _step("DSUB", FLOAT)
DMUL = _step("DMUL", FLOAT)
DFMA = _step("DFMA", FLOAT)
DDIV = _step("DDIV", FLOAT)
DSQRT = _step("DSQRT", FLOAT)
DMIN = _step("DMIN", FLOAT)
DMAX = _step("DMAX", FLOAT)
DCMP = _step("DCMP", FLOAT)
DADDODD = _step("DADDODD", FLOAT)  # rounded to odd: a later rounding to fewer bits is then the only one
DFMAODD = _step("DFMAODD", FLOAT)
DSAT = _step("DSAT", FLOAT)
CLASSF = _step("CLASSF", FLOAT)  # testp on binary32; z: the classes that hold
CLASSD = _step("CLASSD", FLOAT)

# --- conversions: between binary64 (the wide form), other floats, integers and codes --------------------------------
WIDE32 = _step("WIDE32", CONVERT)
WIDE16 = _step("WIDE16", CONVERT)
WIDEB16 = _step("WIDEB16", CONVERT)
TO32 = _step("TO32", CONVERT)  # y: the rounding; z: 1 overflow and Inf to the largest finite number
TO16 = _step("TO16", CONVERT)
TOB16 = _step("TOB16", CONVERT)
TOINT = _step("TOINT", CONVERT)  # binary64 to an integer; y: rounding, x: mask, z: signed | (NaN to 0) << 1
INTEGRAL = _step("INTEGRAL", CONVERT)  # binary64 rounded to an integer, still binary64
FROMINT32 = _step("FROMINT32", CONVERT)  # integer of 64 bits, z: signed, to binary32, nearest even
FROMINT64 = _step("FROMINT64", CONVERT)  # to binary64, nearest even
FROMINTODD = _step("FROMINTODD", CONVERT)  # to binary64, to odd
FROM16 = _step("FROM16", CONVERT)  # straight to binary32
FROMB16 = _step("FROMB16", CONVERT)
#: PTX's name of a pair of codes -> the element format
CODES = {
    "e4m3x2": "e4m3fn",
    "e5m2x2": "e5m2",
    "e2m1x2": "e2m1fn",
    "e2m3x2": "e2m3fn",
    "e3m2x2": "e3m2fn",
    "ue8m0x2": "e8m0fnu",
}
#: (PTX's name, rounding) -> the step from binary32 to a code
ENCODE = {
    (name, how): _step(f"ENCODE_{name}_{how}", CONVERT)
    for name in CODES
    for how in (("rz", "rp") if name == "ue8m0x2" else ("rn",))
}
DECODE = _step("DECODE", CONVERT)  # a code to binary32; z: the place of its format in CODES

# --- memory, control, warps: run by the machine --------------------------------------------------------------------
LD = _step("LD", MEMORY)
ST = _step("ST", MEMORY)
ATOM = _step("ATOM", MEMORY)
BRA = _step("BRA", CONTROL)
RET = _step("RET", CONTROL)
TRAP = _step("TRAP", CONTROL)
BAR = _step("BAR", CONTROL)
NOP = _step("NOP", CONTROL)
SHFLSYNC = _step("SHFLSYNC", WARP)
REDUX = _step("REDUX", WARP)
VOTE = _step("VOTE", WARP)
WARPSYNC = _step("WARPSYNC", WARP)
LDMATRIX = _step("LDMATRIX", WARP)
STMATRIX = _step("STMATRIX", WARP)

#: roundings of TO32, TOINT, ...: nearest even, toward zero, down, up
RN, RZ, RM, RP = range(4)
#: functions of FAPPROX
EX2, LG2, SIN, COS, TANH, RSQRT = range(6)
