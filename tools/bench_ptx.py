"""Times kernels as compiled: an int8 writer of vLLM's arithmetic against Triton's interpreter, and PTX made ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
from bench_rates import Differs, Row

import kvformat as kvf
from kvformat import ptx

TOKENS, HEADS, HEAD_DIM = 2048, 8, 128
#: tokens that the interpreter gets; its time is proportional to them
FEW = 64
#: bytes of PTX that are made ready
MEGABYTES = 2


def emulation(root: Path, skip: Callable[[str], None]) -> Iterator[Row]:
    """The writer on 2,048 tokens with every check on, and 2 MB of PTX indexed with one entry parsed."""
    script = str(root / "tools" / "ptx_writer.py")
    made = subprocess.run([sys.executable, script, "ptx", "sm_90"], capture_output=True, text=True, check=False)
    if made.returncode:
        skip("kernels as compiled: triton is not installed")
        return
    kernel = ptx.load(made.stdout)["write_int8"]
    x = np.random.default_rng(0).standard_normal((2, TOKENS, HEADS, HEAD_DIM)).astype(ml_dtypes.bfloat16)
    codes, scales = np.zeros(x.shape, np.int8), np.zeros(x.shape[:3], np.float32)
    scratch = np.zeros(64, np.uint8)
    arguments = [*x.view(np.uint16), *codes, *scales, np.arange(TOKENS), scratch, scratch][: len(kernel.parameters)]
    seconds = []
    for _ in range(4):  # the first one compiles
        start = time.perf_counter()
        kernel.launch((TOKENS, HEADS), kernel.required_block or 128, arguments, shared=1024)
        seconds.append(time.perf_counter() - start)
    ours = sorted(seconds[1:])[1]
    wanted = kvf.quantize(x[0].astype(np.float32), "vllm-0.33/triton/int8_per_token_head")
    if not np.array_equal(codes[0], wanted.codes) or not np.array_equal(scales[0], wanted.scales):
        raise Differs("the int8 writer as compiled for sm_90 and vllm-0.33/triton/int8_per_token_head")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    timed = subprocess.run(
        [sys.executable, script, "time", str(FEW)], capture_output=True, text=True, check=True, env=environment
    )
    theirs = float(timed.stdout) * TOKENS / FEW
    yield Row(
        f"int8 writer as compiled for sm_90, {TOKENS} tokens", ours, "s", f"Triton's interpreter, from {FEW} tokens",
        theirs, theirs / ours, at_least=50,
    )  # fmt: skip
    yield Row(f"{MEGABYTES} MB of PTX ready", _ready(made.stdout), "s", below=1)


def _ready(text: str) -> float:
    """Seconds to index a module of that size, and to decode one entry of it."""
    start, end = text.index(".visible .entry"), text.rindex("}") + 1
    end = min(end, text.index("\n}\n", start) + 3)
    entry, head = text[start:end], text[:start]
    copies = -(-MEGABYTES * 10**6 // len(entry))
    module = head + "".join(entry.replace("write_int8", f"entry_{k}_") for k in range(copies))
    begun = time.perf_counter()
    kernel = ptx.load(module)[f"entry_{copies - 1}_"]
    assert not kernel.refused
    return time.perf_counter() - begun
