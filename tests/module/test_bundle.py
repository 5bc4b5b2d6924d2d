"""Bundles: a module saved in one file and loaded, here or elsewhere; its record, its choice of engines, and its self-test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import xrt
from tests.cache.saving import chain
from tests.exact_errors import raises_exactly
from tests.laws.test_laws import bounded, living
from tests.malformed_inputs.mutators import reseal
from tests.module.small_models import Affine
from xrt.cache import CompileCache
from xrt.comparison import BIT_EQUAL, compare_all
from xrt.engines import GraphCompiler, option
from xrt.engines.contract import registry
from xrt.engines.contract.options import NAMES_FILES
from xrt.engines.contract.spec import field_types, is_bounded
from xrt.errors import BundleError, CacheWarning, EngineError, FallbackWarning, InputError, OptionError, RunFailed, SelfTestFailed
from xrt.formats.arrays import Example, decode_example, encode_example
from xrt.formats.bundle import BundleFile, is_bundle, write_bundle
from xrt.formats.container import ALIGNMENT, Container
from xrt.graph import DType, Function
from xrt.module import bundle
from xrt.module.module import XRTModule
from xrt.processes.spawn import kill, list_descendants
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine
from xrt.testing.running import make_module, run_outputs
from xrt.testing.strategies import Form, make_random_inputs

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 64)).astype(np.float32)


def perceptron(batch: int | str = 2) -> Function:
    weights = {name: np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) for i, name in enumerate("vw")}
    nodes = node("MatMul", "x v", "a"), node("Relu", "a", "b"), node("MatMul", "b w", "c"), node("Softmax", "c", "y")
    return graph({"x": f"float32[{batch},64]"}, {"y": f"float32[{batch},64]"}, *nodes, constants=weights)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.xrt"


def saved(path: Path, engine: object = "ort", **options: object) -> np.ndarray:
    """Save the perceptron after one call, and return what the call gave."""
    with xrt.XRTModule(perceptron(), engine=engine, strict=True, cache=CompileCache(), **options) as module:
        expected = module(X)
        module.save(path)
    return expected


def load(path: Path, **options: Any) -> XRTModule:
    """Load a bundle over a cache that has nothing and keeps nothing on disk."""
    return xrt.load(path, cache=CompileCache(), **options)


@pytest.mark.slow
@settings(bounded, max_examples=25)
@given(data=st.data(), seed=st.integers(0, 9))
def test_a_bundle_runs_equal_to_its_module(data: st.DataObject, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    function = data.draw(living(Form(symbolic=False)))
    path = tmp_path_factory.mktemp("bundle") / "model.xrt"
    with make_module(function, ["ort", "toy"], cache=CompileCache(), pins=()) as module:
        expected = run_outputs(module(*make_random_inputs(function, seed)), function)
        text = str(module.plan)
        module.save(path)
    with load(path) as loaded:
        results = run_outputs(loaded(*make_random_inputs(function, seed)), function)
        assert str(loaded.plan) == text
        assert [v.name for v in loaded.inputs] == [v.name for v in function.inputs]
    assert compare_all(results, expected, BIT_EQUAL)


def test_a_loaded_module_is_checked_as_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = saved(path)
    with load(path, check="first") as loaded:
        np.testing.assert_array_equal(loaded(X), expected)
        output = "checked against toy{native=off}: the first call for each set of input types; 1 call so far"
        assert loaded.explain().checks == output
    monkeypatch.setattr("xrt.engines.toolkit.reference_evaluator.evaluate", lambda function, inputs, threads: [expected + 1])
    with load(path, check=1.0) as loaded, pytest.raises(RunFailed, match="computed xrt_ort_0 wrongly"):
        loaded(X)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [False, True])
def test_a_loaded_module_is_isolated_as_asked(path: Path, runs: bool) -> None:
    """Its compiled form is loaded where it runs, by the worker."""
    expected = saved(path)
    with load(path, strict=True, isolate=xrt.Isolation("ort", run=runs, time_limit=60)) as loaded:
        np.testing.assert_array_equal(loaded(X), expected)
        text = str(loaded.explain())
        assert ("compiles and runs" if runs else "compiles") + " in a process of its own" in text
        assert "its compiled form comes from the bundle" in text


@pytest.mark.slow
def test_a_worker_that_dies_is_followed_by_one_that_loads_again(path: Path) -> None:
    expected = saved(path)
    before = {*list_descendants(os.getpid())}
    with load(path, strict=True, isolate=xrt.Isolation("ort", run=True)) as loaded:
        np.testing.assert_array_equal(loaded(X), expected)
        kill({*list_descendants(os.getpid())} - before)
        with pytest.raises(RunFailed, match="failed to run xrt_ort_0: its process was ended by SIGKILL"):
            loaded(X)
        np.testing.assert_array_equal(loaded(X), expected)


def test_weights_stand_in_the_file_once_and_aligned_and_sizes_are_reported(path: Path) -> None:
    saved(path)
    container = Container.open(path, "bundle")
    weights = [section for name, section in container.sections.items() if name.startswith("weight:")]
    assert sorted(section.size for section in weights) == [64 * 64 * 4] * 2
    assert all(section.offset % ALIGNMENT == 0 for section in weights)
    assert path.stat().st_size < 2.3 * sum(section.size for section in weights)
    sizes = BundleFile(path).section_bytes
    assert sizes["weights"] == 2 * 64 * 64 * 4
    assert {"manifest", "model", "function:0"} <= set(sizes)


def test_one_program_serves_every_size_where_engines_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = xrt.XRTModule(perceptron("N"), engine="ort", strict=True)
    module.save(path)
    arrays = [RNG.standard_normal((rows, 64)).astype(np.float32) for rows in (1, 5)]
    expected = [module(x) for x in arrays]
    monkeypatch.setattr("xrt.engines.ort.Ort.compile", lambda *_: pytest.fail("it is compiled again"))
    loaded = load(path, strict=True)
    for x, result in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(loaded(x), result)


@pytest.mark.parametrize("engine", ["ort", "toy"])
def test_a_bundle_keeps_a_program_for_each_size_where_that_was_asked_for(engine: str, path: Path) -> None:
    rigid = xrt.XRTModule(perceptron("N"), engine, shapes="each", strict=True, threads=1)
    first, two, three = (RNG.standard_normal((rows, 64)).astype(np.float32) for rows in (1, 2, 3))
    rigid.compile(first)
    rigid.save(path, two)
    for _ in range(2):
        module = load(path, strict=True)
        for x in (first, two, three):
            np.testing.assert_allclose(module(x), rigid(x), rtol=1e-5)
            assert module.plan.function.inputs[0].type.shape == x.shape
        module.save(path := path.with_name("again.xrt"))


def test_fetched_values_come_back(path: Path) -> None:
    module = xrt.XRTModule(perceptron(), engine="ort", strict=True)
    inner = module(X, fetch=["b"])
    module.save(path)
    loaded = load(path)
    np.testing.assert_array_equal(loaded(X, fetch=["b"])["b"], inner["b"])
    assert "its compiled form comes from the bundle" in str(loaded.explain())


def test_a_graph_is_saved_by_its_traces(path: Path) -> None:
    module = xrt.XRTModule(Affine(), engine="ort", strict=True)
    expected = module(X, X)
    module.save(path)
    loaded = load(path, strict=True)
    np.testing.assert_array_equal(loaded(X, X), expected)
    assert [v.name for v in loaded.inputs] == ["x", "y"]
    with pytest.raises(InputError, match=r"has traces of a graph for inputs \(float32\[2,64\], float32\[2,64\]\)"):
        loaded(X[:1], X[:1])


def test_another_processor_compiles_again_and_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = saved(path)
    monkeypatch.setattr("xrt.cache.signature.describe_machine", lambda: "Linux abacus")
    with pytest.raises(BundleError, match=r"1 region\(s\) must be compiled again on this machine, first xrt_ort_0: machine was"):
        load(path, strict=True)
    with pytest.warns(FallbackWarning, match=r"is 'Linux abacus'; m\.explain\(\) lists them"):
        loaded = load(path)
    np.testing.assert_allclose(loaded(X), expected, rtol=1e-6)
    assert "compiled again, not loaded from the bundle: machine was" in str(loaded.explain())
    assert "its compiled form comes from the bundle" not in str(loaded.explain())


def test_a_missing_engine_hands_its_regions_to_the_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = saved(path, ["ort", "toy"], pins=["Softmax=toy", "MatMul=ort"])
    create = bundle.registry.create

    def without(engine: object) -> object:
        if engine == "ort":
            raise xrt.errors.EngineUnavailable("engine 'ort' needs onnxruntime, which is not installed")
        return create(engine)

    monkeypatch.setattr(bundle.registry, "create", without)
    with pytest.raises(BundleError, match="strictly: engine 'ort' is not available: engine 'ort' needs onnxruntime"):
        load(path, strict=True)
    with pytest.warns(FallbackWarning, match="its regions are planned again for toy"):
        loaded = load(path)
    np.testing.assert_allclose(loaded(X), expected, rtol=1e-5)
    assert loaded.plan.used_engines == ("toy",)


def test_a_compiled_form_that_does_not_load_is_compiled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = saved(path)

    def broken(*_: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr("xrt.engines.ort.engine.Ort.load", broken)
    with pytest.warns(CacheWarning, match="a region is compiled again, since no such luck"):
        np.testing.assert_array_equal(load(path)(X), expected)
    with pytest.raises(BundleError, match="a compiled form cannot be loaded: no such luck"):
        load(path, strict=True)(X)


def test_a_compiled_form_that_cannot_be_prepared_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, faulty = saved(path), FaultyEngine(where="prepare")
    monkeypatch.setattr("xrt.engines.ort.engine.Ort.load", lambda self, data, *given: faulty.compile(*given))
    with pytest.warns(CacheWarning, match="a region is compiled again, since the faulty engine is set to fail in prepare"):
        np.testing.assert_array_equal(load(path)(X), expected)
    assert faulty.journal.count("close") == 1


@pytest.mark.usefixtures("small_is_kept")
def test_files_that_are_no_bundles_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"^there is no bundle '.*model\.xrt'$"):
        xrt.load(path)
    path.write_bytes(b"not one" * 20)
    assert not is_bundle(path)
    with pytest.raises(BundleError, match=r"model\.xrt': it does not begin like a file written by XRT$"):
        xrt.load(path)
    with pytest.raises(BundleError, match=f"^cannot load '{tmp_path}'"):
        xrt.load(tmp_path)
    with xrt.XRTModule(perceptron(), engine="ort", cache=tmp_path / "cache") as module:
        module(X)
    entry = next((tmp_path / "cache").rglob("*.xrt"))
    with pytest.raises(BundleError, match="it is a 'cache entry' file, not a 'bundle' file"):
        xrt.load(entry)


TOP = Path(__file__).parents[2]


def write_record(path: Path, text: bytes) -> None:
    """Replace the record of a bundle."""
    container = Container.open(path, "bundle")
    sections = {name: bytes(container.section(name)) for name in container.sections}
    path.write_bytes(reseal("bundle", sections | {"manifest": text}))


def read_record(path: Path) -> Any:
    return json.loads(bytes(Container.open(path, "bundle").section("manifest")))


@pytest.mark.slow
def test_a_load_in_a_new_process_imports_no_onnx(path: Path) -> None:
    expected = saved(path)
    np.save(path.parent / "x.npy", X)
    code = (
        "import sys, json, numpy as np, xrt\n"
        "y = xrt.load(sys.argv[1])(np.load(sys.argv[2])); np.save(sys.argv[3], y)\n"
        "roots = ('xrt', 'onnx', 'google', 'msgspec', 'socket', 'subprocess')\n"
        "print(json.dumps([name for name in sys.modules if name.partition('.')[0] in roots]))"
    )
    files = [str(path), str(path.parent / "x.npy"), str(path.parent / "y.npy")]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    completed = subprocess.run([sys.executable, "-c", code, *files], env=environment, capture_output=True, text=True, check=True)
    loaded = json.loads(completed.stdout)
    unneeded = {"onnx", "google", "msgspec", "socket", "subprocess", "xrt.formats.protobuf", "xrt.worker"}
    assert not unneeded & {*loaded}
    assert np.array_equal(np.load(files[2]), expected)


def test_a_mixture_keeps_its_plan_and_pins(path: Path) -> None:
    with xrt.XRTModule(perceptron(), ["ort", "toy"], cache=CompileCache(), pins=["Softmax=toy"]) as module:
        expected = module(X)
        module.save(path)
        with load(path) as loaded:
            assert np.array_equal(loaded(X), expected)
            assert loaded.plan == module.plan and len(loaded.plan.launches[0].function.nodes) == 3
            assert [launch.engine for launch in loaded.plan.launches] == ["ort", "toy"]
            assert "engine 'toy' cannot save an executable" in str(loaded.explain())
            assert loaded.verify(X)


FAULTS: dict[str, Callable[[Any], object]] = {
    "no facts": lambda record: record.update(facts={}),
    "types": lambda record: record["facts"].update(strict=1),
    "engines": lambda record: record["facts"].update(engines=[3]),
    "clustering": lambda record: record["facts"].update(clustering={"pins": [1]}),
    "an option that is none": lambda record: record["facts"].update(execution={"dump_subgraph_dir": "here"}),
    "launches": lambda record: record.update(programs=[{}]),
    "a model that is not there": lambda record: record["programs"][0].update(launches=[], plan="nowhere"),
}


@pytest.mark.parametrize("fault", [*FAULTS, b"", b"3", b"[" * 100_000])
def test_a_record_that_is_not_understood_is_an_error(path: Path, fault: str | bytes) -> None:
    saved(path)
    record = read_record(path)
    if isinstance(fault, str):
        FAULTS[fault](record)
    write_record(path, json.dumps(record).encode() if isinstance(fault, str) else fault)
    with pytest.raises(BundleError, match=r"^cannot load '.*model\.xrt': "):
        load(path)


def test_a_record_of_another_region_is_noticed_when_its_nodes_are_read(path: Path) -> None:
    expected = saved(path)
    record = read_record(path)
    record["programs"][0]["launches"][0][5] = "0" * 64
    record["programs"][0]["compiled"][0][0] = ""  # no compiled form: it is compiled from the nodes
    write_record(path, json.dumps(record).encode())
    with load(path) as loaded:
        assert np.array_equal(loaded(X), expected)


VECTOR = np.arange(4, dtype=np.float32)


def bundle_with(spec: str, path: Path) -> Path:
    """A bundle whose manifest names that engine."""
    with xrt.XRTModule(chain(2), "toy", strict=True, cache=CompileCache(), threads=1) as module:
        module.save(path)
    record = BundleFile(path).record
    for engine in record.facts["engines"]:
        engine["spec"] = spec
    model = BundleFile(path).read_model("model")
    write_bundle(path, record._replace(programs=()), {"model": model}, {}, {})
    return path


CHOSEN = [
    ("toy{libraries=(nowhere.so)}", "libraries"),
    ("ort{config.session.intra_op.allow_spinning=0}", "config"),
    ("ort{provider_options.CUDAExecutionProvider.device_id=1}", "provider_options"),
]


@pytest.mark.parametrize(("spec", "field"), CHOSEN)
def test_an_engine_that_may_name_files_is_not_made(
    spec: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundle_with(spec, tmp_path / "model.xrt")
    monkeypatch.setattr(registry, "create", lambda *_: pytest.fail("it is made"))
    with raises_exactly(
        BundleError,
        f"cannot load '{path}': the bundle has engine '{spec}', whose {field} may name files or code, and a bundle does not "
        f"choose what is run; pass engine='{spec}' (-e on the command line) if that is what you want",
    ):
        xrt.load(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "names_files"),
    [
        ("ort{config.session.intra_op.allow_spinning=0}", True),
        ("toy{native=off}", False),
        ("ort{providers=CPUExecutionProvider}", False),
        ("tvm{mcpu=x86-64-v3}", False),
        ("iree{opt_level=1}", False),
    ],
)
def test_a_spec_that_names_no_file_or_that_the_caller_names_is_made(spec: str, names_files: bool, tmp_path: Path) -> None:
    path = bundle_with(spec, tmp_path / "model.xrt")
    with load(path, engine=spec if names_files else ()) as module:
        np.testing.assert_array_equal(module(VECTOR), VECTOR + 1)


def test_a_library_that_the_caller_names_is_looked_for(tmp_path: Path) -> None:
    library = bundle_with("toy{libraries=(nowhere.so)}", tmp_path / "library.xrt")
    with pytest.warns(FallbackWarning, match=r"native library '.*nowhere\.so' cannot be used: there is no such file"):
        xrt.load(library, engine="toy{libraries=(nowhere.so)}")


def test_naming_what_the_bundle_has_not_is_an_error(tmp_path: Path) -> None:
    path = bundle_with("toy{native=off}", tmp_path / "model.xrt")
    with raises_exactly(
        OptionError, "engine names 'toy{native=of}'; the bundle has toy{native=off}. Did you mean 'toy{native=off}'?"
    ):
        xrt.load(path, engine=["toy{native=of}"])


@dataclass(frozen=True)
class Declared(GraphCompiler):
    name = "declared"
    text: str = ""
    word: str = option("", names_files=False)
    number: int = option(0, names_files=True)

    def why_not(self, node: Any, function: Any) -> None: ...

    def compile(self, function: Any, context: Any) -> Any: ...


def test_a_field_says_whether_it_names_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "engine_class", lambda name: Declared)
    assert registry.list_file_options("declared{text=a, word=b, number=3}") == ("number", "text")
    assert registry.why_forbidden("declared{word=b}", "lock") is None


@pytest.mark.slow
def test_the_command_takes_what_is_named(tmp_path: Path, command: Callable[..., Any]) -> None:
    spec = "ort{config.session.intra_op.allow_spinning=0}"
    path = bundle_with(spec, tmp_path / "model.xrt")
    code, _, err = command("run", path)
    assert code == 2 and "does not choose what is run" in err
    assert command("run", path, "-e", spec)[0] == 0


def test_every_text_option_of_the_engines_is_declared() -> None:
    """Free text of XRT's own engines is declared, so that nobody has to guess."""
    for name in registry.names():
        try:
            cls = registry.engine_class(name)
        except EngineError:
            continue
        if cls.__module__.startswith("xrt."):
            kinds = field_types(cls)
            for field in fields(cls):
                assert is_bounded(kinds[field.name]) or NAMES_FILES in field.metadata, f"{name}.{field.name}"


