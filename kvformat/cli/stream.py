"""kvformat stream: the codecs and quantizers as a filter: bit patterns in hex in, bit patterns in hex out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import HOLDS
from kvformat.errors import InputError, unknown_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvformat.recipes.program import Recipe
    from kvformat.recipes.quantizer import Quantized

app = typer.Typer(
    help="One line of hex bit patterns in, one line out, until the input ends: encode, decode, quantize.",
    no_args_is_help=False,
    invoke_without_command=True,
)

#: bytes taken from stdin at once. What has arrived is answered at once: a program that waits for each answer gets it
_CHUNK = 1 << 16
_DIGITS = frozenset(b"0123456789abcdefABCDEF")

Answer = Callable[[Sequence[tuple[int, bytes]]], list[str]]


@app.callback()
def without_a_verb(context: typer.Context) -> int:
    """One line of hex bit patterns in, one line out, until the input ends: encode, decode, quantize."""
    if context.invoked_subcommand is None:
        raise InputError("say what to do with the stream: encode, decode or quantize")
    return HOLDS


@app.command("encode")
def encode(
    name: Annotated[
        str,
        typer.Option(
            "--format", help="Element format: e4m3fn, e5m2, e2m1fn, e8m0fnu, ...", autocompletion=complete.elements
        ),
    ],
    source: Annotated[str, typer.Option("--from", help="float32, float16, bfloat16 or float64.")] = "float32",
    overflow: Annotated[str, typer.Option(help="saturate or ieee.")] = "saturate",
    rounding: Annotated[str | None, typer.Option(help="nearest_even; e8m0fnu also has up and down.")] = None,
) -> int:
    """In: one number per line. Out: its code. `3FC00000` becomes `3C` in e4m3fn."""
    from kvformat.elements.codec import conversion, encode_by
    from kvformat.elements.formats import element

    fmt, how, dtype = element(name), conversion(name, overflow, rounding), _dtype(source)
    digits = fmt.digits

    def answer(lines: Sequence[tuple[int, bytes]]) -> list[str]:
        codes = encode_by(_numbers(lines, dtype), how).view("u1") & (fmt.codes - 1)
        return [f"{code:0{digits}X}" for code in codes.tolist()]

    return _filter(answer)


@app.command("decode")
def decode(
    name: Annotated[
        str,
        typer.Option(
            "--format", help="Element format: e4m3fn, e5m2, e2m1fn, e8m0fnu, ...", autocompletion=complete.elements
        ),
    ],
    target: Annotated[str, typer.Option("--to", help="float32, float16, bfloat16 or float64.")] = "float32",
) -> int:
    """In: one code per line. Out: the number it stands for. `7E` becomes `43E00000` in e4m3fn."""
    import numpy as np

    from kvformat.elements.codec import decode as decode_codes
    from kvformat.elements.formats import element

    fmt, dtype = element(name), _dtype(target)

    def answer(lines: Sequence[tuple[int, bytes]]) -> list[str]:
        codes = [_pattern(number, line, fmt.bits, f"a code of {fmt.name}") for number, line in lines]
        return _texts(decode_codes(np.array(codes, np.uint8), fmt, dtype))

    return _filter(answer)


@app.command("quantize", short_help="In: one row per line. Out: its scales and codes.")
def quantize(
    name: Annotated[str, typer.Option("--recipe", help="Recipe, mode or TOML file.", autocompletion=complete.recipes)],
    source: Annotated[str, typer.Option("--from", help="float32, float16 or bfloat16.")] = "float32",
    scale: Annotated[str | None, typer.Option(help="The per-tensor scale, as float32 bits in hex.")] = None,
) -> int:
    """In: one row (the dims of a token's head) per line, numbers apart by spaces. Out: `SCALES | CODES`.

    Scales are the global one first, where the recipe has one, then those of the row, as they are stored. Every line is
    a tensor of its own; with --scale, all of them are rows of one tensor.
    """
    import numpy as np

    from kvformat.cli.recipes import find
    from kvformat.recipes.quantizer import given_scale
    from kvformat.recipes.quantizer import quantize as quantize_rows

    recipe, dtype = find(name), _dtype(source)
    given = None
    if scale is not None:
        if not re.fullmatch("(0[xX])?[0-9A-Fa-f]{8}", scale):
            raise InputError(f"--scale takes float32 bits as 8 hex digits, 3F800000 for 1; got {scale[:40]!r}")
        given = given_scale(_numbers([(0, scale.encode())], np.dtype(np.float32)), recipe)

    def answer(lines: Sequence[tuple[int, bytes]]) -> list[str]:
        answers = []
        for number, line in lines:
            row = _numbers([(number, word) for word in line.split()], dtype)
            if not row.size:
                raise InputError(f"line {number} is empty; a row is hex bit patterns apart by spaces")
            try:
                answers.append(_row_text(quantize_rows(row.reshape(1, 1, -1), recipe, scale=given), recipe))
            except InputError as error:
                raise InputError(f"line {number}: {error}") from None
        return answers

    return _filter(answer)


def _row_text(quantized: Quantized, recipe: Recipe) -> str:
    import numpy as np

    from kvformat.elements.formats import element

    scales = _texts(quantized.scales)
    if recipe.outer and recipe.inner:
        scales.insert(0, *_texts(np.array([quantized.global_scale], np.float32)))
    if recipe.element is None:
        return f"{' '.join(scales)} | {' '.join(_texts(quantized.codes))}".strip()
    fmt = element(recipe.element)
    codes = quantized.codes.reshape(-1).view(np.uint8) & np.uint8(fmt.codes - 1)
    return f"{' '.join(scales)} | {' '.join(f'{code:0{fmt.digits}X}' for code in codes.tolist())}"


def _filter(answer: Answer) -> int:
    """Lines from stdin to stdout, as they come. Raises InputError, naming the line, once those before it are out."""
    source, target = sys.stdin.buffer, sys.stdout
    for lines in _arriving(source):
        try:
            answers, error = answer(lines), None
        except InputError as refused:
            answers, error = _before(answer, lines), refused
        target.write("".join(f"{each}\n" for each in answers))
        target.flush()
        if error is not None:
            raise error
    return HOLDS


def _before(answer: Answer, lines: Sequence[tuple[int, bytes]]) -> list[str]:
    """The answers to the lines before the first bad one."""
    answers: list[str] = []
    for line in lines:
        try:
            answers += answer([line])
        except InputError:
            break
    return answers


def _arriving(source: IO[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered lines, as many at a time as have arrived."""
    count, rest = 0, b""
    read = getattr(source, "read1", source.read)
    while chunk := read(_CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield [(count + index, line.strip()) for index, line in enumerate(whole, 1)]
            count += len(whole)
    if rest.strip():
        yield [(count + 1, rest.strip())]


def _pattern(number: int, line: bytes, bits: int, what: str) -> int:
    digits = line[2:] if line[:2] in (b"0x", b"0X") else line
    if not digits or not _DIGITS.issuperset(digits) or len(digits) != -(-bits // 4) or int(digits, 16) >> bits:
        shown = line[:40].decode("ascii", "replace")
        raise InputError(f"line {number}: {shown!r} is not {what}: {_digits(bits)}")
    return int(digits, 16)


def _digits(bits: int) -> str:
    whole = f"{-(-bits // 4)} hex digits"
    return whole if bits % 4 == 0 else f"{whole} up to {(1 << bits) - 1:X}"


def _numbers(lines: Sequence[tuple[int, bytes]], dtype: np.dtype[Any]) -> NDArray[Any]:
    import numpy as np

    bits = 8 * dtype.itemsize
    patterns = [_pattern(number, line, bits, f"a {dtype.name} in hex") for number, line in lines]
    return np.array(patterns, f"u{dtype.itemsize}").view(dtype)


def _texts(values: NDArray[Any]) -> list[str]:
    width = 2 * values.dtype.itemsize
    return [f"{bits:0{width}X}" for bits in values.reshape(-1).view(f"u{values.dtype.itemsize}").tolist()]


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes
    import numpy as np

    known: dict[str, np.dtype[Any]] = {
        "float32": np.dtype(np.float32),
        "float16": np.dtype(np.float16),
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        "float64": np.dtype(np.float64),
    }
    if name not in known:
        raise unknown_name("binary format", name, known)
    return known[name]
