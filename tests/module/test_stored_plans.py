"""Plans of model files in the cache: what a second process does not do again, what makes a plan old, and damaged files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.module.small_models import relu
from xrt import XRTModule, models
from xrt.cache import CompileCache, open_disk_tier
from xrt.engines import CompileContext, create
from xrt.errors import BundleError, CacheWarning, FallbackWarning, InputError, ModelError, PlanError
from xrt.formats import program_record as records
from xrt.formats.container import Container
from xrt.formats.onnx import save
from xrt.graph import Constant, DType, Function, TensorType, Value
from xrt.graph.deferred_function import DeferredFunction
from xrt.module import stored_plans
from xrt.module.explain import explain
from xrt.partition import partition
from xrt.placement.engine_list import EngineList
from xrt.runtime import compile_plan
from xrt.testing.corpus.entry import graph, node

ENGINES = ("ort", "openvino")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as settled that were written just now."""
    monkeypatch.setattr("xrt.formats.output.MIN_STAMP_AGE_NS", -(10**12))


def network() -> Function:
    return models.load("mlp", layers=2, features=600, hidden=600, classes=10)


def scale_constants(function: Function, scale: float) -> Function:
    return function.replace(constants={name: Constant(c.array * np.float32(scale)) for name, c in function.constants.items()})


def scaled(scale: float) -> Function:
    """The network with other weights."""
    return scale_constants(network(), scale)


