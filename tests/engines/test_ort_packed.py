"""Packed weights of ort in a bundle: mapped by every process, equal in bits to what a process packs for itself."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.engines import written
from tests.engines.written import node, tensor
from xrt.cache import CompileCache, open_disk_tier
from xrt.engines.ort import saving
from xrt.errors import CacheWarning
from xrt.formats.bundle import KIND
from xrt.formats.container import Container
from xrt.graph import Constant, DType, Function
from xrt.models import sample_inputs
from xrt.testing.running import run_outputs

N = 64
function = partial(written.function, opset=21)


def weights(count: int, *shape: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 8 for seed in range(count)]


def products() -> Function:
    """Return products: a weight twice, one that is read otherwise too, one that a Gemm reads, and a table that is not packed."""
    u, v, w, table = weights(4, N, N)
    nodes = [
        *(node("MatMul", "x v", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "c"), node("MatMul", "c w", "d")),
        *(node("Gemm", "d u row", "e"), node("Gather", "table rows", "g"), node("Add", "e g", "f")),
        *(node("Transpose", "w", "t"), node("Mul", "f t", "y")),
    ]
    constants = {"u": u, "v": v, "w": w, "table": table, "row": u[0], "rows": np.arange(N)[::-1].copy()}
    return function(*nodes, inputs={"x": tensor(N, N)}, constants=constants)


def branches() -> Function:
    """Return an If whose bodies have a weight each, of which one is also the model's."""
    u, v = weights(2, N, N)
    then, other = (
        function(node("MatMul", "x w", name), inputs={}, outputs={name: tensor(N, N)}, constants={"w": w})
        for name, w in (("p", u), ("q", v))
    )
    nodes = node("If", "c", "y", then_branch=then, else_branch=other), node("MatMul", "x u", "z")
    inputs = {"x": tensor(N, N), "c": tensor(dtype=DType.BOOL)}
    return function(*nodes, inputs=inputs, outputs=("y", "z"), constants={"u": u})


def convolutions() -> Function:
    """Return convolutions, whose weights the optimizer lays out otherwise, and then an LSTM."""
    (k, m), (r, s) = weights(2, 8, 8, 3, 3), weights(2, 1, 64, 16)
    nodes = [
        *(node("Conv", "x k", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"), node("Conv", "b m", "d", pads=[1, 1, 1, 1])),
        *(node("Reshape", "d shape", "e"), node("LSTM", "e r s", "y", hidden_size=16)),
    ]
    constants = {"k": k, "m": m, "r": r, "s": s, "shape": np.array([128, 1, 16])}
    return function(*nodes, inputs={"x": tensor(1, 8, 16, 16)}, constants=constants)


def quantized() -> Function:
    (w,) = weights(1, N, N)
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "m"),
        node("Cast", "m", "y", to=DType.FLOAT32.onnx),
    ]
    return function(*nodes, inputs={"x": tensor(N, N)}, constants={"w": (w * 100).astype(np.int8)})


def one_product() -> Function:
    """Return a product by 2.1 MB of weights."""
    return function(node("MatMul", "x w", "y"), inputs={"x": tensor(1, 512)}, constants={"w": weights(1, 512, 1024)[0]})


MODELS = {"products": products, "branches": branches, "convolutions": convolutions, "quantized": quantized}


@pytest.fixture
def all_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small files mapped too."""
    monkeypatch.setattr("xrt.formats.container.MIN_MAPPED_BYTES", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.xrt"


def save(model: Function, path: Path, cache: CompileCache | None = None) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Save a bundle; return inputs, and what the module that was saved makes of them."""
    inputs = sample_inputs(model, seed=3)
    with xrt.XRTModule(model, "ort", strict=True, threads=1, cache=cache or CompileCache(), fold_constants=False) as module:
        module.save(path, **inputs)
        return inputs, run_outputs(module(**inputs), model)


def load_and_run(path: Path, inputs: dict[str, Any], **options: Any) -> tuple[list[np.ndarray], bool]:
    """Return what a loaded bundle makes of the inputs, and whether the library mapped the weights."""
    with xrt.load(path, strict=True, cache=CompileCache(), **options) as module:
        results = module(**inputs)
        (executable,) = module.specialization.program().executables
        return list(results) if isinstance(results, tuple) else [results], not executable.files  # type: ignore[attr-defined]


@pytest.mark.usefixtures("all_mapped", "two_cores")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_bundle_with_packed_weights_gives_the_same_bits(name: str, threads: int, path: Path) -> None:
    inputs, expected = save(MODELS[name](), path)
    results, is_mapped = load_and_run(path, inputs, threads=threads)
    assert is_mapped
    for result, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, other)


