"""What the tests of locks have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NEVER = "9900%"
"""What no plan becomes slower by, however busy the machine is."""
BUDGET = ("--budget", "40s", "--gate", "1s")


def altered(lock: Path, change: Any) -> str:
    facts = json.loads(lock.read_text())
    change(facts)
    lock.write_text(json.dumps(facts))
    return str(lock)
