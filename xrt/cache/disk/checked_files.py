"""Which bundles this host has checked: a file that has not changed since is not read through again by each new process.

To compute a bundle's checksums takes a tenth of a second per 400 MB. That they were right is remembered once a self-test has read
all, by the identity of the file: device, inode, size, and the time of its last change.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from xrt.errors import CacheError

if TYPE_CHECKING:
    from xrt.cache.disk.store import Store
    from xrt.graph.memory_map import FileIdentity

__all__ = ["CheckedFileStore"]

_FOLDER = "checked"
MOST_BYTES = 1 << 16
"""A larger file is not ours."""


class CheckedFileStore:
    """The bundles that a process of this user has checked; of one with variants, for which of them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def knows(self, path: Path, suffix: str, stamp: FileIdentity | None) -> bool:
        """Whether the file, as it is now, was checked. ``stamp`` is None for one that has changed just now."""
        file = self._file(path, suffix)
        try:
            if stamp is None or not self._store.is_trusted() or not file.exists():
                return False
            self._store.check(file)
            if file.stat().st_size > MOST_BYTES:
                return False
            values = json.loads(file.read_bytes())
        except (OSError, ValueError, CacheError, RecursionError):
            return False
        return bool(values == [os.fspath(path), suffix, *stamp])

    def keep(self, path: Path, suffix: str, stamp: FileIdentity | None) -> None:
        """Remember a file that was checked; raises OSError."""
        if stamp is not None and self._store.is_trusted():
            text = json.dumps([os.fspath(path), suffix, *stamp]).encode()
            self._store.place(self._file(path, suffix), lambda file: file.write(text))

    def sweep(self) -> int:
        """Remove what is remembered of files that are gone; return how many there were."""
        return sum(map(_sweep, self._store.list_folder(_FOLDER)))

    def _file(self, path: Path, suffix: str) -> Path:
        name = hashlib.sha256(os.fsencode(path) + b"\0" + suffix.encode()).hexdigest()[:40]
        return self._store.root / _FOLDER / f"{name}.json"


def _sweep(file: Path) -> int:
    try:
        gone = not Path(json.loads(file.read_bytes())[0]).exists()
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        gone = True
    if gone:
        file.unlink(missing_ok=True)
    return int(gone)
