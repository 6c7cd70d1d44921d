"""MkDocs: files of the repository's root as pages of the site, and links between pages and files that hold on both.

The same Markdown is read on the code host, where links are relative to the file, and on the site, where the root's
files lie beside the pages of docs/. A link to a file that is no page leads to the code host if `repo_url` is set;
otherwise its text stays. A link to a file that doesn't exist is a warning, which `--strict` makes an error.
"""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_log = logging.getLogger("mkdocs.hooks.root_files")
_ROOT = Path(__file__).parents[1]

ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""File in the repository's root: its page."""

_LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the root's files to the site."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(_ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make the links of a page relative to its place on the site."""
    source = _source(page.file.src_uri)
    fences = [m.span() for m in _FENCE.finditer(markdown)]

    def mended(found: re.Match[str]) -> str:
        if any(start <= found.start() < end for start, end in fences):
            return found[0]
        return _link(found, source, page.file.src_uri, config, files)

    return _LINK.sub(mended, markdown)


def _source(uri: str) -> str:
    """Return a page's path in the repository."""
    roots = {page: name for name, page in ROOT_PAGES.items()}
    return roots.get(uri, f"docs/{uri}")


def _link(found: re.Match[str], source: str, uri: str, config: Any, files: Files) -> str:
    target, anchor = found["target"], found["anchor"] or ""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return found[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (_ROOT / path).exists():
        _log.warning("%s links to %s, and there is no %s.", source, target, path)
        return found[0]
    inside = path.removeprefix("docs/")
    place = ROOT_PAGES.get(path) or (inside if inside != path and files.get_file_from_path(inside) else None)
    if place is not None:
        return f"{found['text']}({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor})"
    if config.repo_url:
        return f"{found['text']}({config.repo_url.rstrip('/')}/blob/HEAD/{path}{anchor})"
    return found["text"][1:-1]
