"""A proof as a table of its differences and as JSON."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

from kvformat.errors import InputError
from kvformat.files import write_whole
from kvformat.proofs.found import Pair
from kvformat.proofs.prove import Proof

_COLUMNS = ("what", "amax", "x", "left", "right", "global_scale")


def write(proof: Proof, path: Path) -> None:
    """Write every difference as CSV, smallest first; floats as hexadecimal text, which loses no bit.

    Raises InputError where there are too many to list, and where the file cannot be written.
    """
    if not proof.listed:
        number = proof.found.different_codes + proof.found.different_scales
        raise InputError(f"{number:,} differences are too many to list; {len(proof.pairs):,} of them were kept")
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows(_cells(pair) for pair in proof.pairs)
    write_whole(path, lambda finished: finished.write_text(text.getvalue(), "utf-8"))


def document(proof: Proof) -> dict[str, Any]:
    """The proof as JSON values."""
    counts = {name: getattr(proof.found, name) for name in ("codes", "scales", "different_codes", "different_scales")}
    first = None if proof.first is None else dict(zip(_COLUMNS, _cells(proof.first), strict=True))
    names = {"left": proof.left, "right": proof.right, "dtype": proof.dtype}
    return {**names, "equal": proof.equal, "domain": list(proof.says), **counts, "first": first}


def _cells(pair: Pair) -> tuple[str, ...]:
    given = "" if pair.given is None else pair.given.hex()
    return pair.what, pair.amax.hex(), pair.x.hex(), f"0x{pair.left:X}", f"0x{pair.right:X}", given
