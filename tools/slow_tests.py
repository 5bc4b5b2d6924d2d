"""Which tests `make check` leaves out: those that took long when they were timed, as ``tests/slow_tests.json`` notes them.

`make slow-tests` runs the tests and writes that file. A function of tests is in it as a whole, whatever its parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["RECORD", "does_exist", "name_function", "read_slow_tests", "write_slow_tests"]

TOP = Path(__file__).parents[1]
RECORD = TOP / "tests" / "slow_tests.json"
LIMIT = 0.05
"""Seconds, in the mean over its parameters, from which a test is slow."""
LAWS = "tests/architecture/"
LIMIT_OF_LAWS = 3.0
"""Seconds, all parameters together, from which a law of the whole tree is slow: nothing else that is quick finds its defects."""


def name_function(nodeid: str) -> str:
    """Return the name of a test without its parameters, as pytest writes it."""
    return nodeid.partition("[")[0]


def does_exist(name: str, top: Path = TOP) -> bool:
    """Whether there is such a function, or the class that has or inherits it, in the file that the name says."""
    path, *classes, function = name.split("::")
    text = (top / path).read_text() if (top / path).is_file() else ""
    return f"class {classes[0]}" in text if classes else f"def {function}(" in text


def read_slow_tests(path: Path = RECORD) -> frozenset[str]:
    """Return the names of slow functions of tests; none where nothing has been noted."""
    return frozenset(json.loads(path.read_text())["tests"]) if path.exists() else frozenset()


def write_slow_tests(seconds: Mapping[str, Sequence[float]], path: Path = RECORD, top: Path = TOP) -> None:
    """Note which functions are slow, by the seconds that each of their tests took; others that are there keep their note."""
    limits = {name: LIMIT_OF_LAWS if name.startswith(LAWS) else LIMIT * len(each) for name, each in seconds.items()}
    slow = {name for name, each in seconds.items() if sum(each) >= limits[name]}
    names = sorted(slow | {name for name in read_slow_tests(path) - seconds.keys() if does_exist(name, top)})
    path.write_text(json.dumps({"tests": names}, indent=1) + "\n")
