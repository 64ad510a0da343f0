"""Numba's cache on disk may be full, cut, foreign or out of reach: kernels are compiled anew and answer as always."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from numba import types
from numba.core import caching

from kvformat.elements import disk_cache
from kvformat.elements.static import compiled


def kernel(folder, monkeypatch):
    """A kernel whose cache lies in `folder`."""
    monkeypatch.setattr(caching.config, "CACHE_DIR", str(folder))

    def twice(x):
        return x + x

    return compiled(twice)


def files(folder, suffix):
    return sorted(folder.rglob(f"*{suffix}"))


def test_what_was_compiled_is_found_again(tmp_path, monkeypatch):
    assert kernel(tmp_path, monkeypatch)(21) == 42
    again = kernel(tmp_path, monkeypatch)
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80", b"not a pickle", "half"], ids=["empty", "cut", "foreign", "half"])
def test_a_cut_index_or_data_file_is_compiled_over(tmp_path, monkeypatch, suffix, content):
    assert kernel(tmp_path, monkeypatch)(21) == 42
    (path,) = files(tmp_path, suffix)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    assert kernel(tmp_path, monkeypatch)(21) == 42
    mended = kernel(tmp_path, monkeypatch)
    assert mended(21) == 42
    assert sum(mended.stats.cache_hits.values()) == 1  # the cache works again


def test_of_two_that_need_a_kernel_one_compiles_and_the_other_waits(tmp_path, monkeypatch):
    first, second = kernel(tmp_path, monkeypatch), kernel(tmp_path, monkeypatch)
    arguments = (types.int64,)
    assert first._cache.load_overload(arguments, first.targetctx) is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second._cache.load_overload, arguments, second.targetctx)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        first._cache.save_overload(arguments, first._compiler.compile(arguments, None))
        assert waiting.result(timeout=30) is not None


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "PATIENCE", 0.1)
    first, second = kernel(tmp_path, monkeypatch), kernel(tmp_path, monkeypatch)
    assert first._cache.load_overload((types.int64,), first.targetctx) is None
    assert second(21) == 42


def test_a_full_disk_keeps_nothing_and_answers(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", full)
    assert kernel(tmp_path, monkeypatch)(21) == 42
    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_index", full)
    assert kernel(tmp_path, monkeypatch)(21) == 42


def test_without_any_folder_to_write_to_kernels_still_run(monkeypatch):
    def nowhere(*_):
        raise RuntimeError("cannot cache function 'twice': no locator available for file '?'")

    monkeypatch.setattr(disk_cache.DiskCache, "__init__", nowhere)

    def twice(x):
        return x + x

    assert compiled(twice)(21) == 42


@pytest.mark.slow
def test_a_command_judges_though_its_cache_cannot_be_written(tmp_path):
    """A process whose files may not be longer than 0 bytes: as on a full disk."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from kvformat.cli import main; sys.exit(main(['check', '--json']))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
