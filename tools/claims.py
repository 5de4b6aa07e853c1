"""The claims of a chapter, and which sentences they stand for, by numbers and words."""

import ast
import math
import re
from collections import Counter

from tools.notebooks import as_python, code_cells, tags
from tools.sentences import sentences
from tools.statements import COMMON, numbers, words

# How near a number of the code is to the same in the text.
NEAR = 2e-3
# And how near, if the words agree: "some 180 times" for 177.
ABOUT = 0.03
# Bounds of an assert that are so near to each other tell a number as well.
TIGHT = 1.3
# What words that a sentence shares with a claim have to tell: two that few sentences have.
ENOUGH = 4.5


class Claim:
    """An assert of a claim cell: its message's words and numbers, and the numbers of its code."""

    def __init__(self, node, message):
        self.words = words(message)
        told = numbers(message)
        self.told = {number.value for number in told}
        # Whether its numbers alone tell which sentence it is about: "it doubles to 16".
        self.tells = len(self.told) > 1 and not all(number.common for number in told)
        self.constants = _constants(node)
        bounds = [_constants(one) for one in ast.walk(node) if isinstance(one, ast.Compare)]
        self.bounds = [(min(each), max(each)) for each in bounds if len(each) > 1]

    def has(self, number, shared):
        """Whether it is about this number, which stands in a sentence; ``shared`` is how much the
        words that both have tell. What is everywhere must be in the message.
        """
        near = shared >= ENOUGH / 2
        # "A seventh" may be all that a message says.
        alone = number.unit == "part" and not self.words
        known = near or alone or (number.measured and not number.common)
        if known and number.value in self.told:
            return True
        forms = number.in_code() if near or number.measured else set()
        forms |= number.in_ratios() if near else set()
        return any(self._holds(form, ABOUT if near else NEAR) for form in forms - COMMON)

    def _holds(self, value, near):
        if any(abs(one - value) <= near * abs(value) for one in self.constants):
            return True
        return any(0 < low <= value <= high <= TIGHT * low for low, high in self.bounds)


class Chapter:
    """The sentences of a chapter, its claims, and the numbers in its code."""

    def __init__(self, nb):
        self.sentences = sentences(nb)
        self.claims = claims(nb)
        code = "\n".join(cell.source for cell in code_cells(nb))
        written = re.findall(r"(?<![\w.])\d[\d_]*(?:\.\d+)?(?:e-?\d+)?", code)
        self.given = COMMON | {float(one.replace("_", "")) for one in written}
        self.counts = Counter(word for one in self.sentences for word in words(one.text))

    def weight(self, some):
        """How much these words tell of a sentence: the more, the fewer sentences have them."""
        return sum(math.log(len(self.sentences) / (1 + self.counts[word])) for word in some)

    def covered(self, text):
        """Whether a claim stands for a sentence: all numbers of its message are there, or half of
        the measured ones that the sentence has; or where it has none, half of what the claim's
        words tell, or another number and a word.
        """
        said = words(text)
        stated = [one for one in numbers(text) if one.unit != "count"]
        shared = [(claim, self.weight(claim.words & said)) for claim in self.claims]
        values = {one.value for one in numbers(text)}
        if any(claim.tells and claim.told <= values for claim in self.claims):
            return True
        measured = [one for one in stated if one.measured]
        if measured:
            seen = [any(claim.has(one, weight) for claim, weight in shared) for one in measured]
            return 2 * sum(seen) >= len(seen)
        for claim, weight in shared:
            if weight >= max(ENOUGH, self.weight(claim.words) / 2):
                return True
        return any(claim.has(one, weight) for claim, weight in shared for one in stated)


def _constants(node):
    """The numbers in code."""
    nodes = ast.walk(node)
    values = [one.value for one in nodes if isinstance(one, ast.Constant)]
    return [float(one) for one in values if isinstance(one, (int, float))]


def claims(nb):
    """The asserts of a chapter's claim cells."""
    found = []
    for cell in code_cells(nb):
        if "claim" not in tags(cell):
            continue
        for node in ast.walk(ast.parse(as_python(cell))):
            if isinstance(node, ast.Assert):
                found.append(Claim(node.test, _text(node.msg)))
            elif isinstance(node, ast.keyword) and node.arg == "err_msg":
                found.append(Claim(node, _text(node)))
    return found


def _text(node):
    """The words of a message, without what is filled in."""
    if node is None:
        return ""
    parts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    return " ".join(part for part in parts if isinstance(part, str))
