"""Marks in a text that a listener would hear, since the front end reads plain text."""

import re

TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>")


def note_on_markup(text: str) -> str | None:
    """Return a note on the tags in a text, such as those of SSML; None if there are none."""
    found = TAG.search(text)
    if found is None:
        return None
    return f"{found[0]} and other tags are read aloud: the text must be plain, without SSML or HTML"
