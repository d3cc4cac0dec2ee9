"""Hooks of the site: pages and links outside docs/, and long names in tables.

The README is the first page. On a forge the links work as they are written. In the site, Markdown files become pages,
and other files are copied.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = (  # under these names in the navigation
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "compose/README.md",
    "compose/grafana/README.md",
    "exporters/otel/README.md",
    "exporters/otlp/README.md",
    "exporters/tensorboard/README.md",
)
LONG_NAME = re.compile(r"(?<=<code>)[\w$/.]{35,}(?=</code>)")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    for path in PAGES:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point each relative link at the place its file has in the site; copy files that are not pages."""
    place = page.file.src_uri
    # From the repository's root:
    origin = "README.md" if place == "index.md" else place if place in PAGES else f"docs/{place}"

    def in_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        uri = _page(target)
        file = files.get_file_from_path(uri)
        if file is None or file.inclusion.is_excluded():
            if not (ROOT / target).is_file():
                return link[1]  # mkdocs warns
            uri = f"source/{target}"
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
        return posixpath.relpath(uri, posixpath.dirname(place) or ".")

    markdown = markdown.replace("```python no-run\n", "```python\n")  # the mark is for tests
    return LINK.sub(in_site, markdown)


def on_page_content(html: str, **_arguments: Any) -> str:
    """Let long names break after an underscore, so that tables of variables fit."""
    return LONG_NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), html)


def _page(target: str) -> str:
    """Return the place in the site of a file that is a page, else a place where nothing is."""
    if target == "README.md":
        return "index.md"
    return target if target in PAGES else target.removeprefix("docs/") if target.startswith("docs/") else ""
