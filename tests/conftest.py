"""Settings of all tests: hypothesis does not judge by the clock of a loaded machine, and CI tries the same examples each time.

No test touches the user's own cache: each process of the tests has a directory of its own, which its children share.
"""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("there", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("there" if os.environ.get("CI") else "here")

_cache = tempfile.TemporaryDirectory(prefix="xrt-tests-")
os.environ["XRT_CACHE_DIR"] = _cache.name
os.environ.pop("XRT_CACHE", None)
os.environ.pop("XRT_CACHE_SIZE", None)
