"""The oracles as fixtures."""

from __future__ import annotations

import os

import pytest

from tests.oracle.cuda_headers.build import CudaHeaders, UnavailableError, build


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> CudaHeaders:
    """NVIDIA's headers. Without g++ or the wheels a person's run skips; CI must not pass without its oracle."""
    try:
        return build(tmp_path_factory.mktemp("cuda_headers"))
    except UnavailableError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
