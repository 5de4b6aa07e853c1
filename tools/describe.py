"""A Sphinx extension: what search engines and previews of links are told of a page.

A page's description is its first paragraph, in a chapter its question. The picture needs an absolute address,
so it is named only where `baseurl` in _config.yml says where the book is published.
"""

import html
from urllib.parse import urljoin

from docutils import nodes

LONGEST = 300  # characters of a description
CARD, WIDTH, HEIGHT = "_static/card.png", 1200, 630


def tags(title, description, book, base="", page=""):
    """The <meta> tags of the page with this title, in the book with that title, published at ``base``."""
    said = {"description": description}
    shared = {"og:title": title, "og:description": description, "og:site_name": book, "og:type": "website"}
    if base:
        base = base.rstrip("/") + "/"
        shared |= {"og:url": urljoin(base, page), "og:image": urljoin(base, CARD)}
        shared |= {"og:image:width": WIDTH, "og:image:height": HEIGHT}
        said["twitter:card"] = "summary_large_image"
    lines = [f'<meta name="{name}" content="{html.escape(text)}" />' for name, text in said.items()]
    lines += [
        f'<meta property="{name}" content="{html.escape(str(text))}" />' for name, text in shared.items()
    ]
    return "\n".join(lines) + "\n"


def shortened(text):
    """The text on one line, cut after a word if it is too long."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " …"


def add_tags(app, pagename, templatename, context, doctree):
    first = next(doctree.findall(nodes.paragraph), None) if doctree else None
    if first is not None:
        title = nodes.Text(context["title"]).astext()
        page = app.builder.get_target_uri(pagename)
        text = shortened(first.astext())
        context["metatags"] += tags(title, text, app.config.html_title, app.config.html_baseurl, page)


def setup(app):
    app.connect("html-page-context", add_tags)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
