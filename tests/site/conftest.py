"""The built site and a real browser. A person's run skips without them; where KVFORMAT_SITE=1 (CI), none is missing."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def absent(reason):
    """What is to be said where the extra `site`, or a browser, is missing."""
    if os.environ.get("KVFORMAT_SITE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def tool(name):
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site, and what MkDocs warned of."""
    for name in ("mkdocs", "material"):
        if importlib.util.find_spec(name) is None:
            absent(f"{name} is not installed (the extra 'site')")
    target = tmp_path_factory.mktemp("site")
    return target, tool("build_site").build(target)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def address(site):
    """The address at which the site is served, on this machine alone."""
    handler = functools.partial(Quiet, directory=site[0])
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium: Debian's, or Playwright's own."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        absent("playwright is not installed (the extra 'site')")
    found = os.environ.get("KVFORMAT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    arguments = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    arguments += ["--no-sandbox"] if sys.platform == "linux" and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=found, args=arguments)
        except Error as error:
            absent(f"no Chromium: apt-get install chromium, or playwright install chromium ({str(error)[:200]})")
        yield opened
        opened.close()


class Watched:
    """A page of the browser, with all that it requests and complains about."""

    def __init__(self, page):
        self.page = page
        self.requests = []
        self.complaints = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))


@pytest.fixture
def watched(browser):
    """A new page that is watched."""
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    page.set_default_timeout(10_000)
    yield Watched(page)
    page.close()
