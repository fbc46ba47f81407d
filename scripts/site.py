"""Makes the pages of docs/ fit for mdBook, and checks the links of the site that it builds.

    site.py                 a preprocessor of mdBook: docs/book.toml names it
    site.py check FOLDER    names each link within the built site that leads nowhere; fails if there is one

The pages are written for readers of the repository, so their links are paths in it. Here a link to a page of
the site becomes one within the site, from pages outside of docs/ too. Every other link to a file of the
repository leads to `git-repository-url` of docs/book.toml; without that it becomes text, whose title is the
path. Not here: which pages there are (docs/SUMMARY.md).
"""

import json
import posixpath
import re
import sys
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
# A link or a picture, with a title or without. Its text may have line breaks, and a picture.
LINK = re.compile(r'(!?)\[((?:[^\[\]]|!?\[[^\[\]]*\](?:\([^()]*\))?)*)\]\(([^()\s]+)(\s+"[^"]*")?\)')
ATTRIBUTE = re.compile(r'\b(src|srcset|href)="([^"]+)"')
# A block of code between fences, or code within a line.
CODE = re.compile(r"^[ \t]*(`{3,}).*?^[ \t]*\1|(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL)


class Links:
    """Makes the links of one page; `pages` are the paths in the site, by the paths in the repository."""

    def __init__(self, pages, repository, page):
        self.pages, self.repository = pages, repository
        self.folder = posixpath.dirname(page)
        self.site_folder = posixpath.dirname(pages[page])
        self.page = page

    def target(self, link):
        """The link in the site, or None if it leads out of it. The second value is the path for people."""
        path, _, anchor = link.partition("#")
        anchor = f"#{anchor}" if anchor else ""
        path = posixpath.normpath(posixpath.join(self.folder, path)) if path else self.page
        place = self.pages.get(path) or self.pages.get(f"{path}/README.md")
        # mdBook copies the pictures. SUMMARY.md is no page.
        if place is None and path.startswith("docs/") and not path.endswith(".md"):
            place = path.removeprefix("docs/")
        if place is None:
            return None, path + anchor
        return posixpath.relpath(place, self.site_folder or ".") + anchor, path

    def outside(self, path):
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{self.repository.rstrip('/')}/{kind}/main/{path}"

    def of_markdown(self, match):
        mark, text, link, title = match.groups(default="")
        text = LINK.sub(self.of_markdown, text)
        if urlsplit(link).scheme:
            return match.group()
        target, path = self.target(link)
        if target is None and not self.repository:
            name = title.strip().strip('"')
            return f'<span title="{escape(f"{path}: {name}" if name else path)}">{text}</span>'
        return f"{mark}[{text}]({target or self.outside(path)}{title})"

    def of_html(self, match):
        name, link = match.groups()
        target, path = (link, "") if urlsplit(link).scheme else self.target(link)
        return f'{name}="{target or self.outside(path)}"'

    def made(self, text):
        """The page's text with its links; code stays as it is."""
        codes = []

        def kept(match):
            codes.append(match.group())
            return f"\0{len(codes) - 1}\0"

        text = LINK.sub(self.of_markdown, CODE.sub(kept, text))
        text = ATTRIBUTE.sub(self.of_html, text)
        return re.sub("\0(\\d+)\0", lambda match: codes[int(match.group(1))], text)


def chapters(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter and chapter.get("path"):
            yield chapter
            yield from chapters(chapter["sub_items"])


def preprocess():
    context, book = json.load(sys.stdin)
    repository = context["config"].get("output", {}).get("html", {}).get("git-repository-url") or ""
    found = list(chapters(book.get("items") or book["sections"]))
    # The path of a chapter is seen from docs/. Those outside of it keep their folder, without the way there.
    # A README is the first page of its folder.
    pages = {
        posixpath.normpath(posixpath.join("docs", chapter["path"])): re.sub(
            r"(^|/)README\.md$", r"\1index.md", chapter["path"].removeprefix("../")
        )
        for chapter in found
    }
    for chapter in found:
        page = posixpath.normpath(posixpath.join("docs", chapter["path"]))
        chapter["content"] = Links(pages, repository, page).made(chapter["content"])
        chapter["path"] = pages[page]
    json.dump(book, sys.stdout)


class Page(HTMLParser):
    """The links of a page of the site, and the names of its places."""

    def __init__(self, text):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" and value:
                self.names.add(value)
            elif name in ("href", "src", "srcset") and value:
                self.links.append(unescape(value))


def check(folder):
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    if len(pages) < 10:
        sys.exit(f"site: {folder} has only {len(pages)} pages")
    problems, count = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            if not target.is_relative_to(folder) or not target.is_file():
                problems.append(f"{path.relative_to(folder)} links to {link}, which is not in the site")
            elif place and target in pages and place not in pages[target].names:
                problems.append(f"{path.relative_to(folder)} links to {link}, but there is no such heading")
    if problems:
        sys.exit("\n".join(["site: links that lead nowhere:", *problems]))
    print(f"site: {len(pages)} pages, {count} links within it, in {folder}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(Path(sys.argv[2]).resolve())
    elif sys.argv[1:2] != ["supports"]:
        preprocess()
