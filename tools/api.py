"""The pages of the package: a page for each part of `ed_lib`, its modules folded, from their
docstrings.
"""

from pathlib import Path

from tools.pages import ROOT, first_sentence

# The folders of ed_lib, and the titles of their pages.
PARTS = {
    "diagnose": "Your own step",
    "ed": "Learning without a backward pass",
    "parallel": "Many devices",
    "precision": "Fewer bits",
    "lstm": "The LSTM inside cuDNN",
    "": "The ground floor",
}
# What a module has on its page: the dropdown opens where a link leads to a name in it.
FOLD = """
:::{{dropdown}} `{name}`: {about}
```{{eval-rst}}
.. automodule:: {name}
   :members:
```
:::
"""


def pages():
    """{path in the book: text}"""
    return {Path(f"book/appendix/api/{part or 'ground_floor'}.md"): text(part) for part in PARTS}


def text(part):
    """The page of a part: a fold for each of its modules, named by what its docstring begins
    with.
    """
    folds = []
    for path in sorted((ROOT / "ed_lib" / part).glob("**/*.py" if part else "*.py")):
        if path.stem != "__init__":
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            folds.append(FOLD.format(name=name, about=first_sentence(path)))
    return f"# {PARTS[part]}: `ed_lib{'.' * bool(part)}{part}`\n{''.join(folds)}"
