"""What a text states: its numbers, whether it compares, and its words."""

import re
from typing import NamedTuple

CARDINALS = "zero one two three four five six seven eight nine ten eleven twelve".split()
CARDINALS = {word: float(value) for value, word in enumerate(CARDINALS)}
CARDINALS |= {"sixteen": 16.0, "twenty": 20.0, "thirty": 30.0, "fifty": 50.0, "sixty": 60.0}
CARDINALS |= {"a hundred": 100.0, "a thousand": 1000.0}
PARTS = "half third quarter fifth sixth seventh eighth ninth tenth".split()
PARTS = {word: float(value) for value, word in enumerate(PARTS, 2)}
PARTS |= {"fourth": 4.0, "twentieth": 20.0, "thirtieth": 30.0, "hundredth": 100.0}
FACTORS = {"half": 0.5, "halve": 0.5, "halves": 0.5, "halved": 0.5, "twice": 2.0, "twofold": 2.0}
FACTORS |= {"double": 2.0, "doubles": 2.0, "doubled": 2.0, "triples": 3.0, "tripled": 3.0}
# What a number of a unit may be in code.
SCALES = {"ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
SCALES |= {"GB/s": 1e9, "TFLOP/s": 1e12, "million": 1e6, "billion": 1e9, "points": 1e-2}
SCALES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "%": 1e-2, "per cent": 1e-2}
# The units of what is measured, and not merely set.
MEASURES = {"%", "×", "per cent", "times", "fold", "point", "points", "s"} | {*SCALES}

# The digit of a name is no number ("exercise 1", "ZeRO-3"), nor is a year.
NAMED = re.compile(
    r"\b(?:exercises?|figure|section|chapter|table|stage|rank|version|equation|llama|python|mamba)"
    r" \d[\w.]*|\b[A-Za-z]+-\d+\b|\b(?:19|20)\d\d\b"
    # A half of something that has two.
    r"|\b(?:a|both|each|first|one|other|second|three|two) hal(?:f|ves)\b",
    re.I,
)
DIGITS = r"(?<![\w.^·])\d[\d,]*(?:\.\d+)?(?!\w)"
UNIT = rf"(?:[ -]?({'|'.join(sorted(MEASURES, key=len, reverse=True))})(?![\w/]))?"
WRITTEN = re.compile(rf"({DIGITS}|\b(?:{'|'.join(CARDINALS)})\b)\**{UNIT}", re.I)
PART = re.compile(
    rf"\b(a|an|{'|'.join(CARDINALS)})[ -]({'|'.join(PARTS)})s?(?! (?:way|time|of all))\b", re.I
)
FACTOR = re.compile(rf"\b({'|'.join(FACTORS)})\b", re.I)

GROWS = "fast slow larg small bigg high low long short deep wid narrow clos cheap hard strong weak"
GROWS = f"(?:{f'{GROWS} few great coars fin light heavi simpl rar easi'.replace(' ', '|')})"
MOST = f"(?:{GROWS}est|best|worst|most|least)"
COMPARES = re.compile(
    r"\b(?:more|less|better|worse|beats?|outweighs?|wins|gains|loses|ahead of"
    r"|(?:is|are|was|were|falls?|fell|far|points?|well|little) (?:ahead|behind)"
    rf"|as (?:fast|many|much|long|large|good|small) as|{GROWS}er"
    # "has the least work", "sends least"; but not "the slowest worker".
    rf"|(?:is|are|was|were|has|have|\w+s) (?:still |now )?(?:the |its )?{MOST}|{MOST}(?=[.,;:)]|$))"
    r"(?!\w)",
    re.I,
)
# What looks like a comparison and is none: a bound, an addition, "with a larger batch".
NO_COMPARISON = re.compile(
    r"\bat (?:most|least|best)\b|\b(?:no|any) longer\b|\bmore or less\b|\bas \w+ as possible\b"
    r"|\b(?:no|nothing|any|once|one(?: \w+)?|two) more\b(?! than)|\bmore than one\b"
    rf"|\b(?:an?|any|at|for|in|of|on|with) {GROWS}er \w+(?! than)|\b(?:larg|small)est (?:of|one)\b",
    re.I,
)
# Numbers that are everywhere.
COMMON = {float(n) for n in range(13)} | {0.5, 0.1, 0.01, 100.0}
# Too common to tell one sentence from another.
STOP = """a about after again all also an and any are as at be been before both but by can cannot
    could did do does down each even every few for from had has have here how however if in into is
    it its just last left let like made make many may more most much nearly no nor not of off on
    once only or other our out over own same so some such than that the their them then there these
    they this those to too under up was we were what when where which while who will with without
    would yet"""
STOP = {*STOP.split(), *CARDINALS}
ENDINGS = re.compile(r"(?:’s|'s|ing|ed|es|er|est|ly|e|s)$")


class Number(NamedTuple):
    """One in a text: "part" is the unit of a fraction, "count" that of a small number in words."""

    value: float
    unit: str

    @property
    def measured(self):
        """Whether it is a result, by its unit, and not merely a size or a count."""
        return self.unit in MEASURES or self.value % 1 > 0

    @property
    def common(self):
        """Whether it is everywhere, as "two" and "a third" are."""
        return self.value in COMMON or self.unit == "part"

    def in_code(self):
        """The values that code may have for it, in its unit or without."""
        return {self.value, self.value * SCALES.get(self.unit, 1.0)}

    def in_ratios(self):
        """The values that a ratio in code may have for it."""
        share = self.value * SCALES.get(self.unit, 1.0)
        if self.unit in ("%", "per cent", "part"):
            return {1 + share, 1 - share, 1 / share}
        return {1 / share} if share else set()


def numbers(text):
    """The numbers of a text, in digits or in words."""
    text = NAMED.sub(" ", text)
    found = []
    for one in PART.finditer(text):
        found.append(Number(CARDINALS.get(one[1].lower(), 1.0) / PARTS[one[2].lower()], "part"))
    text = PART.sub(" ", text)
    for one in FACTOR.finditer(text):
        found.append(Number(FACTORS[one[1].lower()], "times"))
    for one in WRITTEN.finditer(FACTOR.sub(" ", text)):
        written = one[1].lower()
        if written in CARDINALS:
            found.append(Number(CARDINALS[written], one[2] or "count"))
        else:
            found.append(Number(float(written.replace(",", "")), one[2] or ""))
    return found


def compares(text):
    return bool(COMPARES.search(NO_COMPARISON.sub(" ", text)))


def words(text):
    """The stems of the words of a text that tell it from others."""
    text = FACTOR.sub(" ", PART.sub(" ", text.lower()))
    found = re.findall(r"[^\W\d_][\w’'-]*", text)
    return {ENDINGS.sub("", word) or word for word in found if word not in STOP}
