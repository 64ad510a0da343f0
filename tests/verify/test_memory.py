"""How much memory a large dump takes: a sparse file, judged in a process that watches its own anonymous pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MIB = 1 << 20
BLOCK, HEADS, DIM = 16, 8, 128
#: bytes of a token: bfloat16 key and value, its slot
GIVEN = 2 * 2 * HEADS * DIM + 8

JUDGE = """
import json, sys, threading, time
from kvformat.dump import Dump
from kvformat.verify import check

def memory():
    lines = (line.split() for line in open("/proc/self/status") if line.startswith(("RssAnon", "VmRSS")))
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}

def watch():
    while not done.wait(0.001):
        for name, size in memory().items():
            peak[name] = max(peak[name], size)

check(Dump.load(sys.argv[1]))  # a small one: what is loaded and compiled once
before = peak = memory()
peak, done = dict(before), threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
began = time.perf_counter()
report = check(Dump.load(sys.argv[2]))
seconds = time.perf_counter() - began
done.set()
watcher.join()
print(json.dumps({"before": before, "peak": peak, "seconds": seconds, "status": report.status,
                  "compared": report.compared, "mismatches": report.mismatches}))
"""


def sparse_dump(path, mode, tokens):
    """A dump of zeros that takes no room on the disk but for its slots, which go backwards."""
    cell = 2 * DIM + (8 if mode == "int8_per_token_head" else 0)
    shapes = {
        "slot_mapping": ("I64", (tokens,), 8 * tokens),
        "key": ("BF16", (tokens, HEADS, DIM), 2 * tokens * HEADS * DIM),
        "value": ("BF16", (tokens, HEADS, DIM), 2 * tokens * HEADS * DIM),
        "pages": ("U8", (tokens // BLOCK, BLOCK * HEADS * cell), tokens * HEADS * cell),
    }
    header = {"__metadata__": {
        "kvformat_dump": "1", "mode": mode, "recipe": f"golden/{mode}",
        "layout": "vllm-0.33", "order": "NHD", "block_size": str(BLOCK),
        "num_kv_heads": str(HEADS), "head_size": str(DIM), "head_size_v": str(DIM), "producer": "a test",
    }}  # fmt: skip
    end = 0
    for name, (kind, shape, size) in shapes.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(np.arange(tokens, dtype=np.int64)[::-1].tobytes())
        file.truncate(8 + len(text) + end)
    return path


def judged(folder, mode, tokens):
    paths = [sparse_dump(folder / f"{count}.safetensors", mode, count) for count in (BLOCK, tokens)]
    command = [sys.executable, "-c", JUDGE, *map(str, paths)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    finally:
        size = paths[1].stat().st_size
        for path in paths:
            path.unlink()
    return size, json.loads(done.stdout)


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("mode", ["fp8_per_tensor", "int8_per_token_head"])
def test_a_dump_of_380_mib_takes_less_than_a_fifth_of_that(tmp_path, mode):
    """All zeros hold in fp8_per_tensor; in int8 every scale should be 1, so every scale differs."""
    tokens = 65536
    size, found = judged(tmp_path, mode, tokens)
    assert size > 380 * MIB
    scales = 2 * tokens * HEADS if mode == "int8_per_token_head" else 0
    assert found["compared"] == 2 * tokens * HEADS * DIM + scales
    assert (found["status"], found["mismatches"]) == (int(scales > 0), scales)
    assert found["peak"]["RssAnon"] - found["before"]["RssAnon"] < 76 * MIB, found


@needs_proc
@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["fp8_per_tensor", "int8_per_token_head"])
def test_a_dump_of_4_gib_takes_less_than_1_gib_beyond_the_mapped_file(tmp_path, capsys, mode):
    size, found = judged(tmp_path, mode, 699_136)
    with capsys.disabled():
        print(f"{mode}: {size / MIB:.0f} MiB, {found}")  # noqa: T201 what was measured
    assert size >= 4096 * MIB
    assert found["peak"]["RssAnon"] < 1024 * MIB
