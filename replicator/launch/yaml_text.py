"""YAML that a person can read and change, written with PyYAML."""

import re
from typing import Any

import yaml  # type: ignore[import-untyped]

# Other texts are quoted: `1e3` is one to PyYAML (YAML 1.1) and a number to other readers.
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]+")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and lists indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents every block; PyYAML leaves lists at the level of their key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """True: an object that occurs twice is written twice, without anchors."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(*documents: Any) -> str:
    """The documents as YAML, with `---` between them.

    A document is made of mappings, lists, texts, numbers, booleans and None; the order of keys is
    kept.
    """
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
