"""What the tests of the rendered pages share: the pages, served and in a browser with the network
cut.
"""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import sync_playwright

from tools import browser as chromium
from tools import notebooks
from tools.notebooks import ROOT
from tools.pages import pages

HTML, SOURCE = ROOT / "_build" / "html", ROOT / "_build" / "source"
PAGES = pages(SOURCE if (SOURCE / "_toc.yml").exists() else ROOT)  # with those that the build makes
CHAPTERS = [
    path.with_suffix("").as_posix() for path in notebooks.chapters()
]  # the pages that are notebooks
GENERATED = "book/appendix/api/", "book/appendix/measurements/"  # one kind of page each
PHONE, DESK = 390, 1280  # widths in CSS pixels
ALONE = "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
ALONE = [*ALONE.split(), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


def generated():
    """The first page of each kind that is generated."""
    return [next((name for name in PAGES if name.startswith(kind)), "") for kind in GENERATED]


def written():
    """The pages that people write, and the first of each kind that is generated."""
    return [name for name in PAGES if name in generated() or not name.startswith(GENERATED)]


def of_each_kind():
    """The front pages, the first chapter of each folder, and of the appendix what has forms, tables
    to print, and the first page of each kind that is generated.
    """
    folders = {}
    for name in CHAPTERS:
        folders.setdefault(name.rpartition("/")[0], name)
    own = "index", "index_ja", "book/appendix/calculators", "book/appendix/which_when"
    return [*own, *folders.values(), *generated()]


def on(names):
    """The argument ``page`` of a test: each page of the book, those beside ``names`` marked slow."""
    slow = pytest.mark.slow
    every = [name if name in names else pytest.param(name, marks=slow) for name in PAGES]
    return pytest.mark.parametrize("page", every, indirect=True)


# The fixtures last for this module and no longer: Playwright's event loop would disturb the
# notebooks' tests.
@pytest.fixture(scope="module")
def browser():
    program = chromium.find()
    if not program:
        pytest.fail("there is no Chromium or Chrome on this machine: python -m tools.browser")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=program, args=[*ALONE, *chromium.flags()]
        )
        yield running
        running.close()


@pytest.fixture(scope="module")
def site():
    """The address at which the book is served, to this machine alone."""
    if not (HTML / "index.html").exists():
        pytest.fail("there is no book in _build/html: run make book first")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=HTML)) as server:
        server.handle_error = lambda *args: None  # a browser may hang up, as when it leaves a page
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def new_tab(browser, site):
    """An empty tab for a reader who was never here before. Its ``faults`` tell what goes wrong in
    it.
    """
    tab = browser.new_page(viewport={"width": DESK, "height": 900}, reduced_motion="reduce")
    tab.set_default_timeout(20_000)
    tab.faults, ours = [], (site, "data:", "blob:")
    tab.on(
        "request",
        lambda asked: asked.url.startswith(ours) or tab.faults.append(f"asks for {asked.url}"),
    )
    tab.on(
        "response", lambda got: got.status < 400 or tab.faults.append(f"{got.status}: {got.url}")
    )
    tab.on(
        "console", lambda line: line.type != "error" or tab.faults.append(f"console: {line.text}")
    )
    tab.on("pageerror", lambda error: tab.faults.append(f"script: {error}"))
    return tab


@pytest.fixture
def tab(browser, site):
    tab = new_tab(browser, site)
    yield tab
    tab.close()


def show(page, theme, width):
    """Lets the page take this theme from the system, and have this width."""
    page.emulate_media(color_scheme=theme)
    page.wait_for_function("theme => document.documentElement.dataset.theme == theme", arg=theme)
    page.set_viewport_size({"width": width, "height": 900})
