"""Pages alone, without the K and V they came from: what no right cache contains.

`kvformat.lint(pages)` applies every rule.
"""

from kvformat.rooms import callable_package

#: what `from kvformat import lint` gives
lint = callable_package(__name__, "kvformat.lint.linter", "lint")
