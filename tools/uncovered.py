"""The sentences with a number or a comparison that no claim of their chapter covers.

python -m tools.uncovered [book/ed/error_diffusion.ipynb ...]

lists them, for all chapters or for those named, each with the id of its cell; "live" are those
beside a cell that measures a time, which another machine may contradict. ∎ is a formula, or code.
Which sentence a claim stands for is guessed by numbers and words: it errs now and then, both ways.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

from tools import notebooks, timed_cells
from tools.claims import Chapter
from tools.notebooks import ROOT
from tools.statements import MEASURES, compares, numbers

# What asks, leaves open, says what a word is, or goes on with a formula.
ASKS = re.compile(
    r".*\?\W*$|\W*Predict\b|\W*(?:What|Whether|Why) .*(?:open|not know)|An? \*\*|\W*[a-z]+\b"
)
# What tells the reader to do something.
TELLS = re.compile(
    r"\W*(?:(?:and|so|now|but) |if [^,]+, )?(?:add|apply|begin|choose|compare|consider|count|divide"
    r"|double|halve|imagine|keep|let|look|make|measure|multiply|read|replace|return|say|start"
    r"|suppose|take|undo|use|work)\b",
    re.I,
)
SOURCE = re.compile(
    r"⟦|\b[Tt]he(?:ir)? (?:papers?|articles?|sources?)(?! that|[’'])|\bpublished\b|\breports?\b"
    r"|\b(?:NVIDIA|Google|Meta|Intel|AMD|IEEE)[’']s\b"
)
BY_HAND = re.compile(r"=|\bby (?:the formula|(?:this )?count)\b", re.I)
OURS = re.compile(r"\b(?:here|[Ww]e|ours?)\b")
# What names the record, or the machine, that a number is of.
RECORD = re.compile(r"\b(?:[Rr]ecord(?:ed|s)?|[AHT]\d+|EPYC|Xeon|M40|article[’']s card)\b")
# {a chapter's name: {how a sentence of it begins: why it needs no claim}}
EXEMPTIONS = ROOT / "tools" / "exempt_sentences.toml"
MOST_EXEMPT = 2


def states(text):
    """Whether a sentence states a number or compares."""
    return compares(text) or any(number.unit != "count" for number in numbers(text))


def excuse(sentence, chapter):
    """Why a sentence of the chapter needs no claim, or has one; "" if it lacks one."""
    text = sentence.text
    if ASKS.match(text) or TELLS.match(text):
        return "asks, or tells what to do"
    if (sentence.reported or SOURCE.search(text)) and not OURS.search(text):
        return "is a source's"
    if "⟦" in text and not any(one.measured for one in numbers(text)):
        return "is a source's"
    if chapter.covered(text):
        return "has a claim"
    # "The fastest for each width:" states nothing yet.
    if text.endswith(":") and not compares(re.sub(r"\w+est\b", "", text)):
        return "leads to what comes"
    if BY_HAND.search(text) and not OURS.search(text):
        return "is worked by hand"
    if not compares(text):
        if all(one.unit not in MEASURES and one.value in chapter.given for one in numbers(text)):
            return "stands in the code"
    return ""


def listed(chapter):
    """The sentences of a chapter that state something and have no excuse, exempt ones too."""
    stating = [one for one in chapter.sentences if states(one.text)]
    return [one for one in stating if not excuse(one, chapter)]


def is_exempt(sentence, exempt):
    return any(sentence.text.startswith(start) for start in exempt)


def is_live(sentence, live):
    """Whether it stands beside one of the cells ``live``, and names no record."""
    beside = {cell.id for cell in sentence.beside}
    return not beside.isdisjoint(live) and not RECORD.search(sentence.text)


def exemptions():
    return tomllib.loads(EXEMPTIONS.read_text(encoding="utf-8"))


def faults(exempt, chapters):
    """What is wrong with exemptions, a line for each; ``chapters``: {name: Chapter}."""
    found = []
    for name, of_page in exempt.items():
        if name not in chapters:
            found.append(f"{name}: no such chapter")
            continue
        if len(of_page) > MOST_EXEMPT:
            found.append(f"{name}: {len(of_page)} exemptions; wanted at most {MOST_EXEMPT}")
        without = listed(chapters[name])
        for start, reason in of_page.items():
            if not reason.strip():
                found.append(f"{name}: no reason beside {start!r}")
            if not any(is_exempt(one, [start]) for one in without):
                found.append(f"{name}: no sentence that would be listed begins with {start!r}")
    return found


def report(nb, exempt):
    """The lines about a chapter: how many sentences, and those that are listed."""
    chapter = Chapter(nb)
    live = timed_cells.live(nb)
    stating = sum(states(one.text) for one in chapter.sentences)
    without = listed(chapter)
    shown = [one for one in without if not is_exempt(one, exempt)]
    lines = [f"  {'live ' * is_live(one, live)}[{one.cell}] {one.text}" for one in shown]
    counts = f"{len(chapter.sentences)} sentences, {stating} state something"
    covered = stating - len(without)
    of_live = sum(is_live(one, live) for one in shown)
    return [f"{counts}, {covered} covered, {len(shown)} listed ({of_live} live)", *lines]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tools.uncovered", description="Sentences that no claim covers."
    )
    parser.add_argument("chapter", nargs="*", help="paths of notebooks; without: all chapters")
    named = [Path(name) for name in parser.parse_args(arguments).chapter]
    try:
        exempt = exemptions()
        for path in named or notebooks.chapters():
            first, *lines = report(notebooks.read(ROOT / path), exempt.get(path.stem, {}))
            print(f"{path}: {first}", *lines, sep="\n", flush=True)
    except (OSError, ValueError) as error:  # no such file; no notebook; no TOML
        sys.exit(str(error))


if __name__ == "__main__":
    main()
