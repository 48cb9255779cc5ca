"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# The suite gives the same answer every time. New examples are looked for elsewhere:
# HYPOTHESIS_PROFILE=explore make test
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
