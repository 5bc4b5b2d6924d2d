"""JSON documents with a schema: lockfiles, placement decisions, cost tables and calibration tables.

Names are sorted, with one fact per line, so that diffs are readable. msgspec checks the schema. The text may be merged by hand or
untrusted, so size, syntax and kind are checked first.
"""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


class DocumentError(ValueError):
    """The text is no document of this type; ``position`` is the path inside it, such as ``plan[1].at``, or empty."""

    def __init__(self, message: str, position: str = "") -> None:
        super().__init__(message)
        self.position = position


class _Constant:
    """NaN or an infinity, which no schema allows."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True)
class DocumentType(Generic[T]):
    """A type of document: its ``kind`` is written in the file, its ``title`` in errors."""

    kind: str
    title: str
    schema: type[T]
    max_bytes: int
    longest_text: int
    """Limit on the texts of the schema in characters."""

    def dumps(self, document: T) -> str:
        """Serialize a document; equal documents give equal text."""
        return f"{_lay_out({'kind': self.kind, **msgspec.to_builtins(document)}, '')}\n"

    def read_bytes(self, path: Path) -> bytes:
        """Read a file for `loads`; raises OSError, and DocumentError if it is not a regular file."""
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise DocumentError("it is not a regular file")  # opening a pipe may block forever
        with path.open("rb") as file:
            return file.read(self.max_bytes + 1)  # one byte too many shows `loads` that the file is too large

    def loads(self, data: str | bytes) -> T:
        """Parse a document; raises DocumentError with the position and the expectation if it is invalid."""
        facts = self._parse(data)
        kind = facts.pop("kind", None)
        if kind != self.kind:
            raise DocumentError(f"it is no {self.title}: its kind is {show(kind)}, not {self.kind!r}", "kind")
        fields = {field.name for field in msgspec.structs.fields(self.schema)}
        if unknown := next((name for name in facts if name not in fields), None):
            raise DocumentError(f"the document: unknown name {show(unknown)}")  # _locate could mistake the name for a position
        try:
            return msgspec.convert(facts, self.schema)
        except msgspec.ValidationError as error:
            raise self._locate(str(error), facts) from None
        except UnicodeEncodeError as error:  # a lone surrogate in place of a field name
            raise DocumentError(f"the document: unknown name {show(error.object)}") from None

    def _parse(self, data: str | bytes) -> dict[str, Any]:
        if len(data) > self.max_bytes:
            raise DocumentError(f"it has more than {self.max_bytes >> 20} MB, and no {self.title} has")
        try:
            text = data if isinstance(data, str) else data.decode("utf-8")
            facts = json.loads(text, object_pairs_hook=_check_unique, parse_constant=_Constant)
        except RecursionError:
            raise DocumentError("it is nested too deeply") from None
        except json.JSONDecodeError as error:
            hint = "; was it merged by hand?" if "<<<<<<<" in text else ""
            raise DocumentError(f"line {error.lineno} is not JSON: {error.msg}{hint}") from None
        except UnicodeDecodeError as error:
            raise DocumentError(f"byte {error.start} is not UTF-8") from None
        except DocumentError:
            raise
        except ValueError as error:  # an integer with thousands of digits
            raise DocumentError(f"it holds a number that cannot be read: {error}") from None
        if not isinstance(facts, dict):
            raise DocumentError(f"it is {show(facts)}, and a {self.title} is an object")
        return facts

    def _locate(self, message: str, facts: Any) -> DocumentError:
        """Build an error from msgspec's message, with the position and the value there if it is short."""
        match = _ERROR.fullmatch(message)
        reason, path = match.groups("") if match else (message, "")
        value, position = facts, ""
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # missing step: use the position so far
            for name, index in _STEP.findall(path):
                if index == "...":  # msgspec omits the key of a map; all maps contain texts
                    texts = ((key, isinstance(one, str) and len(one) <= self.longest_text) for key, one in value.items())
                    step: Any = next((key for key, is_valid in texts if not is_valid), "")
                else:
                    step = int(index) if index else name
                value = value[step] if isinstance(value, list) else value.get(step)
                position += f"[{step}]" if index.isdigit() else f".{ascii(step)[1:-1][:40]}"
        position = position.removeprefix(".")
        if isinstance(value, _Constant):
            return DocumentError(f"{position}: {value} is no number of a {self.title}", position)
        is_scalar = reason.startswith("Expected") and not isinstance(value, dict | list)
        shown = f"; it is {show(value)}" if is_scalar else ""
        reason = reason[:1].lower() + (reason if reason.isprintable() else ascii(reason)[1:-1])[1:300]  # may contain a long name
        return DocumentError(f"{position or 'the document'}: {reason}{shown}", position)


# A message of msgspec with the position at its end. A name in the message may look like a position too.
_ERROR = re.compile(r"(.*) - at (?:`key` in )?`\$(\S*)`", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    facts = dict(pairs)
    if len(facts) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise DocumentError(f"it has {show(name)} twice; was it merged by hand?")
    return facts


def _lay_out(value: Any, indent: str) -> str:
    """Format JSON with one line per entry; items of a list are one line each."""
    inner = f"{indent}  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(name)}: {_lay_out(value[name], inner)}" for name in sorted(value)]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(f"{inner}{json.dumps(row, sort_keys=True)}" for row in value) + f"\n{indent}]"
    return json.dumps(value)


def show(value: object) -> str:
    """Format a value for an error, abbreviated."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
