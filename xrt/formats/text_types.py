"""The part of the text form's grammar that types need, and the small rules that everything else needs too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from xrt.errors import ModelError
from xrt.formats.tokens import TextError, Token, Tokens
from xrt.graph import Dim, DType, MapType, OptionalType, SequenceType, TensorType, Type
from xrt.graph.printer import RESERVED

__all__ = ["DEPTH", "PLAIN_TYPE", "TypeParser"]

DEPTH = 50
"""How deep bodies, and types, may be nested."""

PLAIN_TYPE = r"[a-z][a-z0-9_]*\[[A-Za-z0-9_./,?]{0,100}\]"
"""A tensor's type without spaces, quotes or comments, as the printer writes it."""

_PLAIN = re.compile(PLAIN_TYPE)

T = TypeVar("T")


class TypeParser:
    """Parses types, names and lists; one method per rule."""

    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text)
        self.types: dict[str, TensorType] = {}

    # ------------------------------------------------------------------ types

    def type_or_unknown(self) -> Type | None:
        return None if self.tokens.takes("?") else self.type(0)

    def type(self, depth: int) -> Type:
        tokens, token = self.tokens, self.tokens.now
        if depth > DEPTH:
            tokens.refuse(f"types are nested more than {DEPTH} deep", token)
        plain = tokens.ahead(_PLAIN)
        if plain:
            return self.plain_type(plain[0])
        if token.kind != "word":
            tokens.fail("a type")
        word = tokens.take().text
        if word not in ("seq", "optional", "map"):
            return self.tensor_type(token)
        tokens.expect("(")
        if word == "map":
            key = self.dtype(tokens.take())
            tokens.expect(",")
        element = self.type(depth + 1)
        tokens.expect(")")
        return MapType(key, element) if word == "map" else SequenceType(element) if word == "seq" else OptionalType(element)

    def parse_declared_tensor(self) -> TensorType:
        """Return a tensor's type, which is one object for all that are written alike."""
        plain = self.tokens.ahead(_PLAIN)
        return self.plain_type(plain[0]) if plain else self.tensor_type()

    def plain_type(self, plain: str) -> TensorType:
        """Read the tensor's type at the current position; types recur, and equal ones become one object."""
        if plain in self.types:
            self.tokens.skip(plain)
        else:
            self.types[plain] = self.tensor_type()
        return self.types[plain]

    def dtype(self, token: Token) -> DType:
        return self.check(token, lambda: DType.parse(token.text))

    def tensor_type(self, word: Token | None = None) -> TensorType:
        """Return a tensor's type; ``word`` is its element type where that has been taken already."""
        dtype = self.dtype(word or self.tokens.take())
        self.tokens.expect("[")
        if self.tokens.takes("..."):
            self.tokens.expect("]")
            return TensorType(dtype)
        return TensorType(dtype, tuple(self.parse_list("]", self.extent)))

    def extent(self) -> Dim:
        if self.tokens.takes("?"):
            return None
        if self.tokens.now.kind == "number":
            return self.tokens.size("an extent")
        return self.name("an extent: a number, a name or ?")

    # ------------------------------------------------------------------ small things

    def name(self, what: str) -> str:
        token = self.tokens.now
        if token.kind == "string":
            return self.tokens.string(what)
        if token.kind != "word" or token.text in RESERVED:
            self.tokens.fail(what)
        return self.tokens.take().text

    def name_or_blank(self, what: str) -> str:
        return "" if self.tokens.takes("_") else self.name(what)

    def parse_list(self, end: str, item: Callable[[], T]) -> list[T]:
        """Return items between commas up to the closing mark; a comma may follow the last."""
        items = []
        while not self.tokens.takes(end):
            items.append(item())
            if not self.tokens.takes(","):
                self.tokens.expect(end)
                break
        return items

    def check(self, token: Token, make: Callable[[], T]) -> T:
        """Return the result of ``make``; its errors get the position of the token, unless they have a position of their own."""
        try:
            return make()
        except TextError:
            raise
        except (ModelError, ValueError, OverflowError) as error:
            self.tokens.refuse(str(error), token, error)
