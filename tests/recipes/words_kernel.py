"""Runs every operation of a program in compiled code and stores every result: what `test_vocabulary` looks at."""

from __future__ import annotations

import numpy as np

from kvformat.elements.static import compiled, inlined, specialised
from kvformat.recipes.compose import compose


def _store_all(program, a, b, d, out, i):
    raise NotImplementedError("compiled code only")


@specialised(_store_all)
def _store_all_typed(program, a, b, d, out, i):
    composed = compose(program.value, ("a", "b", "d"))
    run = composed.run
    store = inlined(lambda values, out, i: None)
    for index, operation in enumerate(program.value.operations):
        store = _and_store(store, index, composed.places[operation.target])
    return lambda program, a, b, d, out, i: store(run((a, b, d)), out, i)


def _and_store(before, index, place):
    def store(values, out, i):
        before(values, out, i)
        out[index, i] = np.float64(values[place])

    return inlined(store)


@compiled
def run_all(program, a, b, d, out):
    """The results (operations, n) float64 of `program` on the arrays a, b, d (n,) float32."""
    for i in range(a.size):
        _store_all(program, a[i], b[i], d[i], out, i)
