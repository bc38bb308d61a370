"""What `mkdocs build` needs beyond mkdocs.yml.

Pages link as GitHub wants it, also to files outside this folder (`../../benchmarks/results/x.md`):
such a file becomes part of the site, and links to it and from it are turned to its place there.
A nav entry that ends in "/" stands for all pages of that folder, and a line `<!-- help NAME -->`
for what `headrace NAME --help` prints.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
HELP = re.compile(r"<!-- help (\w+) -->")
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")


def place(path: Path) -> str:
    """Where a file of the repository lies in the site."""
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


def linked(page: Path) -> list[Path]:
    """The files that a page links to."""
    targets = (page.parent / link for link in LINK.findall(page.read_text()))
    return [target.resolve() for target in targets if target.is_file()]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of folders into the nav."""
    config.nav = [_unfolded(entry) for entry in config.nav or []]
    return config


def _unfolded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _unfolded(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_unfolded(part) for part in entry]
    if not entry.endswith("/"):
        return entry
    folder = (DOCS / entry).resolve()
    return sorted(
        map(place, folder.glob("*.md")), key=lambda name: (not name.endswith("README.md"), name)
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside of this folder, and what is linked from there."""
    unseen = [*DOCS.rglob("*.md"), *(ROOT / "benchmarks" / "results").glob("*.md")]
    while unseen:
        page = unseen.pop()
        if not page.is_relative_to(DOCS) and not files.get_file_from_path(place(page)):
            files.append(File.generated(config, place(page), abs_src_path=str(page)))
        for target in linked(page) if page.suffix == ".md" else []:
            if not target.is_relative_to(DOCS) and not files.get_file_from_path(place(target)):
                unseen.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links to where their targets lie in the site."""
    source = Path(page.file.abs_src_path or "")

    def turned(link: re.Match[str]) -> str:
        target = (source.parent / link[0]).resolve()
        if not target.is_file():
            return link[0]
        return os.path.relpath(place(target), os.path.dirname(page.file.src_uri) or ".")

    return HELP.sub(_help, LINK.sub(turned, markdown))


def _help(marker: re.Match[str]) -> str:
    command = [sys.executable, "-m", "headrace", marker[1], "--help"]
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    return f"```\n{told.stdout}```"
