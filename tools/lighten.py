"""Takes out of the rendered pages what they load and do not use, 2.1 MB of a chapter.

- A script that turns each icon into a drawing. The theme's style sheet has the same icons as a
  font, which the boxes of a chapter load anyway; of its 1,900 rules those of the book's own icons
  stay.
- The index of the search, which the page of results alone reads, where the search box leads.
- The styles of cards and tabs, on pages with neither.
"""

import re

RESULTS = "search.html"  # the page that searches
ICONS = re.compile(r'\s*<script [^>]*src="[^"]*/fontawesome\.js[^"]*"></script>')
SEARCH = re.compile(
    r'\s*<script [^>]*src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>'
)
CARDS = re.compile(
    r'\s*(?:<link [^>]*href="[^"]*sphinx-design[^"]*" />'
    r'|<script [^>]*src="[^"]*design-tabs[^"]*"></script>)'
)
# An icon is a letter of a font, which a screen reader would read out.
READ_OUT = re.compile(r'<(i|span) (?=class="[^"]*\bfa[bs]?[ -])(?![^>]*aria-hidden)')
ICON = re.compile(r"\bfa-[\w-]+")
ICON_RULE = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"[^"]*"\}')


def lighten(site):
    """Rewrites what is in the folder ``site``; what has been rewritten before stays as it is."""
    icons = set()
    for path in site.rglob("*.html"):
        page = path.read_text()
        lighter = READ_OUT.sub(r'<\1 aria-hidden="true" ', ICONS.sub("", page))
        if path.name != RESULTS:
            lighter = SEARCH.sub("", lighter)
        if 'class="sd-' not in page:
            lighter = CARDS.sub("", lighter)
        write(path, lighter, page)
        icons.update(ICON.findall(page))

    def kept(rule):
        return rule[0] if icons & set(ICON.findall(rule[1])) else ""

    for path in (site / "_static" / "styles").glob("pydata*.css"):
        styles = path.read_text()
        write(path, ICON_RULE.sub(kept, styles), styles)
    for file in ("fontawesome.js", "fontawesome.js.map"):
        (site / "_static" / "scripts" / file).unlink(missing_ok=True)


def write(path, text, old):
    if text != old:
        path.write_text(text)
