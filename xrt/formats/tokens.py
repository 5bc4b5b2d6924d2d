"""The words of the text form, one by one, each with its place."""

from __future__ import annotations

import json
import re
from typing import NamedTuple, NoReturn

from xrt.errors import ModelError

__all__ = ["TextError", "Token", "Tokens"]

_TOKEN = re.compile(
    r"""
    (?: [ \t\r\n]+ | \#[^\n]* )*+          # spaces and comments
  (?:
    (?P<string> "[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*" )
  | (?P<number> [+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)? | -inf\b )
  | (?P<word> [A-Za-z_/][A-Za-z0-9_./]* )
  | (?P<mark> -> | :: | \.\.\. | [()\[\]{}=,:@?] )
  | (?P<end> \Z )
  | (?P<character> . )
  )
    """,
    re.VERBOSE | re.DOTALL,
)

SIZES = 1 << 63


class TextError(ModelError):
    """A text does not follow the grammar; the message begins with the place."""


class Token(NamedTuple):
    """One word: its kind (``string``, ``number``, ``word``, ``mark``, or ``end``), its text, and where it starts."""

    kind: str
    text: str
    start: int

    @property
    def shown(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return repr(self.text if len(self.text) <= 40 else f"{self.text[:37]}...")


class Tokens:
    """The tokens of a text; ``now`` is the current one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.now = self._from(0)

    def _from(self, position: int) -> Token:
        """Return the first token at or after a position, spaces and comments left out."""
        match = _TOKEN.match(self.text, position)
        if match is None or match.lastgroup is None:
            raise AssertionError("every text matches one of the groups")
        start, end = match.span(match.lastgroup)
        token = Token(match.lastgroup, self.text[start:end], start)
        if token.kind == "character":
            self.fail("a name, a number, a string or a mark", token)
        return token

    def take(self) -> Token:
        """Return the current token and go on to the next."""
        token = self.now
        self.now = self._from(token.start + len(token.text))
        return token

    def ahead(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the pattern's match at the current token, without taking it."""
        return pattern.match(self.text, self.now.start)

    def skip(self, text: str) -> None:
        """Skip this text, which must follow at the current token and end where a token ends."""
        self.now = self._from(self.now.start + len(text))

    def takes(self, mark: str) -> bool:
        """Go on if the current token is that mark or word, and return whether it was."""
        if self.now.text != mark:
            return False
        self.take()
        return True

    def expect(self, mark: str) -> Token:
        """Take that mark or word; raises ModelError if the current token is another."""
        if self.now.text != mark:
            self.fail(repr(mark))
        return self.take()

    def string(self, what: str, errors: str = "strict") -> str:
        """Take a string in quotes and return what it says.

        ``errors`` is ``surrogateescape`` where it may stand for bytes that are no UTF-8.
        """
        if self.now.kind != "string":
            self.fail(f"{what} in double quotes")
        token = self.take()
        text = self._unescaped(token) if "\\" in token.text else token.text[1:-1]
        if not text.isascii():
            self._check_characters(text, token, errors)
        return text

    def _unescaped(self, token: Token) -> str:
        try:
            return str(json.loads(token.text))
        except json.JSONDecodeError as error:
            self.fail("a string with JSON's escapes", token, error)

    def _check_characters(self, text: str, token: Token, errors: str) -> None:
        """Refuse halves of characters: they could neither be written nor hashed."""
        try:
            text.encode("utf-8", errors)
        except UnicodeEncodeError as error:
            self.refuse(f"{token.shown} holds half of a character (a surrogate without its partner)", token, error)

    def integer(self, what: str) -> int:
        """Take a whole number; raises ModelError for anything else, and for one of absurd length."""
        token = self.now
        if token.kind != "number" or not token.text.lstrip("+-").isdigit() or len(token.text) > 100:
            self.fail(what)
        return int(self.take().text)

    def size(self, what: str) -> int:
        """Take a whole number of at most 64 bits, as extents and versions are everywhere else."""
        token = self.now
        number = self.integer(what)
        if not -SIZES <= number < SIZES:
            self.refuse(f"{what} must fit into 64 bits; found {token.shown}", token)
        return number

    def fail(self, expected: str, token: Token | None = None, cause: Exception | None = None) -> NoReturn:
        """Raise TextError that says what was expected, and what is there instead."""
        found = token or self.now
        self.refuse(f"expected {expected}; found {found.shown}", found, cause)

    def refuse(self, reason: str, token: Token, cause: Exception | None = None) -> NoReturn:
        """Raise TextError with the place of the token in front of the reason."""
        line = self.text.count("\n", 0, token.start) + 1
        column = token.start - self.text.rfind("\n", 0, token.start)
        raise TextError(f"line {line}, column {column}: {reason}") from cause
