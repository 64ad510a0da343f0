"""What every test has in common: the Hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The first example of a property pays for a compilation, which is no property of the code under test:
# no deadline, and generation that waits for it is not "too slow".
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("default", **_COMMON)
settings.register_profile("ci", derandomize=True, database=None, print_blob=True, **_COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "default")
