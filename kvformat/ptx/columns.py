"""The columns of a decoded step, and the states of lanes and rows, as the parts of the machine share them."""

from __future__ import annotations

#: columns of a decoded step. D and E are rows written; A, B, C, G rows read; X, Y, Z constants; GUARD the row of the
#: predicate, NEGATED 1 for `@!p`; INSTRUCTION the statement it belongs to, FIRST 1 for the first step of that;
#: TEMPORARY: D is a row of the machine's own, written in all lanes; TRACKED: a source may hold undefined bits;
#: ALIAS: D is also read; AUX, COUNT: a list of rows (vectors); RULE: how undefined bits pass
(
    OP, FAMILY, D, E, A, B, C, G, X, Y, Z, GUARD, NEGATED, INSTRUCTION, FIRST, TEMPORARY, TRACKED, ALIAS, AUX, COUNT,
    RULE,
) = range(21)  # fmt: skip
COLUMNS = 21

#: what a lane is doing
EXITED, RUNNING, AT_BARRIER, AT_WARP = range(4)

#: rows that the machine itself uses: results on their way, their undefined bits, and a row that nobody writes (zeros)
SCRATCH, SCRATCH2, NOTHING, UNKNOWN, UNKNOWN2 = range(5)
FIRST_ROW = 5

#: states of a row: no undefined bits, some lanes have (the row of T says which), nothing was ever written
DEFINED, MIXED, UNTOUCHED = range(3)