@pytest.mark.usefixtures("all_mapped")
def test_mapped_weights_are_not_private_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, _ = save(one_product(), path)
    sizes: list[int] = []
    shared = 0
    for maps in (True, False):
        if not maps:
            monkeypatch.setattr(saving.SavedSession, "export_mapped", lambda self, function: None)
        with xrt.load(path, strict=True, cache=CompileCache()) as module:
            module(**inputs)
            uses = module.memory().regions[0].uses or ()
            sizes.append(sum(use.nbytes or 0 for use in uses if use.name == "session"))
            shared = max(shared, sum(use.nbytes or 0 for use in uses if use.shared))
    assert sizes[0] + 2_000_000 < sizes[1], "a weight of 2.1 MB is packed by the process itself, or mapped"
    assert shared >= 512 * 1024 * 4


@pytest.mark.usefixtures("all_mapped")
@pytest.mark.parametrize("name", ["m", "with space & ünïcode.xrt", "n" * 255, "n" * 254])
def test_the_bundle_may_have_any_name_and_be_moved(name: str, path: Path, tmp_path: Path) -> None:
    inputs, expected = save(products(), path)
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / name)
    (tmp_path / "link.xrt").symlink_to(moved)
    for item in (moved, tmp_path / "link.xrt"):
        results, is_mapped = load_and_run(item, inputs)
        assert is_mapped
        np.testing.assert_array_equal(results[0], expected[0])


@pytest.mark.usefixtures("all_mapped")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_file_that_was_replaced_is_not_mapped(when: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would find other bytes at its path; the weights of the file that was opened serve."""
    inputs, expected = save(products(), path)
    other = path.with_name("other.xrt")
    save(products().replace(constants={**products().constants, "u": Constant(weights(5, N, N)[4])}), other)
    place = saving.SavedSession.export_mapped

    def replace(*arguments: Any) -> Any:
        placed = place(*arguments) if when == "meanwhile" else None
        shutil.copy(other, path.with_name("copy"))
        path.with_name("copy").replace(path)
        return placed or place(*arguments)

    monkeypatch.setattr(saving.SavedSession, "export_mapped", replace)
    results, is_mapped = load_and_run(path, inputs)
    assert not is_mapped
    np.testing.assert_array_equal(results[0], expected[0])


@pytest.mark.usefixtures("all_mapped")
def test_what_the_library_cannot_pack_or_map_it_packs_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such option")

    with monkeypatch.context() as patched:
        patched.setattr(saving, "pack_weights", fail)
        inputs, expected = save(products(), path)
    results, is_mapped = load_and_run(path, inputs)
    assert not is_mapped
    np.testing.assert_array_equal(results[0], expected[0])


@pytest.mark.slow
@pytest.mark.usefixtures("all_mapped")
def test_the_disk_cache_has_no_packed_weights_and_a_bundle_made_of_it_has(path: Path, tmp_path: Path) -> None:
    """One process reads an entry of the cache at a time, mostly; a bundle is for replicas."""
    for _ in range(2):
        cache = CompileCache(disk=open_disk_tier(directory=tmp_path / "cache"))
        inputs, expected = save(one_product(), path, cache)
        entries = [entry for entry in (tmp_path / "cache").rglob("*.xrt") if entry.parent.parent.name == "entries"]
        assert sum(entry.stat().st_size for entry in entries) < 100_000
    assert cache.statistics.disk.hits == 1
    results, is_mapped = load_and_run(path, inputs)
    assert is_mapped
    np.testing.assert_array_equal(results[0], expected[0])
    with xrt.load(path, strict=True, cache=CompileCache()) as module:  # and what was loaded is saved as it is
        module(**inputs)
        module.save(tmp_path / "again.xrt")
    assert load_and_run(tmp_path / "again.xrt", inputs)[1]


@pytest.mark.usefixtures("all_mapped")
def test_a_damaged_packed_weight_is_not_used(path: Path) -> None:
    inputs, expected = save(products(), path)
    data = bytearray(path.read_bytes())
    container = Container.open(path, KIND)
    (name,) = (name for name in container.sections if name.startswith("compiled:"))
    footer = saving.SavedSession.read(container.section(name)).footer
    assert footer["weights"] - footer["own"] > N * N * 4
    data[data.find(bytes(container.section(name))) + (footer["own"] + footer["weights"]) // 2] ^= 1
    path.write_bytes(data)
    with xrt.load(path, cache=CompileCache()) as module:
        with pytest.warns(CacheWarning, match="the checksum of its section 'compiled:"):
            result = module(**inputs)
        np.testing.assert_allclose(result, expected[0], rtol=1e-5, atol=1e-6)
