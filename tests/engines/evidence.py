"""Whether the evidence that engines' tables of defects name exists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from xrt.engines.toolkit.known_issues import KnownIssue
from xrt.testing.cases import node_cases
from xrt.testing.corpus import CORPUS

_FORMS = (r"\btest_\w+", r"\w+ of the corpus")


def unknown_evidence(defects: Iterable[KnownIssue]) -> list[str]:
    """Return what the rows name that is no node test or entry of the corpus, and says no comparison either."""
    return [item for defect in defects for item in defect.evidence if not _is_known(item)]


def _is_known(item: str) -> bool:
    named = [name for form in _FORMS for name in re.findall(form, item)]
    return _all_names().issuperset(named) if named else item.startswith(("compared with ", "refused by "))


@cache
def _all_names() -> frozenset[str]:
    return frozenset({case.name for case in node_cases()} | {f"{entry.name} of the corpus" for entry in CORPUS})
