"""The site builds without a warning, holds every page, its links hold, and it asks no other host for anything."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

SPEC = Path(__file__).parents[2] / "spec"


class Links(HTMLParser):
    """What a page refers to, what of it the browser fetches by itself, and the anchors it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.fetched, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "link" and found.get("href") and "canonical" not in (found.get("rel") or ""):
            self.fetched.append(found["href"])
        if tag in ("img", "script", "iframe", "source") and found.get("src"):
            self.fetched.append(found["src"])


@pytest.fixture(scope="module")
def pages(site):
    """The links of every page by its file."""
    return {path: Links(path.read_text(encoding="utf-8")) for path in site[0].rglob("*.html")}


def test_it_builds_without_a_warning(site):
    assert site[1] == []


def test_every_page_of_the_reference_is_in_it(site):
    for page in SPEC.rglob("*.md"):
        name = page.relative_to(SPEC).with_suffix(".html")
        assert (site[0] / (name.parent / "index.html" if page.name == "README.md" else name)).is_file(), page
    for name in ("explorer.html", "vectors/MANIFEST.json", "c/run_vectors.c", "elements/e4m3fn.svg"):
        assert (site[0] / name).is_file()


def test_every_link_holds_down_to_the_anchor(site, pages):
    broken = []
    for page, found in pages.items():
        if page.name == "404.html":
            continue  # its links are absolute
        for link in (*found.links, *found.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or page.name == "explorer.html":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append((page.relative_to(site[0]).as_posix(), link))
    assert broken == []
    assert sum(len(found.links) for found in pages.values()) > 1000


def test_nothing_is_fetched_from_another_host(pages):
    fetched = {link for found in pages.values() for link in found.fetched}
    assert {link for link in fetched if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc} == set()


@pytest.mark.parametrize("name", ["index.html", "which.html", "layouts/vllm-0.33.html", "elements/e4m3fn.html"])
def test_pages_show_without_a_complaint_or_a_request_to_another_host(watched, address, name):
    watched.page.goto(f"{address}/{name}")
    watched.page.wait_for_load_state("networkidle")
    assert watched.complaints == []
    assert watched.requests
    assert {url for url in watched.requests if not url.startswith((address, "data:", "blob:"))} == set()
    broken = "[...document.images].filter((image) => !(image.complete && image.naturalWidth)).map((image) => image.src)"
    assert watched.page.evaluate(broken) == []
