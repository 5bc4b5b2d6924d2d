"""JSON documents with a schema: lockfiles, placement decisions, cost tables and calibration tables.

Names are sorted, with one field or list item per line, so that diffs are readable. A document may be untrusted or merged by hand:
size, syntax and kind are checked first, then msgspec checks the schema.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
D = TypeVar("D")


def convert(value: Any, type_: type[D]) -> D:
    """Convert parsed JSON to a dataclass or a list of dataclasses; raises ValueError if structure or types differ."""
    return msgspec.convert(value, type_)


class DocumentError(ValueError):
    """The text is not a valid document; ``position`` is the path of the faulty value, such as ``plan[1].at``, or empty."""

    def __init__(self, message: str, position: str = "") -> None:
        super().__init__(f"{position}: {message}" if position else message)
        self.position = position


@dataclass(frozen=True)
class DocumentType(Generic[T]):
    """A type of document. ``kind`` identifies the type in the file, ``label`` names it in errors."""

    kind: str
    label: str
    schema: type[T]
    max_bytes: int

    def dumps(self, document: T) -> str:
        """Serialize a document; equal documents give equal text."""
        return f"{_format_json({'kind': self.kind, **msgspec.to_builtins(document, order='deterministic')}, '')}\n"

    def read_bytes(self, path: Path) -> bytes:
        """Read a file for `loads`; raises OSError, and DocumentError if it is not a regular file."""
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise DocumentError("it is not a regular file")  # opening a pipe may block forever
        with path.open("rb") as file:
            return file.read(self.max_bytes + 1)  # one byte too many shows `loads` that the file is too large

    def loads(self, data: str | bytes) -> T:
        """Parse a document; raises DocumentError with the position and the reason if the document is invalid."""
        if len(data) > self.max_bytes:
            raise DocumentError(f"it has more than {self.max_bytes >> 20} MB, the limit of a {self.label}")
        try:
            text = data.decode() if isinstance(data, bytes) else data  # json would also detect UTF-16 and UTF-32
            fields = json.loads(text, object_pairs_hook=_make_dict, parse_constant=_reject_constant)
            kind = fields.pop("kind", None) if isinstance(fields, dict) else None
            if kind != self.kind:
                raise DocumentError(f"it is not a {self.label}: its kind is {_make_printable(repr(kind))}, not {self.kind!r}")
            return msgspec.convert(fields, self.schema)
        except DocumentError:
            raise
        except RecursionError:
            raise DocumentError("it is nested too deeply") from None
        except json.JSONDecodeError as error:
            hint = "; was it merged by hand?" if "<<<<<<<" in error.doc else ""
            raise DocumentError(f"line {error.lineno} is not JSON: {error.msg}{hint}") from None
        except msgspec.ValidationError as error:
            # msgspec appends the position; the last separator counts, because a name in the message may contain it too.
            message, separator, position = str(error).rpartition(" - at `$")
            if not separator:
                message, position = position, ""
            position = position.removeprefix(".").removesuffix("`")
            raise DocumentError(_make_printable(message[:1].lower() + message[1:]), _make_printable(position)) from None
        except ValueError as error:  # text that is not UTF-8, a number with thousands of digits
            raise DocumentError(_make_printable(f"it cannot be read: {error}")) from None


def _make_printable(text: str) -> str:
    """Abbreviate and escape an error message that may quote the document."""
    return (text if text.isprintable() else ascii(text)[1:-1])[:300]


def _make_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make the dict of a JSON object; raises DocumentError for a repeated name, of which `json` would keep the last value."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise DocumentError(f"it has {name!a:.60} twice; was it merged by hand?")
        fields[name] = value
    return fields


def _reject_constant(text: str) -> NoReturn:
    raise DocumentError(f"it holds {text}, which JSON does not allow")


def _format_json(value: Any, indent: str) -> str:
    """Format JSON with one line per field, and one line per item of a list."""
    inner = f"{indent}  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(name)}: {_format_json(value[name], inner)}" for name in sorted(value)]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(f"{inner}{json.dumps(row, sort_keys=True)}" for row in value) + f"\n{indent}]"
    return json.dumps(value)
