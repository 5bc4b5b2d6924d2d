"""An error of which the whole text is expected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises_exactly(kind: type[BaseException], text: str) -> Iterator[None]:
    """Expect an error of that kind with exactly this text."""
    with pytest.raises(kind) as caught:
        yield
    assert str(caught.value) == text, str(caught.value)
