"""The docs hold together: links and anchors resolve, and the site's nav lists every page."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = sorted(
    path
    for folder in (ROOT, DOCS, ROOT / "benchmarks" / "results")
    for path in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
)


def prose(page):
    """A page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.S | re.M)


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    words = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", word.lower()).replace(" ", "-") for word in words}


def entries(nav):
    """The pages of a nav."""
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from entries(value) if isinstance(value, list) else [value]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_nav_of_the_site_lists_every_page_once():
    listed = list(entries(SITE["nav"]))
    pages = [
        page.relative_to(DOCS).as_posix()
        for entry in listed
        for page in (sorted((DOCS / entry).glob("*.md")) if entry.endswith("/") else [DOCS / entry])
        if page.is_relative_to(DOCS) and ".." not in entry
    ]
    assert sorted(pages) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