def save_external(function: Function, path: Path) -> Path:
    """Save a model with external data, and return the file of the data."""
    before = {*path.parent.iterdir(), path}
    save(function, path, external_data=True)
    (data,) = {*path.parent.iterdir()} - before
    return data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(network(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def inputs(seed: int = 0) -> list[np.ndarray[Any, Any]]:
    return list(models.sample_inputs(network(), seed).values())


def open_cache(folder: Path) -> CompileCache:
    return CompileCache(disk=open_disk_tier(directory=folder))


def module(path: Path, engine: Any = "ort", **options: Any) -> XRTModule:
    """Return a module on a cache of its own over the directory, as another process has one."""
    return XRTModule(path, engine=engine, cache=open_cache(path.parent / "cache"), **options)


def files(path: Path) -> list[Path]:
    return sorted((path.parent / "cache" / "xrt-cache" / "plans").glob("*.xrt"))


real = partition


def uses_plan(m: XRTModule, *given: np.ndarray[Any, Any]) -> bool:
    """Return whether a call is made without partitioning the model."""
    with pytest.MonkeyPatch.context() as patch:
        plans = []
        patch.setattr("xrt.partition.partition", lambda *args, **options: plans.append(real(*args, **options)) or plans[-1])
        m(*(given or inputs()))
    return not plans


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_process_neither_reads_nor_asks(path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = module(path, engine)(*inputs())
    for name in ("module.model_source._load_file", "module.stored_plans.optimize", "partition.partition"):
        monkeypatch.setattr(f"xrt.{name}", lambda *_, **__: pytest.fail("it is made again"))
    m = module(path, engine)
    np.testing.assert_array_equal(m(*inputs()), expected)
    np.testing.assert_array_equal(m(*inputs(1)), m(*inputs(1)))
    assert m.inputs == network().inputs


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_all_else_is_answered_from_the_model(path: Path, engine: str) -> None:
    first = module(path, engine)
    first(*inputs())
    m = module(path, engine)
    assert uses_plan(m)
    assert str(m.plan) == str(first.plan)
    assert m.plan == first.plan
    assert str(m.explain()) == str(first.explain())
    assert m.signatures() == first.signatures()
    assert [use.name for use in m.memory().regions] == [use.name for use in first.memory().regions]
    assert m.verify(*inputs(), inner=False)
    fetched = first.plan.launches[0].function.nodes[0].outputs[0]
    np.testing.assert_array_equal(m(*inputs(), fetch=[fetched])[fetched], first(*inputs(), fetch=[fetched])[fetched])


@pytest.mark.slow
def test_a_call_of_a_new_process_does_not_load_onnx(path: Path) -> None:
    code = (
        "import sys; import xrt.formats.output as w\n"
        "w.MIN_STAMP_AGE_NS = -10**12\n"
        "import numpy as np; from xrt import XRTModule\n"
        "m = XRTModule(sys.argv[1], engine='ort', cache=sys.argv[2]); m(np.load(sys.argv[3]))\n"
        "import json; roots = ('onnx', 'google')\n"
        "print(json.dumps(sorted(n for n in sys.modules if n.partition('.')[0] in roots)))"
    )
    np.save(path.parent / "x.npy", inputs()[0])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XRT_CACHE": "on"}
    command = [sys.executable, "-c", code, str(path), str(path.parent / "cache"), str(path.parent / "x.npy")]
    for _ in range(2):
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded = json.loads(completed.stdout)
    assert not {"onnx", "google"} & {*loaded}


@pytest.mark.slow
def test_a_changed_model_is_read(path: Path) -> None:
    before = module(path)(*inputs())
    save(scaled(2.0), path)
    m = module(path)
    assert not uses_plan(m)
    assert not np.array_equal(m(*inputs()), before)
    assert uses_plan(module(path))


@pytest.mark.slow
def test_a_changed_file_of_external_data_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = save_external(network(), path)
    before = module(path)(*inputs())
    m = module(path)
    assert uses_plan(m)
    np.testing.assert_array_equal(m(*inputs()), before)
    values = bytearray(data.read_bytes())
    values[:4] = np.float32(123.0).tobytes()
    copy = tmp_path / "copy"
    copy.write_bytes(values)
    copy.replace(data)
    assert not uses_plan(module(path))


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], dict[str, Any]]] = {
    "clustering": lambda patch: {"minimum_nodes": 2},
    "engine's option": lambda patch: {"engine": "ort{optimization=basic}"},
    "engine list": lambda patch: {"engine": ["ort", "toy"]},
    "strict": lambda patch: {"strict": True},
    "folding": lambda patch: {"fold_constants": False},
    "version": lambda patch: patch.setattr("xrt.engines.ort.engine.Ort.version", lambda self: "another") or {},
    "planner": lambda patch: patch.setattr("xrt.module.stored_plans.hash_planner", lambda: "another") or {},
    "machine": lambda patch: patch.setattr("xrt.cache.signature.describe_machine", lambda: "another") or {},
    "engine's code": lambda patch: patch.setattr("xrt.cache.signature.hash_sources", lambda module: "another") or {},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_each_changed_ingredient_misses(path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module(path)(*inputs())
    assert uses_plan(module(path))
    assert not uses_plan(module(path, **{"engine": "ort", **CHANGES[what](monkeypatch)}))


def test_another_copy_of_the_model_has_a_plan_of_its_own(path: Path) -> None:
    module(path)(*inputs())
    moved = path.with_name("other.onnx")
    shutil.copy(path, moved)
    assert not uses_plan(module(moved))
    assert len(files(path)) == 2


@pytest.mark.slow
def test_each_signature_has_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    free_batch(path)
    results = [uses_plan(module(path, "openvino"), np.ones((n, 600), np.float32)) for n in (1, 2, 1, 2)]
    assert results[2:] == [True, True]


@pytest.mark.slow
def test_a_model_that_changes_while_it_is_used_is_an_error_that_says_so(tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", np.ones((1, 600), np.float32)
    free_batch(path)
    for _ in range(2):
        m = module(path, "openvino", shapes="each")
        m(x)
    save(scaled(2.0), path)
    for ask in (lambda: m.plan, lambda: m(x, fetch=[m.outputs[0].name]), lambda: m(np.ones((2, 600), np.float32))):
        with pytest.raises(ModelError, match=r"model\.onnx has changed since the module was made; make a new XRTModule"):
            ask()


@pytest.mark.slow
def test_a_plan_is_not_kept_under_the_name_of_another_file(tmp_path: Path) -> None:
    for version, scale in (("v1", 1.0), ("v2", 2.0)):
        (tmp_path / version).mkdir()
        save(scaled(scale), tmp_path / version / "model.onnx")
    (tmp_path / "current").symlink_to("v1")
    path = tmp_path / "current" / "model.onnx"
    cache = tmp_path / "cache"
    first = XRTModule(path, engine="ort", cache=open_cache(cache))
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("v2")
    first(*inputs())
    second = XRTModule(path, engine="ort", cache=open_cache(cache))
    np.testing.assert_array_equal(second(*inputs()), XRTModule(scaled(2.0), engine="ort")(*inputs()))


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """The link of a model's external data to the first of two versions."""
    (tmp_path / "blobs").mkdir()
    for version, scale in (("v2", 2.0), ("v1", 1.0)):
        data = save_external(scaled(scale), tmp_path / "model.onnx")
        data.rename(tmp_path / "blobs" / version)
    data.symlink_to("blobs/v1")
    return data


def lead_elsewhere(link: Path) -> None:
    link.unlink()
    link.symlink_to("blobs/v2")


@pytest.mark.slow
def test_a_link_to_external_data_that_leads_elsewhere_is_followed(linked: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    before = module(path)(*inputs())
    assert uses_plan(module(path))
    lead_elsewhere(linked)
    m = module(path)
    after = m(*inputs())
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after, XRTModule(path, engine="ort", cache=tmp_path / "other")(*inputs()))


def test_a_link_that_changes_before_the_first_call_keeps_no_plan(linked: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    m = module(path)
    lead_elsewhere(linked)
    m(*inputs())
    assert files(path) == []


def test_an_input_of_unknown_rank_keeps_its_element_type(tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", np.ones((2, 64), np.float32)
    type_, nodes = TensorType(DType.FLOAT32), (node("Mul", "x w", "a"), node("Relu", "a", "y"))
    save(graph({"x": type_}, {"y": type_}, *nodes, constants={"w": np.ones(64, np.float32)}), path)
    first = module(path, "openvino")
    first(x)
    assert len(files(path)) == 1
    second = module(path, "openvino")
    assert uses_plan(second, x)
    assert second.inputs == first.inputs
    assert second.outputs == first.outputs
    with pytest.raises(InputError, match="float32"):
        second(x.astype(np.float64))


def free_batch(path: Path) -> None:
    """Write the network with a batch of any size."""
    function = network()
    (value,), outputs = function.inputs, tuple(Value(value.name) for value in function.outputs)
    free = Value(value.name, TensorType(DType.FLOAT32, ("N", 600)))
    save(function.replace(inputs=(free,), types={}, outputs=outputs), path)


def test_weights_of_plans_that_are_not_kept_go_with_them() -> None:
    def make(key: int, *digests: str) -> records.ProgramRecord:
        weights = tuple(records.StoredWeight(digest, records.IN_RECORD, 0, 4) for digest in digests)
        launch = records.StoredLaunch("a", "ort", ("n",), (), "f", "0", (), (), (), weights)
        program = records.StoredProgram((), (), (launch,), key=((key,),))
        return records.ProgramRecord((), (), (program,), (("m", (1,)),), sections=dict.fromkeys(digests, b"1234"))

    saved = None
    for key in range(records.MAX_PROGRAMS + 3):
        saved = records.merge(saved, make(key, f"{key:02}", "shared"))
        assert saved is not None
    assert len(saved.programs) == records.MAX_PROGRAMS
    assert set(saved.sections) == {"shared", *(f"{key:02}" for key in range(3, records.MAX_PROGRAMS + 3))}
    large = make(99, "large")._replace(sections={"large": bytes(records.MAX_WEIGHT_BYTES - 6)})
    saved = records.merge(saved, large)
    assert [program.key for program in saved.programs] == [((99,),)]
    assert records.merge(saved, make(1, "more")._replace(sections={"more": bytes(records.MAX_WEIGHT_BYTES + 1)})) is None


def test_no_warning_where_the_model_is_gone_by_the_first_call(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    m = module(path)
    path.unlink()
    with caplog.at_level("INFO", "xrt"):
        m(*inputs())  # warnings are errors in these tests
    assert "are not kept" in caplog.text


def replace_file(path: Path) -> None:
    save(scaled(2.0), path)


def rewrite_file(path: Path) -> None:
    """Write other weights into the same file, and give it its former time."""
    status, copy = path.stat(), path.with_name("copy.onnx")
    save(scaled(2.0), copy)
    with path.open("r+b") as file:
        file.write(copy.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.slow
@pytest.mark.parametrize("change", [replace_file, rewrite_file, Path.unlink])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_changes_before_the_first_call_gives_no_wrong_numbers(
    path: Path, engine: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    untouched = tmp_path / "untouched.onnx"
    shutil.copy(path, untouched)
    expected = module(path, engine)(*inputs())
    cache = open_cache(tmp_path / "cache")
    m = XRTModule(path, engine=engine, cache=cache)
    change(path)
    if engine == "ort":  # which reads weights from the model's file
        with pytest.raises(ModelError, match="has changed since the module was made; make a new XRTModule"):
            m(*inputs())
    else:
        np.testing.assert_array_equal(m(*inputs()), expected)
    np.testing.assert_array_equal(XRTModule(untouched, engine=engine, cache=cache)(*inputs()), expected)


def fold_to_other_bits(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """Let constants fold to other bits, as on another processor."""
    real = stored_plans.optimize
    monkeypatch.setattr(stored_plans, "optimize", lambda function, **named: scale_constants(real(function, **named), scale))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_of_another_fingerprint_is_made_again(path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = module(path, engine)(*inputs())
    shutil.rmtree(tmp_entries(path))
    m = module(path, engine)
    fold_to_other_bits(monkeypatch, 1.5)
    result = m(*inputs())
    assert not np.array_equal(result, expected)
    assert not any(isinstance(launch.function, DeferredFunction) for launch in m.plan.launches)
    assert m.memory().regions
    np.testing.assert_array_equal(m(*inputs()), result)


def test_a_plan_that_is_made_again_falls_back_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = module(path, ["ort", "toy"])(*inputs())
    shutil.rmtree(tmp_entries(path))
    m = module(path, ["ort", "toy"])

    def refuse(self: Any, function: Function, context: CompileContext) -> Any:
        assert function.nodes  # raises StaleFunction for the stored plan
        raise ValueError("not today")

    fold_to_other_bits(monkeypatch, 1.000001)
    monkeypatch.setattr(type(create("ort")), "compile", refuse)
    with pytest.warns(FallbackWarning, match="not today"):
        np.testing.assert_allclose(m(*inputs()), expected, rtol=1e-5)


def tmp_entries(path: Path) -> Path:
    return path.parent / "cache" / "xrt-cache" / "entries"


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_damaged_plan_counts_as_none_and_is_reported_once(path: Path, at: int) -> None:
    expected = module(path)(*inputs())
    (file,) = files(path)
    data = bytearray(file.read_bytes())
    data[at] ^= 255
    file.write_bytes(data)
    with pytest.warns(CacheWarning, match="could not be used") as caught:
        np.testing.assert_array_equal(module(path)(*inputs()), expected)
    assert len(caught) == 1
    assert uses_plan(module(path))  # it has been written again


def test_a_plan_without_its_executable_is_compiled_again(path: Path) -> None:
    expected = module(path)(*inputs())
    shutil.rmtree(path.parent / "cache" / "xrt-cache" / "entries")
    np.testing.assert_array_equal(module(path)(*inputs()), expected)
    assert uses_plan(module(path))


MISFITS: dict[str, Callable[[Any], Any]] = {
    "reads another": lambda facts: facts["programs"][0]["launches"][0].__setitem__(6, [["nowhere", "float32", [2]]]),
    "waits for nobody": lambda facts: facts["programs"][0]["launches"][0].__setitem__(3, ["nobody"]),
    "no nodes": lambda facts: facts["programs"][0]["launches"][0].__setitem__(2, []),
    "computes another": lambda facts: facts["programs"][0]["launches"][0].__setitem__(8, ["nowhere"]),
    "other inputs": lambda facts: facts["inputs"][0].__setitem__(0, "other"),
    "no outputs": lambda facts: facts["outputs"].clear(),
    "other shape": lambda facts: facts["programs"][0]["inputs"][0].__setitem__(2, []),
    "other extent": lambda facts: facts["inputs"][0][2].__setitem__(0, 0),
    "other type": lambda facts: facts["inputs"][0].__setitem__(1, "int32"),
    "no shape": lambda facts: facts["programs"][0]["outputs"][0].__setitem__(2, None),
    "key": lambda facts: facts["programs"][0].__setitem__("key", []),
    "no text": lambda facts: facts["programs"][0]["launches"][0].__setitem__(4, "\ud800"),
    "no name": lambda facts: facts["programs"][0]["launches"][0].__setitem__(0, ""),
}


def test_a_text_that_holds_no_plans_is_refused(path: Path) -> None:
    module(path)(*inputs())
    text = bytes(Container.open(files(path)[0], records.KIND).section("record"))
    assert records.parse(text) is not None
    damaged = {"empty": b"", "list": b"[]", "no facts": b"{}", "cut": text[:-1]}
    for what, misfit in MISFITS.items():
        facts = json.loads(text)
        misfit(facts)
        damaged[what] = json.dumps(facts).encode()
    for what, data in damaged.items():
        with pytest.raises(BundleError, match="it holds no programs"):
            pytest.fail(f"{what}: {records.parse(data)}")


def test_a_plan_that_cannot_be_restored_is_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = module(path)(*inputs())
    monkeypatch.setattr(stored_plans, "launch_node", lambda *_, **__: [].pop())
    with pytest.warns(CacheWarning, match="does not fit: IndexError"):
        np.testing.assert_array_equal(module(path)(*inputs()), expected)


@pytest.mark.slow
def test_what_cannot_be_kept_is_not(path: Path) -> None:
    module(path, ["ort", "toy"], pins=["Relu=toy"])(*inputs())
    module(path, check="first")(*inputs())
    XRTModule(path.read_bytes(), engine="ort", cache=path.parent / "cache")(*inputs())
    assert files(path) == []
    assert stored_plans.find_stored_plans(path, CompileCache(), None, None) is None  # type: ignore[arg-type]  # no disk, no question


PLAN = partition(relu((4, 3)), [create("toy")])


def test_it_is_explained() -> None:
    text = str(explain(PLAN, EngineList((create("ort"),), None, CompileContext(threads=1))))
    assert "engine 'toy' is not an engine of this module, whose first call plans again" in text


def test_it_is_not_compiled() -> None:
    ort = create("ort")
    with pytest.raises(PlanError, match=r"^the plan has \w+ on engine 'toy', and the engines are: 'ort'$"):
        compile_plan(PLAN, {ort.spec: ort}, CompileContext(threads=1), CompileCache())
