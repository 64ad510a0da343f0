"""From verdicts to what is said: equal bytes are one explanation, another name needs 20 bits less than the declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose.bench import Bench
from kvformat.diagnose.canvas import Canvas
from kvformat.diagnose.diagnosis import Diagnosis, Explanation, Inseparable, Name
from kvformat.diagnose.hypothesis import Hypothesis, Scene, Verdict, counted
from kvformat.diagnose.length import MARGIN
from kvformat.elements import threads

#: explanations that are listed, and of those that are confirmed on all of a large dump
_LISTED, _CONFIRMED = 5, 3
#: elements of a side that are looked at together; a hypothesis keeps some ten arrays of them
_CHUNK = 1 << 18

Ints = NDArray[np.int64]
Progress = Callable[[int, int], None] | None


def told(
    scene: Scene, verdicts: Sequence[Verdict], own: Verdict, slots: Ints, progress: Progress, *,
    members: Callable[[Verdict], list[Hypothesis]], tried: int, raw_bits: float, inseparable: tuple[Inseparable, ...],
) -> Diagnosis:  # fmt: skip
    """The diagnosis of a dump. verdicts: the shortest description first."""
    sampled = len(scene.bench.tokens)
    groups = _ordered(_grouped(verdicts), own)
    whole = sampled == len(slots)
    listed = _listed(groups, own, _LISTED if whole else _CONFIRMED, raw_bits)
    explainers = np.zeros(scene.canvas.size, np.int64)
    for group in listed:
        explainers += _explained(group[0])
    dump, plain = scene.bench.dump, own.hypothesis
    counts = [(each[0].explained, len(each[0].wrong), each[0].open, each[0].allowance) for each in listed]
    if not whole:
        counts = _confirmed(scene, [group[0].hypothesis for group in listed], plain, slots, progress)
    explanations = [
        Explanation(
            members=tuple(dict.fromkeys(named(scene, each) for each in _members(group, members))),
            explained=explained, total=explained + wrong + unsaid,
            only=int(np.count_nonzero(_explained(group[0]) & (explainers == 1))),
            wrong=wrong, open=unsaid, allowance=used, bits=round(group[0].bits, 1),
            exceptions=places(scene, group[0].wrong),
        )
        for group, (explained, wrong, unsaid, used) in zip(listed, counts, strict=True)
    ]  # fmt: skip
    mine = next(i for i, group in enumerate(listed) if own in group)
    return Diagnosis(
        explanations=tuple(explanations),
        declared=named(scene, plain),
        recipe_assumed=dump.recipe is None,
        layout=dump.layout.spec,
        own=explanations[mine],
        sampled=sampled,
        tokens=len(slots),
        tried=tried,
        raw_bits=round(raw_bits, 1),
        inseparable=inseparable,
    )


def _grouped(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    groups: dict[int, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.digest, []).append(verdict)
    for group in groups.values():  # what is exact says more than what is only known up to a bound
        group.sort(key=lambda each: (each.hypothesis.approximate, each.bits))
    return list(groups.values())


def _ordered(groups: list[list[Verdict]], own: Verdict) -> list[list[Verdict]]:
    """The shortest first; what is declared before all that do not save MARGIN, or before all if it is complete."""
    mine = next(group for group in groups if own in group)
    mine.sort(key=lambda each: each is not own)
    complete = own.complete and not own.open
    shorter = [group for group in groups if group is not mine and not complete and _is_said(group[0], own)]
    others = [group for group in groups if group is not mine and group not in shorter]
    return [*shorter, mine, *others]


def _is_said(verdict: Verdict, own: Verdict) -> bool:
    """Whether a verdict is named before what the dump declares.

    That nothing was written, or nothing from some token on, is no other recipe or place: it need only be shorter.
    """
    if verdict.explained <= verdict.total // 8:
        return False
    hypothesis = verdict.hypothesis
    unwritten = any(each.variant.unwritten and not each.variant.unwritten_part for _, each in hypothesis.writers)
    to_the_end = hypothesis.scope is None or (hypothesis.scope.axis == "token" and hypothesis.scope.open_ended)
    return verdict.bits + (0 if unwritten and to_the_end else MARGIN) <= own.bits


def _listed(groups: list[list[Verdict]], own: Verdict, most: int, raw_bits: float) -> list[list[Verdict]]:
    """The first, what explains everything, the next one, and always what the dump declares."""
    first = groups[0]
    complete = [group for group in groups[1:] if group[0].complete and own not in group]
    near = [group for group in groups[1:] if not group[0].complete and own not in group and group[0].bits < raw_bits]
    room = most - 1 - (own not in first)
    others = [*complete[:room], *near[: 1 if len(complete) < room else 0]]
    mine = [] if own in first else [next(group for group in groups if own in group)]
    return [first, *others[:room], *mine]


def _members(group: Sequence[Verdict], members: Callable[[Verdict], list[Hypothesis]]) -> list[Hypothesis]:
    """The hypotheses of a group, without those that add to the plainest one what changes nothing here."""
    first = group[0]
    kept = members(first)
    for other in group[1:]:
        if other.name_bits <= first.name_bits + 2 or not _faults(other.hypothesis):
            kept += members(other)
    return kept


def _faults(hypothesis: Hypothesis) -> int:
    faults = {each.fault for _, each in hypothesis.writers} | {each.fault for _, each in hypothesis.geometries}
    return len(faults - {None})


def _explained(verdict: Verdict) -> NDArray[np.bool_]:
    mask = verdict.image.known.copy()
    mask[verdict.wrong] = False
    return mask


def named(scene: Scene, hypothesis: Hypothesis) -> Name:
    """A hypothesis in words."""
    faults, variants, sides = [], [], []
    for chosen in (hypothesis.writers, hypothesis.geometries):
        for each in dict.fromkeys(part for _, part in chosen):
            if each.fault is not None:
                faults.append(each.fault.id)
                variants.append(each.variant.label)
                sides.append("".join(side for side, part in chosen if part == each))
    recipes = dict.fromkeys(writer.recipe.name for _, writer in hypothesis.writers)
    layouts = dict.fromkeys(geometry.layout for _, geometry in hypothesis.geometries)
    return Name(
        tuple(faults), tuple(variants), tuple(sides), "" if hypothesis.scope is None else str(hypothesis.scope),
        " and ".join(recipes), f"{' and '.join(layouts)} {scene.bench.dump.layout.order}",
        len(scene.sides),
    )  # fmt: skip


def places(scene: Scene, wrong: Ints) -> str:
    """Where bytes lie: one byte by its place, several by the slots that hold them."""
    if not len(wrong):
        return ""
    layout, page = scene.bench.dump.layout, scene.bench.dump.layout.page_bytes
    block, byte = scene.canvas.blocks[wrong // page], wrong % page
    if len(wrong) == 1:
        found = layout.explain(byte=int(byte[0]))
        what = f"{found.side.upper()} {found.part} of slot {found.slot}, head {found.head}" if found.side else "padding"
        return f"byte {byte[0]} of block {block[0]} ({what})"
    slot_of = np.full(page, -1)
    for region in layout.regions:
        each = np.arange(region.slots)
        slot_of[region.row_bytes_of(each)] = each[:, None, None]
    slots = slot_of[byte]
    kept = np.unique((block * layout.block_size + slots)[slots >= 0])
    if not len(kept):
        return f"padding of blocks {', '.join(map(str, np.unique(block)[:4]))}"
    breaks = np.flatnonzero(np.diff(kept) > 1)
    starts, ends = kept[np.r_[0, breaks + 1]], kept[np.r_[breaks, len(kept) - 1]]
    runs = [f"{a}" if a == b else f"{a}..{b}" for a, b in zip(starts[:3], ends[:3], strict=True)]
    more = f" and {len(starts) - 3:,} more runs" if len(starts) > 3 else ""
    return f"slot{'s' if len(kept) > 1 else ''} {', '.join(runs)}{more}"


def _confirmed(
    scene: Scene, hypotheses: Sequence[Hypothesis], plain: Hypothesis, slots: Ints, progress: Progress
) -> list[tuple[int, int, int, int]]:
    """Explained, wrong, unsaid and allowed bytes of hypotheses on all tokens of a dump, chunk by chunk."""
    dump = scene.bench.dump
    step = max(1, _CHUNK // (dump.layout.num_kv_heads * max(dump.layout.head_size, dump.layout.head_size_v)))
    chunks = [slots[start : start + step] for start in range(0, len(slots), step)]
    canvas = Canvas(dump)
    totals = np.zeros((len(hypotheses), 4), np.int64)
    done = 0
    with ThreadPoolExecutor(threads.count()) as pool:
        results = pool.map(lambda chunk: _on(scene.bench, canvas, hypotheses, plain, chunk), chunks)
        for chunk, counts in zip(chunks, results, strict=True):
            totals += counts
            done += len(chunk)
            if progress is not None:
                progress(done, len(slots))
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in totals]


def _on(bench: Bench, canvas: Canvas, hypotheses: Sequence[Hypothesis], plain: Hypothesis, tokens: Ints) -> Ints:
    scene = Scene(bench.on(tokens), canvas)
    return np.array([counted(scene, each, plain) for each in hypotheses], np.int64)
