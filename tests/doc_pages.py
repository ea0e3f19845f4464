"""The pages of the documentation, and the blocks and command lines that they hold."""

import re

from processes import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    """The fenced blocks of a language, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def lines(page):
    """The command lines of a page: continued lines joined, comments and redirections cut off."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.split(r"(?:^|\s)#|\s>\s", line)[0].strip()
            yield from (part.strip() for part in line.split(" && ") if part.strip())
