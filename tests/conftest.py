"""Settings of all tests: hypothesis does not judge by the clock of a loaded machine, and CI tries the same examples each time."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("there", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("there" if os.environ.get("CI") else "here")
