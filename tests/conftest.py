"""What every test has in common: the Hypothesis profiles, and a catalogue that is as it was shipped."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from kvformat.layouts import catalogue as layouts
from kvformat.recipes import catalogue as recipes

# The first example of a property pays for a compilation, which is no property of the code under test:
# no deadline, and generation that waits for it is not "too slow".
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("default", **_COMMON)
settings.register_profile("ci", derandomize=True, database=None, print_blob=True, **_COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True, scope="module")
def _what_a_module_registers_goes_with_it():
    """Tests of one worker share a process: a layout left behind by one file is a layout too many for the next."""
    before = [(names, dict(names)) for names in (layouts._LAYOUTS, recipes._RECIPES)]
    yield
    for names, shipped in before:
        names.clear()
        names.update(shipped)
