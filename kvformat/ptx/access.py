"""Memory as threads see it: addresses checked, undefined bits carried along, writes that race found.

An address is segment << 36 | offset. Segments 1 to 3 are the generic windows of shared memory, local memory and
parameters; module variables and the buffers of a launch follow, one segment each, so that nothing out of bounds ever
lies in a neighbour. A segment has a host address, a size, and a table of tags: who wrote each byte last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.elements.static import compiled, inlined
from kvformat.ptx import native

U = np.uint64
I = np.int64

SEGMENT_BITS = 36
SHARED, LOCAL, PARAM, FIRST_BUFFER = 1, 2, 3, 4
#: state spaces of an instruction; GENERIC takes whole addresses, the windows take offsets
GENERIC, IN_SHARED, IN_LOCAL, IN_PARAM, IN_GLOBAL = range(5)

#: columns of `segments`, one row per segment
HOST, SIZE, TAGS, UNDEFINED, STRIDE = range(5)
#: tags: who wrote a byte: thread + 1 above 20 bits of its block's count of barriers; the top bit marks an atomic
EPOCH_BITS = U(20)
EPOCH = U((1 << 20) - 1)
ATOMIC = U(1 << 63)

#: what can go wrong; 0 is nothing
(
    FINE,
    OUT_OF_BOUNDS,
    MISALIGNED,
    READ_ONLY,
    UNDEFINED_ADDRESS,
    UNDEFINED_VALUE,
    UNDEFINED_PREDICATE,
    RACE,
    DIVISION_BY_ZERO,
    TRAP,
    BARRIER,
    SHUFFLE,
    STEP_LIMIT,
    ASSERTION,
) = range(14)

#: operations of atom and red
AMIN_U, AMIN_S, AMAX_U, AMAX_S, AADD, AOR, AEXCH, AAND, AXOR = range(1, 10)

ZERO, ONE = U(0), U(1)
_OFFSET = U((1 << SEGMENT_BITS) - 1)


@inlined
def load_bytes(address: Any, size: Any) -> Any:
    """1, 2, 4 or 8 bytes of the host, zero-extended."""
    if size == 4:
        return native.load32(address)
    if size == 8:
        return native.load64(address)
    return native.load16(address) if size == 2 else native.load8(address)


@inlined
def store_bytes(address: Any, value: Any, size: Any) -> None:
    """The low 1, 2, 4 or 8 bytes of a lane, into the host's memory."""
    if size == 4:
        native.store32(address, value)
    elif size == 8:
        native.store64(address, value)
    elif size == 2:
        native.store16(address, value)
    else:
        native.store8(address, value)


@inlined
def located(segments: Any, space: Any, address: Any, size: Any, align: Any, lane: Any, block: Any) -> Any:
    """(fault, segment, offset into the segment's host memory) of an access."""
    segment: Any = I(address >> U(SEGMENT_BITS))
    offset = address & _OFFSET
    if space == IN_GLOBAL:
        segment = segment if segment >= FIRST_BUFFER else 0
    elif space != GENERIC:
        segment, offset = I(space), address
    if segment == 0 or segment >= segments.shape[0]:
        return OUT_OF_BOUNDS, 0, ZERO
    room = segments[segment, SIZE]
    if offset > room or size > room - offset:
        return OUT_OF_BOUNDS, segment, offset
    if offset & (align - ONE):
        return MISALIGNED, segment, offset
    if segment == SHARED:
        offset += U(block) * segments[segment, STRIDE]
    elif segment == LOCAL:
        offset += U(lane) * segments[segment, STRIDE]
    return FINE, segment, offset