def module(function: Function | None = None, engine: str = "ort", **options: Any) -> XRTModule:
    return xrt.XRTModule(function or perceptron(), engine, cache=CompileCache(), **options)


def read(path: Path) -> Example | None:
    file, name = BundleFile(path), bundle.SELF_TEST_SECTION
    return decode_example(file.read_section(name)) if name in file.sections else None


def test_a_bundle_has_a_random_example_with_its_outputs(path: Path) -> None:
    saved = module()
    saved.save(path)
    example = read(path)
    ((name, data),), ((output, expected),) = example.inputs, example.outputs
    assert (name, output) == ("x", "y")
    np.testing.assert_array_equal(saved(data), expected)
    report = load(path, strict=True).run_self_test()
    assert report is not None and report.difference == 0
    assert re.fullmatch(r"self-test passed in \d+\.\d{3} s; largest difference 0", str(report))


@pytest.mark.parametrize(("examples", "named"), [([X], {}), ([], {"x": X})])
def test_inputs_of_save_are_the_example(examples: list[Any], named: dict[str, Any], path: Path) -> None:
    saved = module(perceptron("N"))
    saved.save(path, *examples, **named)
    example = read(path)
    np.testing.assert_array_equal(example.inputs[0][1], X)
    np.testing.assert_array_equal(example.outputs[0][1], saved(X))


