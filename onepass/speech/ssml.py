"""Pauses and emphasis that people write: a subset of SSML 1.1 (W3C 2010).

A text whose root is <speak> is SSML. <break>, <emphasis> and the rate of <prosody> are obeyed.
Other tags are left out, and what they enclose is spoken. A document may have no DTD, without which
XML has no entities to expand but the five of its own.
"""

import re
from collections.abc import Mapping
from typing import TypeVar
from xml.parsers import expat

from onepass.speech.phonemes import MAX_SPEED, MIN_SPEED, PLAIN, US_ENGLISH, Mark, TextError
from onepass.speech.pronunciations import new_mark

MAX_BREAK_SECONDS = 10.0
BREAKS, RATES, EMPHASES = (US_ENGLISH["ssml"][name] for name in ("breaks", "rates", "emphases"))
ROOT = "speak"
OBEYED = {"break": ("time", "strength"), "emphasis": ("level",), "prosody": ("rate",)}
Value = TypeVar("Value")

_SSML = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?<(?:speak[\s/>]|!DOCTYPE\s)")
_TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>")  # a tag of SSML or HTML
_TIME = re.compile(r"\+?(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})(ms|s)")
_PERCENT = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)%")


def is_ssml(text: str) -> bool:
    """Return whether a text is a document of SSML, which begins with <speak>, or as XML does."""
    return _SSML.match(text) is not None


class Ssml:
    """The text of a document of SSML, with characters in the place of its tags.

    Attributes:
      text: the text; a character of `marks` stands where the document has a pause or a change.
      left_out: the names of tags and attributes that are not obeyed, each once, as they come.
    """

    def __init__(self, document: str, marks: dict[str, Mark]):
        self._marks, self._styles, self._parts = marks, [PLAIN], [""]
        self.left_out: list[str] = []
        parser = expat.ParserCreate("utf-8")
        parser.StartDoctypeDeclHandler = _refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._parts.append
        try:
            parser.Parse(document.strip(), True)
        except expat.ExpatError as error:
            place = f"line {error.lineno}, column {error.offset + 1}"
            raise TextError(
                f"The SSML must be well-formed XML, got {expat.ErrorString(error.code)} at {place}."
            ) from error
        except UnicodeEncodeError as error:
            raise TextError("The SSML must be text, got half a character.") from error
        self.text = "".join(self._parts)

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        style = self._styles[-1]
        if name == "break":
            self._add(Mark(seconds=_break_seconds(attributes)))
        elif name == "emphasis":
            level = attributes.get("level", "moderate")
            stretch, octaves = _one_of(EMPHASES, "level", "emphasis", level)
            style = _style(style, stretch, octaves)
        elif name == "prosody":
            style = _style(style, 1.0 / _rate(attributes.get("rate", "medium")), 0.0)
        elif name != ROOT or len(self._styles) > 1:
            self._leave_out(f"<{name}>")
        for attribute in attributes if name in OBEYED else ():
            if attribute not in OBEYED[name]:
                self._leave_out(f"`{attribute}` of <{name}>")
        self._change_to(style)

    def _end(self, name: str) -> None:
        style = self._styles.pop()
        self._parts.append(" ")
        if style != self._styles[-1]:
            self._add(self._styles[-1])

    def _change_to(self, style: Mark) -> None:
        self._parts.append(" ")
        if style != self._styles[-1]:
            self._add(style)
        self._styles.append(style)

    def _add(self, mark: Mark) -> None:
        self._parts.append(f" {new_mark(self._marks, mark)} ")

    def _leave_out(self, name: str) -> None:
        if name not in self.left_out:
            self.left_out.append(name)


def _refuse_doctype(*given: object) -> None:
    raise TextError("The SSML must have no document type (<!DOCTYPE>), and so no entities.")


def _style(outer: Mark, stretch: float, octaves: float) -> Mark:
    whole = min(1.0 / MIN_SPEED, max(1.0 / MAX_SPEED, (outer.stretch or 1.0) * stretch))
    return Mark(stretch=whole, octaves=max(-0.5, min(0.5, outer.octaves + octaves)))


def _break_seconds(attributes: Mapping[str, str]) -> float:
    time = attributes.get("time")
    if time is None:
        strength = attributes.get("strength", "medium")
        return float(_one_of(BREAKS, "strength", "break", strength))
    found = _TIME.fullmatch(time.strip())
    seconds = float(found[1]) / (1000.0 if found[2] == "ms" else 1.0) if found else -1.0
    if not 0.0 <= seconds <= MAX_BREAK_SECONDS:
        raise TextError(
            f"`time` of <break> must be such as 500ms or 1.5s, at most {MAX_BREAK_SECONDS:g}s, "
            f"got {time!r}."
        )
    return seconds


def _rate(value: str) -> float:
    found = _PERCENT.fullmatch(value.strip())
    rate = float(found[1]) / 100.0 if found else RATES.get(value.strip(), 0.0)
    if not MIN_SPEED <= rate <= MAX_SPEED:
        raise TextError(
            f"`rate` of <prosody> must be {', '.join(RATES)} or from {MIN_SPEED:.0%} to "
            f"{MAX_SPEED:.0%}, got {value!r}."
        )
    return rate


def _one_of(known: Mapping[str, Value], attribute: str, tag: str, value: str) -> Value:
    if value not in known:
        rule = f"must be one of {', '.join(known)}"
        raise TextError(f"`{attribute}` of <{tag}> {rule}, got {value!r}.")
    return known[value]


def note_on_markup(text: str) -> str | None:
    """Return a note on tags that are not obeyed, None if there are none.

    In SSML they are left out, in a plain text they are read aloud.
    """
    if is_ssml(text):
        names = Ssml(text, {}).left_out
        return f"not obeyed and left out: {', '.join(names)}" if names else None
    found = _TAG.search(text)
    if found is None:
        return None
    return f"{found[0]} and other tags are read aloud: SSML must begin with <speak>"
