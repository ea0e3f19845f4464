"""Spells out written English as it is read aloud: abbreviations, money, units, years, addresses.

espeak-ng reads most numbers and symbols correctly. The forms that it misreads, or mistakes for the
end of a sentence, are spelled out here.
"""

import re

ALWAYS_MID_SENTENCE = {
    "Mr": "Mr",
    "Mrs": "Mrs",
    "Ms": "Ms",
    "Dr": "Doctor",
    "Prof": "Professor",
    "Capt": "Captain",
    "Col": "Colonel",
    "Gen": "General",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Gov": "Governor",
    "Sen": "Senator",
    "Mt": "Mount",
    "St": "Saint",
    "Fig": "figure",
    "Figs": "figures",
    "Eq": "equation",
    "Sec": "section",
    "Ch": "chapter",
    "Vol": "volume",
    "vs": "versus",
    "cf": "compare",
    "approx": "approximately",
    "e.g": "for example",
    "i.e": "that is",
    "et al": "et al",
}
"""Abbreviations whose period never ends a sentence, and how they are read."""

SOMETIMES_LAST = {
    "a.m": "A M",
    "p.m": "P M",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Co": "Company",
    "Corp": "Corporation",
    "Jr": "Junior",
    "Sr": "Senior",
    "etc": "et cetera",
    "Ph.D": "P H D",
    "Ave": "Avenue",
    "Blvd": "Boulevard",
    "Dept": "Department",
    "dept": "department",
    "min": "minutes",
    "Jan": "January",
    "Feb": "February",
    "Aug": "August",
    "Sept": "September",
    "Oct": "October",
    "Nov": "November",
    "Dec": "December",
}
"""Abbreviations whose period can end a sentence, and how they are read."""

UNITS = {
    "km": "kilometre",
    "cm": "centimetre",
    "mm": "millimetre",
    "m": "metre",
    "g": "gram",
    "kg": "kilogram",
    "mg": "milligram",
    "ml": "millilitre",
    "km/h": "kilometre per hour",
    "kHz": "kilohertz",
    "Hz": "hertz",
    "MHz": "megahertz",
    "GB": "gigabyte",
    "MB": "megabyte",
    "\u00b0C": "degree Celsius",
    "\u00b0F": "degree Fahrenheit",
}
UNCHANGED = ("hertz", "kilohertz", "megahertz")  # the plural is the same
CURRENCIES = {"$": ("dollar", "cent"), "\u00a3": ("pound", "penny"), "\u20ac": ("euro", "cent")}
DECADES = (
    "hundreds",
    "tens",
    "twenties",
    "thirties",
    "forties",
    "fifties",
    "sixties",
    "seventies",
    "eighties",
    "nineties",
)
SCALES = "thousand|million|billion|trillion"
STARTERS = (
    "A|An|And|As|At|But|For|From|He|Her|His|How|I|If|In|It|Its|My|No|On|Our|She|So|That|The|Their|"
    "Then|There|These|They|This|Those|To|We|What|When|Where|Which|Who|Why|Yes|You|Your"
)
"""Words that often begin a sentence and are not names."""

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_MONEY = re.compile(rf"([$\u00a3\u20ac])({_NUMBER})(?: ({SCALES})\b)?")
_UNIT = re.compile(rf"({_NUMBER}) ?({'|'.join(sorted(UNITS, key=len, reverse=True))})(?![\w/])")
_DECADE = re.compile(r"\b(1[1-9]|20)(\d)0s\b")
_NO_PLURAL = "was|is|has|does|as|this|its|his|us"
_COUNTED = rf"(?:(?:kilo|mega)?hertz|{SCALES}|(?!(?:{_NO_PLURAL})\b)[a-z]+s)\b"
_YEAR = re.compile(rf"(?<![\d.,$\u00a3\u20ac])\b(1[1-9])(\d\d)\b(?![\d%]|[.,:]\d| {_COUNTED})")
_NUMBERED = re.compile(r"\b(No|Nos|pp|p)\. ?(?=\d)")
_AT = re.compile(r"(?<=\w)@(?=\w)")
_INITIAL = re.compile(rf"\b([A-Z])\.(?= (?!(?:{STARTERS})\b(?!\.))[A-Z])")
_ACRONYM = re.compile(rf"\b((?:[A-Z]\.){{2,}})(?=(\s+(?:{STARTERS})\b|\s*$)?)")
_NUMBERED_WORDS = {"No": "number", "Nos": "numbers", "pp": "pages", "p": "page"}


def _pattern(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_MID = re.compile(rf"\b({_pattern(ALWAYS_MID_SENTENCE)})\.(?=[\s,)]|$)")
_LAST = re.compile(rf"\b({_pattern(SOMETIMES_LAST)})\.(?=(\s+[A-Z]|\s*$)?)")
_NOT_LAST = re.compile(
    r"\s+(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|January|February|March|April|May|June|July|"
    r"August|September|October|November|December|[A-Z]{2,})\b"
)


def read_aloud(text: str) -> str:
    """Return US English spelled out as it is read aloud.

    Abbreviations keep their period only at the end of a sentence.
    """
    text = _AT.sub(" at ", text)
    text = _MONEY.sub(_money, text)
    text = _UNIT.sub(_measure, text)
    text = _NUMBERED.sub(lambda found: f"{_NUMBERED_WORDS[found[1]]} ", text)
    text = _MID.sub(lambda found: ALWAYS_MID_SENTENCE[found[1]], text)
    text = _LAST.sub(_maybe_last, text)
    text = _ACRONYM.sub(_acronym, text)
    text = _INITIAL.sub(r"\1", text)
    text = _DECADE.sub(_decade, text)
    return _YEAR.sub(_year, text)


def _money(found: re.Match) -> str:
    unit, part = CURRENCIES[found[1]]
    number, scale = found[2].rstrip(","), found[3]
    rest = found[2][len(number) :]
    if scale:
        return f"{number} {scale} {unit}s{rest}"
    whole, _, parts = number.partition(".")
    if len(parts) != 2:
        return f"{number} {_plural(unit, number)}{rest}"
    words = f"{whole} {_plural(unit, whole)}"
    return words + (f" and {int(parts)} {_plural(part, str(int(parts)))}" if int(parts) else "")


def _measure(found: re.Match) -> str:
    first, *others = UNITS[found[2]].split(" ")
    return " ".join([found[1], _plural(first, found[1]), *others])


def _plural(word: str, number: str) -> str:
    if number == "1" or word in UNCHANGED:
        return word
    return "pence" if word == "penny" else f"{word}s"


def _maybe_last(found: re.Match) -> str:
    ends = found[2] is not None and not _NOT_LAST.match(found.string, found.end())
    return SOMETIMES_LAST[found[1]] + ("." if ends else "")


def _acronym(found: re.Match) -> str:
    return " ".join(found[1].replace(".", "")) + ("." if found[2] is not None else "")


def _decade(found: re.Match) -> str:
    return "two thousands" if found[0] == "2000s" else f"{found[1]} {DECADES[int(found[2])]}"


def _year(found: re.Match) -> str:
    century, year = found[1], found[2]
    if year == "00":
        return f"{century} hundred"
    return f"{century} oh {year[1]}" if year[0] == "0" else f"{century} {year}"