def test_an_example_that_is_neither_true_nor_false_is_refused(path: Path) -> None:
    with raises_exactly(OptionError, "example is True or False; got list: pass inputs as in a call, save(path, x)"):
        module().save(path, example=[X])
    assert not path.exists()


def test_a_bundle_of_a_loaded_module_keeps_its_example(path: Path, tmp_path: Path) -> None:
    module().save(path, X)
    with load(path) as loaded:
        loaded.save(tmp_path / "again.xrt")
    first, again = read(path), read(tmp_path / "again.xrt")
    assert first is not None and again is not None
    assert encode_example(first) == encode_example(again)


NO_EXAMPLE = {
    "example=False": perceptron(),
    "random": graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("RandomNormalLike", "x", "y")),
    "texts": graph({"x": "string[2]"}, {"y": "string[N]"}, node("StringNormalizer", "x", "y")),
    "large": graph({"x": "float32[2048,1025]"}, {"y": "float32[2048,1025]"}, node("Relu", "x", "y")),
}


@pytest.mark.parametrize("case", NO_EXAMPLE)
def test_without_an_example_there_is_nothing_to_compare(case: str, path: Path) -> None:
    saved = module(NO_EXAMPLE[case], "toy")
    assert saved.run_self_test() is None
    saved.save(path, example=case != "example=False")
    assert read(path) is None
    assert load(path).run_self_test() is None


