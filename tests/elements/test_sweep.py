"""The sweep: its table against brute force, a broken codec, and the file that lets it go on after an interruption."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from kvformat.elements import sweep
from kvformat.elements.formats import element
from kvformat.elements.sweep import Policy

FLOATS = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
}
#: spec/README.md, policies: the code of a NaN, and what overflow gives under `ieee` (with the sign, but for fnuz)
NAN = {"e4m3fn": 0x7F, "e5m2": 0x7F, "e4m3fnuz": 0x80, "e5m2fnuz": 0x80, "e2m1fn": 7, "e8m0fnu": 0xFF}  # else 0
IEEE = {"e4m3fn": 0x7F, "e5m2": 0x7C, "e4m3fnuz": 0x80, "e5m2fnuz": 0x80, "e8m0fnu": 0xFF}
BITS = {"e2m1fn": 4, "int4": 4}
NEAREST = "nearest_even"
POLICIES = {
    **{name: {("saturate", NEAREST), ("ieee", NEAREST)} for name in list(FLOATS)[:4]},
    **{name: {("saturate", NEAREST)} for name in ("e2m1fn", "int8", "int4")},
    "e8m0fnu": {(overflow, way) for overflow in ("saturate", "ieee") for way in ("up", "down", NEAREST)},
}
EVERY = [(name, Policy(*way)) for name, ways in POLICIES.items() for way in sorted(ways)]


def magnitudes(name):
    """The finite magnitudes by code, and the one that would come next; float64 holds them and their midpoints."""
    if name == "e8m0fnu":
        return 2.0 ** np.arange(-127, 129)
    if name in ("int8", "int4"):
        return np.arange(2.0 ** (BITS.get(name, 8) - 1) + 2)
    codes = np.arange(2 ** (BITS.get(name, 8) - 1), dtype=np.uint8)
    values = codes.view(FLOATS[name]).astype(np.float64)
    values = values[np.isfinite(values)]
    return np.append(values, 2 * values[-1] - values[-2])


def brute_force(name, policy, patterns):
    """Codes of float32 patterns: the nearest magnitude of all, without bit arithmetic."""
    with np.errstate(invalid="ignore"):
        x = patterns.view(np.float32).astype(np.float64)
    steps, negative, size = magnitudes(name), np.signbit(x), np.abs(x)
    if policy.rounding == "up":
        index = np.searchsorted(steps, size, side="left")
    elif policy.rounding == "down":
        index = np.searchsorted(steps, size, side="right") - 1
    else:
        middle = (steps[1:] + steps[:-1]) / 2
        # a tie counts as below the midpoint, but where the upper neighbour is the even one
        index = np.searchsorted(middle, size, side="left")
        tie = np.isin(size, middle)
        index += tie & (index % 2 == 1)
    index = np.clip(index, 0, len(steps) - 1)
    last = len(steps) - 2
    if name in ("int8", "int4"):
        bits = BITS.get(name, 8)
        codes = np.where(negative, -np.minimum(index, 2 ** (bits - 1)), np.minimum(index, 2 ** (bits - 1) - 1))
        codes = codes % 2**bits
    else:
        over = index > last
        codes = np.where(over, last if policy.overflow == "saturate" else IEEE.get(name, last), index)
        if name != "e8m0fnu":
            sign = 8 if name == "e2m1fn" else 128
            signed = negative & ~(name.endswith("fnuz") & (index == 0))
            codes = np.where(signed, codes | sign, codes)
    return np.where(np.isnan(x), NAN.get(name, 0), codes).astype(np.uint8)


def looked_up(name, policy, patterns):
    table = sweep.runs(element(name), policy)
    starts = np.array([run.start for run in table])
    assert (np.diff(starts) > 0).all()
    codes = np.array([run.code for run in table], np.uint8)
    return codes[np.searchsorted(starts, patterns, side="right") - 1]


@pytest.mark.parametrize("name", POLICIES)
def test_a_sweep_goes_through_every_policy_under_which_codes_differ(name):
    assert {tuple(policy) for policy in sweep.policies(element(name))} == POLICIES[name]


@pytest.mark.parametrize("name, policy", EVERY)
def test_the_table_is_brute_force_on_every_bfloat16_and_on_both_sides_of_every_border(name, policy):
    borders = np.array([run.start for run in sweep.runs(element(name), policy)], np.int64)
    around = np.concatenate([borders + step for step in (-2, -1, 0, 1, 2)]) % 2**32
    patterns = np.concatenate([np.arange(65536) << 16, around]).astype(np.uint32)
    expected = brute_force(name, policy, patterns)
    assert np.array_equal(looked_up(name, policy, patterns), expected)


@pytest.mark.parametrize("name, policy", EVERY)
def test_the_codec_holds_around_every_border(monkeypatch, name, policy):
    monkeypatch.setattr(sweep, "_PATTERNS", 1 << 32)
    fmt, result = element(name), sweep.Sweep(name, 1)
    table = sweep.runs(fmt, policy)
    for run in table[:: max(1, len(table) // 100)]:
        start = max(run.start - 500, 0)
        sweep._judge(fmt, policy, start, start + 1000, result)
    assert (result.mismatches, result.first) == (0, None)


# --- a whole sweep, of the first patterns only ---

TOTAL, NOTE = 1 << 20, 1 << 18


@pytest.fixture(autouse=True)
def _short(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "_PATTERNS", TOTAL)
    monkeypatch.setattr(sweep, "_NOTE", NOTE)
    monkeypatch.setattr(sweep, "_CHUNK", NOTE // 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def state(tmp_path):
    return tmp_path / "states" / "sweep.json"


def break_codec(monkeypatch, pattern, policy=None):
    right = sweep.encode

    def wrong(x, fmt, *, overflow, rounding):
        codes = right(x, fmt, overflow=overflow, rounding=rounding)
        if policy in (None, (overflow, rounding)):
            codes[x.view(np.uint32) == pattern] ^= 1
        return codes

    monkeypatch.setattr(sweep, "encode", wrong)


def interrupt_at(count):
    def progress(done, _total):
        if done == count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("name", POLICIES)
def test_every_codec_holds_and_every_pattern_of_every_policy_is_judged(name, state):
    calls = []
    found = sweep.run(name, state=state, progress=lambda *call: calls.append(call))
    total = len(POLICIES[name]) * TOTAL
    assert (found.status, found.mismatches, found.judged) == (0, 0, total)
    assert calls == [(done, total) for done in range(NOTE, total + 1, NOTE)]
    assert not state.exists()


@pytest.mark.parametrize("pattern", [0, 1, NOTE - 1, NOTE, 0x5A5A5, TOTAL - 1])
def test_one_wrong_code_is_found_with_its_pattern(monkeypatch, state, pattern):
    break_codec(monkeypatch, pattern, ("ieee", NEAREST))
    found = sweep.run("e4m3fn", state=state)
    assert (found.status, found.mismatches) == (1, 1)
    assert found.first == {
        "pattern": f"0x{pattern:08X}",
        "overflow": "ieee",
        "rounding": "nearest_even",
        "expected": "0x00",
        "found": "0x01",
    }
    assert str(found).startswith("DIFFERS: e4m3fn, 1 of ")
    assert f"0x{pattern:08X}" in str(found)


def test_the_first_difference_stays_the_first(monkeypatch, state):
    break_codec(monkeypatch, 7)
    found = sweep.run("e4m3fn", state=state)
    assert found.mismatches == 2
    assert (found.first["overflow"], found.first["pattern"]) == ("saturate", "0x00000007")


def test_after_an_interruption_it_goes_on_where_it_stopped(monkeypatch, state):
    break_codec(monkeypatch, 5, ("saturate", NEAREST))  # before the interruption: must not be forgotten
    with pytest.raises(KeyboardInterrupt):
        sweep.run("e4m3fn", state=state, progress=interrupt_at(TOTAL + 2 * NOTE))
    calls = []
    found = sweep.run("e4m3fn", state=state, progress=lambda done, _: calls.append(done))
    assert calls == [TOTAL + 3 * NOTE, 2 * TOTAL]
    assert (found.resumed_at, found.judged) == (TOTAL + 2 * NOTE, 2 * TOTAL)
    assert (found.status, found.mismatches, found.first["pattern"]) == (1, 1, "0x00000005")
    assert "resumed at" in str(found)
    assert not state.exists()


def kept(state, **changes):
    """The state of a sweep of e4m3fn that was interrupted after two notes, with some entries changed."""
    with pytest.raises(KeyboardInterrupt):
        sweep.run("e4m3fn", state=state, progress=interrupt_at(2 * NOTE))
    document = json.loads(state.read_text()) | changes
    state.write_text(json.dumps(document))


def test_an_unchanged_state_is_used(state):
    kept(state)
    assert sweep.run("e4m3fn", state=state).resumed_at == 2 * NOTE


def test_a_state_of_other_code_or_another_format_is_ignored(monkeypatch, state):
    kept(state)
    assert sweep.run("e5m2", state=state).resumed_at == 0
    kept(state)
    monkeypatch.setattr(sweep, "sources", lambda: "another digest")
    assert sweep.run("e4m3fn", state=state).resumed_at == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"judged": -NOTE},
        {"judged": 2 * TOTAL},
        {"judged": NOTE + 1},
        {"judged": str(NOTE)},
        {"judged": float(NOTE)},
        {"judged": None},
        {"mismatches": "0"},
        {"mismatches": 1},
        {"first": {"pattern": "0x0"}},
        {"policies": 1},
        {"format": "e5m2"},
        {"key": None},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_ignored(state, changes):
    kept(state, **changes)
    found = sweep.run("e4m3fn", state=state)
    assert (found.resumed_at, found.judged, found.mismatches) == (0, 2 * TOTAL, 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b'"x"', b"\xff\xfe", b"{}", b'{"key": {}}'])
def test_a_state_that_is_no_state_is_ignored(state, content):
    state.parent.mkdir()
    state.write_bytes(content)
    assert sweep.run("e2m1fn", state=state).judged == TOTAL


def test_a_cache_folder_that_cannot_be_written_costs_the_memory_not_the_sweep(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", "/dev/null", "/proc/nothing"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        assert sweep.run("e2m1fn").status == 0


def test_a_user_without_a_home_can_sweep(monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sweep.Path, "home", nobody)
    assert sweep.run("e2m1fn").status == 0


def test_the_state_lies_in_the_user_s_cache_folder_and_leaves_nothing_there(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sweep.run("e2m1fn", progress=interrupt_at(NOTE))
    folder = tmp_path / "cache" / "kvformat"
    assert [path.name for path in folder.iterdir()] == ["sweep-e2m1fn.json"]
    assert sweep.run("e2m1fn").resumed_at == NOTE
    assert not list(folder.iterdir())
