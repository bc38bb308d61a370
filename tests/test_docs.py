"""The docs hold together: links and anchors resolve, and the site's nav lists every page."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
MOVED = (DOCS / "guides" / "from_scripts.md").read_text()
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


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


def test_the_sums_over_old_figures_use_the_archived_ones():
    rows = json.loads((ROOT / "benchmarks/results/reference_2026-11-15.json").read_text())

    def median(case, backend, figure="samples_per_s"):
        return rows[case]["rows"][backend][figure]["median"]

    everything = "Against other loaders, 29 datasets | all pairs"
    alone, four, all29 = (
        f"Number of datasets, batch 128 | {which}"
        for which in ("one dataset", "four datasets", "29 datasets")
    )
    for case in (alone, four, all29):
        assert f"{median(case, 'headrace'):,.0f}" in MOVED
    for case, backend in (
        (everything, "headrace"),
        (everything, "tfdata"),
        ("Against other loaders, 29 datasets | samples_per_episode 1", "tfdata"),
    ):
        read = median(case, backend, "bytes_read_per_sample")
        assert f"{read / 1000:,.0f} kB | {70e6 / read:,.0f} |" in MOVED