def test_symbolic_sizes_and_several_types_are_kept(path: Path) -> None:
    inputs = {"x": "bool[N]", "y": "bfloat16[N]", "z": "bfloat16[N]"}
    module(graph(inputs, {"out": "bfloat16[N]"}, node("Where", "x y z", "out")), "toy").save(path)
    report = load(path).run_self_test()
    assert report is not None and report.difference == 0
    example = read(path)
    assert [str(DType.from_array(array)) for _, array in (*example.inputs, *example.outputs)] == ["bool", *["bfloat16"] * 3]


def test_other_results_are_an_error_with_the_largest_difference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module().save(path, X)
    example = read(path)
    wrong = Example(example.inputs, tuple((name, array + np.float32(0.5)) for name, array in example.outputs))
    monkeypatch.setattr(bundle, "read_example", lambda file: wrong)
    with pytest.raises(SelfTestFailed) as raised:
        load(path).run_self_test()
    text = str(raised.value)
    assert text.startswith(f"the self-test of {str(path)!r} failed: y differs in 128 of 128 elements; at worst y[")
    assert text.endswith(f"; save the bundle again where its results are right, or find what differs with `xrt verify {path}`")
    assert raised.value.difference == pytest.approx(0.5)


def test_a_damaged_bundle_fails_wherever_the_damage_is(path: Path) -> None:
    """In whichever section: also those that no call of the example reads."""
    saved = module(perceptron("N"), ["ort", "tvm"], shapes="each", strict=True, threads=1)  # type: ignore[arg-type]
    saved.compile(X)
    saved.save(path, X[:1])
    whole = path.read_bytes()
    sections = Container.open(path, "bundle").sections
    assert {"manifest", "plan:0", "self-test", "model"} <= {*sections}
    for section in sections.values():
        damaged = bytearray(whole)
        damaged[section.offset + section.size // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(BundleError, match="the checksum of its section"):
            load(path).run_self_test()


def test_a_call_that_fails_is_the_same_error(path: Path) -> None:
    module().save(path, X)
    loaded = load(path)
    loaded.close()
    with pytest.raises(SelfTestFailed) as raised:
        loaded.run_self_test()
    assert str(raised.value) == f"the self-test of {str(path)!r} failed: the module is closed; make a new XRTModule"
    assert raised.value.difference is None


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"{}", encode_example(Example((), ()))[:20]])
def test_an_example_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(BundleError, match="its example cannot be read"):
        decode_example(memoryview(data))
