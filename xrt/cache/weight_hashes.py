"""Hashes of weights on disk, computed once per model file instead of once per process.

Every signature needs the hashes of the weights, which may take seconds. They are stored with a stamp that detects changes of the
file: device, inode, size, mtime and ctime.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xrt.cache.records import Records, text_schema
from xrt.forking import renew_after_fork
from xrt.formats.output import identify_file
from xrt.graph.constants import Stamp, find_file_offset, is_mapped

if TYPE_CHECKING:
    from xrt.cache.records import Store
    from xrt.graph import Constant, Function


WORTHWHILE = 1 << 20
"""Weights from this many bytes on are worth storing: below, hashing is faster."""
DIGEST = 32
"""Length of a SHA-256 digest in bytes."""


class WeightHashes(NamedTuple):
    """The hashes of one model file."""

    path: str
    stamp: Stamp
    weights: dict[str, tuple[bytes, Stamp]]
    """Digest and location of each constant, see `_locate`."""


def _dump(record: WeightHashes) -> dict[str, Any]:
    weights = {name: (digest.hex(), place) for name, (digest, place) in record.weights.items()}
    return {"path": record.path, "stamp": record.stamp, "weights": weights}


def _parse(facts: Any) -> WeightHashes:
    weights = {name: (bytes.fromhex(digest), tuple(place)) for name, (digest, place) in facts["weights"].items()}
    if any(len(digest) != DIGEST for digest, _ in weights.values()):
        raise ValueError("a digest has another length")
    return WeightHashes(os.fspath(facts["path"]), tuple(facts["stamp"]), weights)


def _is_stale(record: WeightHashes) -> bool:
    return identify_file(Path(record.path)) != record.stamp


WEIGHT_HASHES = text_schema("weights", "weight hashes", _dump, _parse, _is_stale)


class WeightHashStore:
    """Stored hashes of the weights of model files, and the pending ones of this process."""

    def __init__(self, store: Store) -> None:
        self._records = Records(store, WEIGHT_HASHES)
        self._new: list[tuple[Path, Stamp, weakref.ref[Function]]] = []
        self._lock = renew_after_fork(threading.Lock())

    def recall(self, function: Function, path: Path, stamp: Stamp | None) -> None:
        """Set the stored hashes of a Function's constants, or register it for `keep`.

        ``stamp`` identifies the file before it was loaded. The Function is referenced weakly. If the stored hashes are
        unusable, they are computed as usual.
        """
        if stamp is None or sum(constant.nbytes for constant in function.constants.values()) < WORTHWHILE:
            return
        record = self._records.find(_make_key(path))
        hashes = record.weights if record is not None and record[:2] == (os.fspath(path), stamp) else {}
        for name, constant in function.constants.items():
            digest, place = hashes.get(name, (b"", ()))
            if digest and place == _locate(constant):
                constant.know_digest(digest)
        if len(hashes) < sum(1 for _ in _list_stable(function)):
            with self._lock:
                self._new.append((path, stamp, weakref.ref(function)))

    def keep(self) -> None:
        """Store the hashes of all registered files."""
        if not self._new:
            return
        with self._lock:
            waiting, self._new = self._new, []
        for path, stamp, reference in waiting:
            if (function := reference()) is not None:
                hashes = {name: (constant.digest, place) for name, constant, place in _list_stable(function)}
                self._records.keep(_make_key(path), WeightHashes(os.fspath(path), stamp, hashes))


def _make_key(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:40]


def _list_stable(function: Function) -> Iterator[tuple[str, Constant, Stamp]]:
    """Yield the constants whose hashes can be stored, with their locations."""
    for name, constant in function.constants.items():
        place = _locate(constant)
        if place is not None:
            yield name, constant, place


def _locate(constant: Constant) -> Stamp | None:
    """Stamp and offset of a constant in an external data file; empty if it is in the model file.

    None if the file changed too recently or XRT did not map it.
    """
    if not is_mapped(constant.array):
        return ()
    place = find_file_offset(constant.array)
    if place is None or place[0].stamp is None:
        return None
    return *place[0].stamp, place[1]
