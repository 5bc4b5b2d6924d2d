"""Law 8: compile and prepare happen once per signature while it stays cached, and close once when nobody needs it."""

from __future__ import annotations

import threading

import numpy as np

from xrt.cache import CompileCache
from xrt.testing.corpus import find_entry
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.running import make_module


def test_once_per_shape():
    one, engine = find_entry("named_extent"), RecordingEngine()
    with make_module(one.function, [engine]) as module:
        for rows in (2, 3, 2, 3, 2):
            module(np.ones((rows, 3), np.float32), np.ones((rows, 3), np.float32))
    assert engine.journal.count("compile") == (1 if engine.supports_dynamic_shapes else 2)


def test_equal_regions_of_one_model_share_an_executable():
    """A model that repeats itself, as transformers do, compiles its block once."""
    one, engine = find_entry("engines_alternate"), RecordingEngine(takes="Relu")
    with make_module(one.function, [engine, "toy"]) as module:
        module(*one.make_inputs())
        mine = [launch for launch in module.plan.launches if launch.engine == engine.spec]
    assert len(mine) == 2
    assert engine.journal.count("compile") == 1
    assert engine.journal.count("run") == 2


def test_closed_once_when_the_cache_lets_go():
    one, engine, cache = find_entry("engines_alternate"), RecordingEngine(), CompileCache()
    module = make_module(one.function, [engine], cache=cache)
    module(*one.make_inputs())
    module.close()
    assert engine.journal.count("close") == 0, "the cache still holds it"
    cache.clear()
    assert engine.journal.count("close") == 1
    module.close()
    cache.clear()
    assert engine.journal.count("close") == 1


def test_many_threads_run_what_was_compiled_once():
    one, engine = find_entry("engines_alternate"), RecordingEngine()
    module = make_module(one.function, [engine])
    module(*one.make_inputs())
    judged: list[bool] = []

    def call() -> None:
        judged.extend(bool(one.judge([module(*one.make_inputs())])) for _ in range(50))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    module.close()
    assert judged == [True] * 200
    assert engine.journal.count("compile") == 1
