"""The name of the bug: which recipe, layout and fault left the bytes of a dump.

`kvformat.diagnose(dump)` is the search; `kvformat.diagnose.probe.probe(...)` makes K and V on which faults differ.
"""

from kvformat.rooms import callable_package

#: what `from kvformat import diagnose` gives
diagnose = callable_package(__name__, "kvformat.diagnose.search", "diagnose")
