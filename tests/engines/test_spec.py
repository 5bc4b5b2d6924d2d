"""An engine as text and back, and what is said of text that is no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, strategies as st

from tests.exact_errors import raises_exactly
from xrt.engines import CompileContext, Executable, GraphCompiler, build, format_spec, parse_spec, split_specs
from xrt.errors import OptionError
from xrt.graph import FrozenDict, Function, Node


class Silent(GraphCompiler):
    """The mandatory methods, so that the tests can talk about fields alone."""

    name: ClassVar[str] = "mine"

    def why_not(self, node: Node, function: Function) -> str | None:
        return None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        raise NotImplementedError


@dataclass(frozen=True)
class Mine(Silent):
    level: int = 3
    rate: float = 1.0
    fast: bool = False
    target: str = "llvm"
    cpu: str | None = None
    threads: int | Literal["auto"] = "auto"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    providers: tuple[str, ...] = ("CPU",)
    tile: tuple[int, int] | None = None
    limit: int | str | None = None
    home: Path | None = None
    config: Mapping[str, str] = FrozenDict()
    provider_options: Mapping[str, Mapping[str, str]] = FrozenDict()


@dataclass(frozen=True)
class Plain(Silent):
    pass


@dataclass(frozen=True)
class Strange(Silent):
    shape: complex = 1j


@dataclass(frozen=True)
class Needy(Silent):
    path: str
    retries: int | bool = 1


def remade(engine: GraphCompiler) -> GraphCompiler:
    name, fields = parse_spec(format_spec(engine))
    assert name == engine.name
    return build(type(engine), fields)


@pytest.mark.parametrize(
    ("engine", "spec"),
    [
        (Mine(), "mine"),
        (Mine(level=2, fast=True, layout="NHWC"), "mine{fast=true, layout=NHWC, level=2}"),
        (Mine(target="llvm -mcpu=native"), "mine{target='llvm -mcpu=native'}"),
        (Mine(target="a, b}"), "mine{target='a, b}'}"),
        (Mine(cpu="none"), "mine{cpu='none'}"),
        (Mine(providers=()), "mine{providers=()}"),
        (Mine(providers=("CUDA", "CPU")), "mine{providers=(CUDA, CPU)}"),
        (Mine(limit="3"), "mine{limit='3'}"),
        (Mine(home=Path("/opt/lib")), "mine{home=/opt/lib}"),
        (Mine(config={"session.b": "1", "a=b": "x y"}), "mine{config.'a=b'='x y', config.session.b=1}"),
        (Mine(provider_options={"CUDA": {"device_id": "1"}}), "mine{provider_options.CUDA={device_id=1}}"),
        (Mine(rate=1), "mine"),
        (Mine(rate=2), "mine{rate=2.0}"),
        (Needy("x", retries=True), "mine{path=x, retries=true}"),
    ],
)
def test_an_engine_is_written_and_read_back(engine: GraphCompiler, spec: str) -> None:
    assert format_spec(engine) == spec
    assert remade(engine) == engine


def test_braces_around_nothing_and_spaces_do_not_matter() -> None:
    assert parse_spec(" mine { level = 2 ,fast=TRUE} ") == ("mine", {"level": "2", "fast": "TRUE"})
    assert parse_spec("mine{}") == ("mine", {})


def test_a_tuple_of_one_may_stand_alone_and_brackets_do_as_parentheses() -> None:
    assert build(Mine, {"providers": "CUDA"}).providers == ("CUDA",)
    assert build(Mine, {"providers": "[A, B]"}).providers == ("A", "B")
    assert build(Mine, {"providers": "(A,)"}).providers == ("A",)


def test_a_list_of_specs_is_split_at_the_outer_commas() -> None:
    assert split_specs("tvm{opt_level=3, target='a,b'}, ort , toy") == ["tvm{opt_level=3, target='a,b'}", "ort", "toy"]


texts = st.text(max_size=12)


def dictionaries(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(texts, values, max_size=3).map(FrozenDict)


mines = st.builds(
    Mine,
    level=st.integers(),
    rate=st.floats(allow_nan=False),
    fast=st.booleans(),
    target=texts,
    cpu=st.none() | texts,
    threads=st.integers() | st.just("auto"),
    providers=st.lists(texts, max_size=3).map(tuple),
    tile=st.none() | st.tuples(st.integers(), st.integers()),
    limit=st.none() | st.integers() | texts,
    config=dictionaries(texts),
    provider_options=dictionaries(dictionaries(texts)),
)


@pytest.mark.slow
@given(mines)
def test_every_engine_survives_its_spec(engine: Mine) -> None:
    assert remade(engine) == engine
    assert format_spec(remade(engine)) == format_spec(engine)
    assert split_specs(f"{format_spec(engine)}, ort") == [format_spec(engine), "ort"]


NOT_A_SPEC = "{text!r} is not an engine's spec: {why}. A spec reads like 'tvm{{opt_level=2}}'"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a name, and braces around its options"),
        ("mine{level=3", "expected a name, and braces around its options"),
        ("mine{level}", "expected option=value; got 'level'"),
        ("mine{level=1, level=2}", "'level' is set twice"),
        ("mine{target='x}", 'the quote at "\'x" has no end'),
        ("mine{tile=(1}", "'(' in 'tile=(1' is not closed"),
        ("mine{tile=1)}", "')' in 'tile=1)' has no opening bracket"),
    ],
)
def test_text_that_is_no_spec(text: str, why: str) -> None:
    with raises_exactly(OptionError, NOT_A_SPEC.format(text=text, why=why)):
        parse_spec(text)


OPTIONS = "config, cpu, fast, home, layout, level, limit, provider_options, providers, rate, target, threads, tile"
NO_SUCH = "there is no such option; "


@pytest.mark.parametrize(
    ("cls", "key", "raw", "message"),
    [
        (Mine, "levle", "1", f"{NO_SUCH}its options are {OPTIONS}. Did you mean 'level'?"),
        (Plain, "level", "1", f"{NO_SUCH}it has no options."),
        (Mine, "level", "x", "expected a whole number; got 'x'"),
        (Mine, "fast", "1", "expected true or false; got '1'"),
        (Mine, "layout", "NCWH", "expected one of NCHW, NHWC; got 'NCWH'"),
        (Mine, "tile", "(1, 2, 3)", "expected tuple[int, int] | None; got '(1, 2, 3)'"),
        (Mine, "config", "1", "expected {key=value, ...}; got '1'"),
        (Mine, "level.x", "1", "'level' is not a mapping, so it has no entry 'x'"),
        (Strange, "shape", "1", "type complex cannot be written in a spec; create the engine in Python instead"),
    ],
)
def test_a_field_that_is_wrong(cls: type[GraphCompiler], key: str, raw: str, message: str) -> None:
    with raises_exactly(OptionError, f"option {key!r} of engine 'mine': {message}"):
        build(cls, {key: raw})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": "3"}, "option 'level' of engine 'mine': expected int; got '3'"),
        ({"level": True}, "option 'level' of engine 'mine': expected int; got True"),
        ({"providers": ["CPU"]}, "option 'providers' of engine 'mine': expected tuple[str, ...]; got ['CPU']"),
        ({"config": {"a": 1}}, "option 'config' of engine 'mine': expected collections.abc.Mapping[str, str]; got {'a': 1}"),
    ],
)
def test_an_instance_whose_field_is_of_another_type(changes: dict[str, Any], message: str) -> None:
    with raises_exactly(OptionError, message):
        format_spec(Mine(**changes))
