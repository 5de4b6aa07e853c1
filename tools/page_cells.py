"""The cells of a chapter as those of its page: the first figure before its code, folds joined."""

import copy
import re

from tools.notebooks import tags


def figure_first(cells):
    """The cells with the first screen's figure, which folded code makes, before that code."""
    shown_code = (n for n, cell in enumerate(cells[1:], 1) if "hide-input" not in tags(cell))
    code = cells[1 : next(shown_code, None)]
    for n, cell in enumerate(code, 1):
        if 'role="img"' in str(cell.outputs):
            shown = copy.deepcopy(cell)
            shown.id = f"{cell.id}-shown"
            shown.metadata["tags"] = ["remove-input"]
            # The code up to it becomes one fold, with what else it printed.
            fold = code[0]
            fold.outputs = [output for each in code[: n - 1] for output in each.outputs]
            fold.source = "\n\n\n".join(each.source for each in code[:n])
            return [cells[0], shown, fold, *cells[n + 1 :]]
    return cells


def joined(cells):
    """The cells of a page: folded code without outputs goes into the folded cell after it."""
    kept = []
    # Whether the cell before is folded code.
    before = False
    for cell in cells:
        folded = "hide-input" in tags(cell)
        if before and folded and not kept[-1].outputs:
            cell.source = f"{kept.pop().source}\n\n\n{cell.source}"
            own = cell.metadata.setdefault("mystnb", {})
            prompt = own.get("code_prompt_show", "Show the code")
            own["code_prompt_show"] = re.sub(r", part \d$", "", prompt)
        before = folded and cell.cell_type == "code"
        kept.append(cell)
    return kept


def inline(page, drawing):
    """``page`` with the drawing itself where it shows that file: then its ink is the page's."""
    svg = re.sub(r"\n<style>.*</style>| data-rows=\"[^\"]*\"", "", drawing.read_text())
    # A blank line would end the HTML.
    svg = re.sub(r"\n\s*\n", "\n", svg.strip())
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    look = 'style="display:block;width:100%;max-width:540px;height:auto;margin:auto"'
    return re.sub(
        rf'<img src="[^"]*/{drawing.name}" (alt="[^"]*")[^>]*>',
        lambda image: f"<div>\n{svg}\n</div>".replace(
            "<svg ", f'<svg role="img" aria-label{image[1][3:]} {look} ', 1
        ),
        page,
    )
