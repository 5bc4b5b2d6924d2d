"""Many processes on one cache, killed at random, and an hour of calls: nothing breaks, nothing grows.

    python tools/soak.py [--processes 32] [--rounds 100] [--minutes 60] [--seed 0]

Three parts. (1) So many processes start at once on one cold cache: one compile per signature, right results, a clean cache.
(2) Rounds of processes that write and are killed with SIGKILL at a random moment, after each of which the cache is clean and
serves. (3) Calls for so many minutes, with threads, shapes, modules and forced evictions varying: resident memory stays
flat, and no handle or thread is left over. Exit code 1, with one line, for the first thing that is wrong.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cache.saving import Saving  # noqa: E402  # the checkout's own
from xrt import XRTModule  # noqa: E402
from xrt.cache import CompileCache, DiskTier, Store  # noqa: E402
from xrt.graph import Constant, DType, Function, Node, TensorType, Value  # noqa: E402

REGIONS = 6
"""Of the model that the processes compile."""
WARM_TURNS = 16
"""Turns by which all that calls need has been imported: modules load when they are first used."""
ALLOWED_GROWTH = 24e6
"""Bytes by which resident memory may differ at the end: what allocators keep."""


class Wrong(Exception):
    """What the soak found."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


# ---------------------------------------------------------------------- processes


def process(cache: Path, journal: Path, how: str = "once") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cache.saving", str(cache), str(journal), how]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        _, errors = child.communicate()
        check(child.returncode == 0, f"a process failed: {errors}")


def together(folder: Path, count: int) -> None:
    """Start the processes at once on a cold cache."""
    cache, journal = folder / "together", folder / "journal"
    finish([process(cache, journal) for _ in range(count)])
    compiles = Saving(journal=str(journal)).count("compile")
    check(compiles == REGIONS, f"{count} processes compiled {compiles} times for {REGIONS} signatures")
    check(not Store(cache).find_damaged(), "the cache is damaged")
    print(f"{count} processes at once: {compiles} compiles for {REGIONS} signatures, results right, cache clean")


def killed(folder: Path, rounds: int, rng: random.Random) -> None:
    """Kill writers at random moments, round after round."""
    cache, journal = folder / "killed", folder / "killed-journal"
    for number in range(rounds):
        children = [process(cache, journal, "forever") for _ in range(2)]
        while not journal.exists():
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5))
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        journal.unlink()
        check(not Store(cache).find_damaged(), f"the cache is damaged after round {number}")
        finish([process(cache, journal)])
        journal.unlink()
    Store(cache).sweep()
    check(not list((Store(cache).root / "work").iterdir()), "unfinished writes are left over")
    print(f"{rounds} rounds of SIGKILL: the cache was clean and served after each")


# ---------------------------------------------------------------------- calls


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def calls(folder: Path, minutes: float, rng: random.Random) -> None:
    """Call for so long, and compare what the process holds with what it held after the first tenth."""
    model, expected = perceptron(), {}
    threads, settled = threading.active_count(), None
    began, turns = time.monotonic(), 0
    while (spent := time.monotonic() - began) < 60 * minutes or settled is None:
        turn(folder / "calls", model, expected, rng)
        turns += 1
        gc.collect()
        if settled is None and spent > 6 * minutes and turns >= WARM_TURNS:
            settled = resident(), handles()
    grown = resident() - settled[0]
    check(grown < ALLOWED_GROWTH, f"resident memory grew by {grown / 1e6:.1f} MB in {turns} turns")
    check(handles() <= settled[1], f"{handles() - settled[1]} handles are left over")
    check(threading.active_count() == threads, f"{threading.active_count() - threads} threads are left over")
    print(f"{turns} turns of calls in {minutes:g} minutes: resident memory {grown / 1e6:+.1f} MB, no handle or thread left over")


def turn(directory: Path, model: Function, expected: dict[int, np.ndarray], rng: random.Random) -> None:
    """Make a module over a small cache, call it from several threads with several shapes, and let go of it."""
    cache = CompileCache(rng.choice((1, 2, 8)), DiskTier(directory, limit=rng.choice((50_000, 500_000, 10**9))))
    engine = rng.choice(("ort", "toy", "ort{memory_arena=false}"))
    options = {"maximum_nodes": rng.choice((None, 1, 3)), "threads": rng.choice((1, 2))}
    with XRTModule(model, engine=engine, cache=cache, strict=True, **options) as module, ThreadPoolExecutor(4) as pool:
        sizes = [rng.randint(1, 5) for _ in range(16)]
        for size, found in zip(sizes, pool.map(lambda size: module(example(size)), sizes), strict=True):
            np.testing.assert_allclose(found, expected.setdefault(size, found), rtol=1e-4, atol=1e-5)
        if rng.random() < 0.3:
            cache.clear()
    cache.clear()
    if rng.random() < 0.1:
        Store(directory).clear()


def perceptron(layers: int = 4, width: int = 64) -> Function:
    """Products with a Relu between, for any batch."""
    rng, type_ = np.random.default_rng(0), TensorType(DType.FLOAT32, ("N", width))
    weights = {f"w{i}": Constant((rng.standard_normal((width, width)) / 8).astype(np.float32)) for i in range(layers)}
    nodes = [
        n
        for i in range(layers)
        for n in (Node("MatMul", (f"x{i}", f"w{i}"), (f"h{i}",)), Node("Relu", (f"h{i}",), (f"x{i + 1}",)))
    ]
    return Function((Value("x0", type_),), (Value(f"x{layers}", type_),), tuple(nodes), weights, {"": 18})


def example(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((size, 64)).astype(np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xrt-soak-") as name:
        folder, rng = Path(name), random.Random(asked.seed)
        try:
            together(folder, asked.processes)
            killed(folder, asked.rounds, rng)
            calls(folder, asked.minutes, rng)
        except Wrong as found:
            print(f"wrong: {found}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
