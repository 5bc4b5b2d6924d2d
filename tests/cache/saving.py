"""An engine that can save, and is slow enough to be raced; run as a program, it is one of several processes on one cache.

    python -m tests.cache.saving CACHE_DIR JOURNAL [once | forever]

compiles a model of several regions through the cache, checks the result, and adds a line to the journal for each compile and
each load; "forever" compiles anew and writes again and again, until somebody kills it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from xrt.cache import CompileCache, DiskTier, Store
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import CacheWarning, CompileRefused
from xrt.graph import Function, Node
from xrt.module import XRTModule
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import graph, node

BULK = 200_000
"""Bytes of an entry, so that writing one takes a while."""


@dataclass(frozen=True)
class Saving(GraphCompiler):
    """Computes as toy does; saves a note, and loads by compiling again without a word."""

    name: ClassVar[str] = "saving"
    release: ClassVar[str] = "1"
    journal: str = ""
    seconds: float = 0.0
    refuses: bool = False
    broken: str = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return registry.create("toy").why_not(node, function)

    def version(self) -> str:
        return self.release

    def note(self, word: str) -> None:
        if self.journal:
            with Path(self.journal).open("ab", buffering=0) as file:
                file.write(f"{word} {os.getpid()}\n".encode())

    def count(self, word: str) -> int:
        path = Path(self.journal)
        return path.read_text().split().count(word) if path.exists() else 0

    def compile(self, function: Function, context: CompileContext) -> Executable:
        self.note("compile")
        time.sleep(self.seconds)
        if self.refuses:
            raise CompileRefused("it never does", [function.nodes[0].name])
        if self.broken == "memory":
            raise MemoryError("no memory")
        return registry.create("toy").compile(function, context)

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        assert context.workdir is not None and context.workdir.is_dir()
        if self.broken == "save":
            raise ValueError("it cannot")
        return json.dumps({"saved": True}).encode() + bytes(BULK)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        self.note("load")
        if self.broken == "load":
            raise ValueError("it cannot")
        assert bytes(data[:15]) == b'{"saved": true}' and len(data) == 15 + BULK
        return registry.create("toy").compile(function, context)


def chain(length: int = 6) -> Function:
    """A chain of additions, each of another constant, so that regions of one node have signatures of their own."""
    nodes = [node("Add", f"v{i} c{i}", f"v{i + 1}") for i in range(length)]
    constants = {f"c{i}": np.full(4, i, np.float32) for i in range(length)}
    return infer_shapes(graph({"v0": "float32[4]"}, {f"v{length}": "float32[4]"}, *nodes, constants=constants))


def module(engine: GraphCompiler, directory: Path, function: Function | None = None, limit: int = 10**9) -> XRTModule:
    """A module over a new cache in the directory, one region per node."""
    cache = CompileCache(disk=DiskTier(directory, limit))
    return XRTModule(function or chain(), engine=[engine], cache=cache, maximum_nodes=1, strict=True, threads=1)


def main(directory: str, journal: str, how: str = "once") -> None:
    engine = Saving(journal=journal, seconds=0.01)
    x = np.arange(4, dtype=np.float32)
    while True:
        if how == "forever":
            Store(Path(directory)).clear()
        with module(engine, Path(directory)) as context:
            np.testing.assert_array_equal(context(x), x + 15)
        if how == "once":
            break


if __name__ == "__main__":
    warnings.simplefilter("error", CacheWarning)
    main(*sys.argv[1:])
