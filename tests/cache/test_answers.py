"""What engines have answered is kept for the next process, and asked again wherever anything differs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.test_faults import X, chain
from xrt.cache import CompileCache, Store, open_disk_tier
from xrt.errors import CacheWarning
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.testing.fault_injection import RecordingEngine

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")

OPS = ("Abs", "Exp", "Neg")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.module.support_cache.WORTHWHILE", 0.0)


def started(folder: Path, function: Function | None = None, **options: Any) -> tuple[int, str]:
    """Plan and compile as a new process does; return how often the engine was asked, and the plan."""
    engine = RecordingEngine(inner="ort", takes=options.pop("takes", "Abs|Neg"))
    cache = CompileCache(disk=open_disk_tier(directory=folder))
    with xrt.XRTModule(function or chain(*OPS), [engine, "ort"], strict=True, cache=cache, **options) as module:
        module.compile()
        return engine.journal.count("why_not"), str(module.plan)


def answers(folder: Path) -> list[Path]:
    return sorted(folder.rglob("answers/*.json"))


def test_the_next_process_need_not_ask(tmp_path: Path) -> None:
    asked, plan = started(tmp_path)
    assert asked == 3 and len(answers(tmp_path)) == 1
    assert started(tmp_path) == (0, plan)
    assert "it is set to take Abs|Neg" in plan, "reasons are answers too"


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"function": chain("Abs", "Exp", "Cos")},
        {
            "function": chain(*OPS).replace(
                nodes=tuple(Node(n.op, n.inputs, n.outputs, name=f"other{n.name}") for n in chain(*OPS).nodes)
            )
        },
        {"takes": "Abs"},
        {"threads": 1},
    ],
)
def test_whatever_differs_is_asked(tmp_path: Path, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.runtime.threads.available_cores", lambda: 4)  # the machine may have one
    started(tmp_path, threads=changed.get("threads", 2) + 1 if "threads" in changed else None)
    assert started(tmp_path, **changed)[0] == 3
    assert started(tmp_path, **changed)[0] == 0


def test_options_of_the_partitioner_do_not_matter(tmp_path: Path) -> None:
    started(tmp_path)
    asked, plan = started(tmp_path, pins=["*!=recording"])
    assert asked == 0 and "kept from recording" in plan


def broken(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def made(data: bytes) -> bytes:
        facts = json.loads(data)
        change(facts)
        return json.dumps(facts).encode()

    return made


DAMAGES = [
    lambda data: data[:20],
    lambda data: b"[" * 100_000,
    lambda data: b"[]",
    broken(lambda facts: facts["questions"].pop()),
    broken(lambda facts: facts["questions"].__setitem__(0, 7)),
    broken(lambda facts: facts["questions"].__setitem__(0, True)),
    broken(lambda facts: facts["answers"][0].append(None)),
    broken(lambda facts: facts["answers"][0].__setitem__(0, 3)),
    broken(lambda facts: facts.update(answers=["no"] * 9)),
    broken(lambda facts: facts.update(answers={"no": None, "nope": 3}, questions=[0, 0, 0])),
    broken(lambda facts: facts.update(questions={"0": 1, "1": 2, "2": 3})),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_reported_and_asked(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    _, plan = started(tmp_path)
    (path,) = answers(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(CacheWarning, match="it holds no answers of"):
        assert started(tmp_path) == (3, plan)
    assert started(tmp_path) == (0, plan), "it was written anew"


def test_large_weights_are_not_hashed_for_it(tmp_path: Path) -> None:
    """Before the plan nothing may need their hashes; a signature does, and then the answers are kept."""
    big = TensorType(DType.FLOAT32, (2, 600))
    weights = Constant(np.ones((600, 600), np.float32))
    function = Function((Value("x", big),), (Value("y", big),), (Node("MatMul", ("x", "w"), ("y",)),), {"w": weights}, {"": 20})
    engine = RecordingEngine(inner="ort")
    cache = CompileCache(disk=open_disk_tier(directory=tmp_path))
    with xrt.XRTModule(function, engine, strict=True, cache=cache) as module:
        assert module.plan.launches and not weights.is_hashed
        module.compile()
    assert weights.is_hashed and len(answers(tmp_path)) == 1
    assert started(tmp_path, function, takes="*")[0] == 1, "another list of engines"


def test_what_is_quick_to_ask_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.module.support_cache.WORTHWHILE", 60.0)
    started(tmp_path)
    assert answers(tmp_path) == []


def test_the_oldest_goes_with_the_limit_of_the_directory(tmp_path: Path) -> None:
    started(tmp_path, chain("Abs"))
    for op in ("Exp", "Neg", "Cos"):
        started(tmp_path, chain(op))
    store = Store(tmp_path)
    assert len(answers(tmp_path)) == 4
    store.shrink(sum(item.size for item in store.items()[-2:]))
    assert len(answers(tmp_path)) < 4
    assert started(tmp_path, chain("Cos"))[0] == 0


def test_what_is_removed_before_it_is_read_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plan = started(tmp_path)
    (path,) = answers(tmp_path)
    opened = Path.open

    def open_late(self: Path, *mode: Any, **more: Any) -> Any:
        if self == path:
            path.unlink(missing_ok=True)
        return opened(self, *mode, **more)

    monkeypatch.setattr(Path, "open", open_late)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        assert started(tmp_path) == (asked, plan)


def test_without_a_disk_each_signature_is_asked_once() -> None:
    engine = RecordingEngine(inner="ort", takes="Abs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xrt.XRTModule(chain(*OPS), [engine, "ort"], strict=True, cache=CompileCache()) as module:
            module(X)
            module(X, fetch=["v1"])
    assert engine.journal.count("why_not") == 6