@compiled
def conflicts(old: Any, tag: Any, threads: Any, shared: Any) -> Any:
    """Whether the writer of a byte and this one are two threads with no barrier between them."""
    if old == ZERO or old >> EPOCH_BITS == tag >> EPOCH_BITS:
        return False
    if old & ATOMIC:
        return False
    before, now = ((old >> EPOCH_BITS) - ONE) // threads, ((tag >> EPOCH_BITS) - ONE) // threads
    if before != now:
        # shared memory of a block that is through; in global memory nothing orders two blocks
        return not shared
    return old & EPOCH == tag & EPOCH


@inlined
def put(segments: Any, segment: Any, offset: Any, value: Any, undefined: Any, size: Any, tag: Any, threads: Any) -> Any:
    """Store at a place that is known to be there. Returns the fault."""
    tags, bits = segments[segment, TAGS], segments[segment, UNDEFINED]
    if bits:
        store_bytes(bits + offset, undefined, size)
    elif undefined:
        return UNDEFINED_VALUE
    if segment != LOCAL:
        if tags == ZERO:
            return READ_ONLY
        for k in range(size):
            place = tags + ((offset + U(k)) << U(3))
            old = native.load64(place)
            stranger = old != ZERO and old >> EPOCH_BITS != tag >> EPOCH_BITS
            if stranger and conflicts(old, tag, threads, segment == SHARED):
                byte = native.load8(segments[segment, HOST] + offset + U(k))
                if byte != (value >> U(8 * k)) & U(0xFF):
                    return RACE
            native.store64(place, tag)
    store_bytes(segments[segment, HOST] + offset, value, size)
    return FINE


@compiled
def store(
    key: Any, segments: Any, space: int, address: Any, value: Any, undefined: Any, size: Any, lane: int, block: int,
    tag: Any, threads: Any,
) -> Any:  # fmt: skip
    """Store one element of one lane; the caller has checked the alignment of the whole vector. Returns the fault."""
    fault, segment, offset = located(segments, space, address, size, ONE, lane, block)
    if fault:
        return fault
    return put(segments, segment, offset, value, undefined, size, tag, threads)


@inlined
def combined(operation: Any, old: Any, value: Any, size: Any) -> Any:
    """What an atomic operation leaves in memory."""
    shift = U(64) - (U(size) << U(3))
    if operation == AADD:
        return old + value
    if operation == AOR:
        return old | value
    if operation == AAND:
        return old & value
    if operation == AXOR:
        return old ^ value
    if operation == AEXCH:
        return value
    if operation == AMIN_U:
        return min(old, value)
    if operation == AMAX_U:
        return max(old, value)
    less = I(value << shift) < I(old << shift)
    return value if less == (operation == AMIN_S) else old


@compiled
def atomic(
    key: Any, segments: Any, space: int, address: Any, value: Any, undefined: Any, size: Any, lane: int, block: int,
    tag: Any, threads: Any, operation: int, answer: Any,
) -> Any:  # fmt: skip
    """One atomic of one lane. answer[0]: what was there; answer[1]: 1 where the order of threads shows."""
    fault, segment, offset = located(segments, space, address, size, size, lane, block)
    if fault:
        return fault
    bits = segments[segment, UNDEFINED]
    if undefined or (bits and load_bytes(bits + offset, size)):
        return UNDEFINED_VALUE
    tags, host = segments[segment, TAGS], segments[segment, HOST]
    if segment == LOCAL or tags == ZERO:
        return READ_ONLY
    mine = ATOMIC | tag & ~EPOCH | U(operation)
    place = tags + (offset << U(3))
    old = native.load64(place)
    if old & ATOMIC:
        if old & EPOCH != U(operation):
            answer[1] = ONE
    elif conflicts(old, tag, threads, segment == SHARED):
        answer[1] = ONE
    for k in range(size):
        native.store64(place + (U(k) << U(3)), mine)
    answer[0] = load_bytes(host + offset, size)
    if operation == AEXCH and answer[0] != value and old & ATOMIC:
        answer[1] = ONE  # the last one wins
    store_bytes(host + offset, combined(operation, answer[0], value, size), size)
    return FINE
