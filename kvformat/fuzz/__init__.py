"""Fuzzing: inputs at which implementations break, the search that uses them, and a zoo of faults it must catch.

`kvformat.fuzz(candidate, mode=...)` is the search; `kvformat.fuzz.strategies` are the inputs, for tests of one's own.
"""

from kvformat.rooms import callable_package

#: what `from kvformat import fuzz` gives
fuzz = callable_package(__name__, "kvformat.fuzz.runner", "fuzz")
