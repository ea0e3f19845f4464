"""Readable YAML, written with PyYAML."""

import re
from typing import Any

import yaml  # type: ignore[import-untyped]

# Other strings are quoted: `1e3` is a string in PyYAML (YAML 1.1) and a number to other readers.
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]+")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes multi-line strings as blocks and indents lists below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent every block; PyYAML leaves lists at the level of their key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: an object that occurs twice is written twice, without anchors."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(*documents: Any) -> str:
    """Return the documents as YAML, separated by `---`.

    A document is made of mappings, lists, strings, numbers, booleans and None; the order of keys is
    kept.
    """
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
