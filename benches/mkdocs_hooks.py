"""What mkdocs does to the pages in docs/ besides its extensions: links out of docs/, formulas, notebooks."""

from __future__ import annotations

import html
import json
import posixpath
import re
from typing import Any

from latex2mathml.converter import convert

LINK = re.compile(r"(\]\()(\.\.?/[^)\s#]*)")
SECTION = re.compile(r"<!-- run: .*?<!-- end -->", re.DOTALL)
STAR = re.compile(r"(`[^`\n]*`)|(?<![*\\])\*(?![*\s])")
CELL = re.compile(r"<td.*?</td>", re.DOTALL)
INTERVAL = re.compile(r"\[([-+\d.]+), ([-+\d.]+)\]")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links to files of the project that are no pages lead to the repository; stars in filled sections are stars."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def to_repository(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        return match[0] if path.startswith("docs/") else f"{match[1]}{config.extra['repository']}/blob/main/{path}"

    linked = LINK.sub(to_repository, markdown)
    return SECTION.sub(lambda section: STAR.sub(lambda match: match[1] or r"\*", section[0]), linked)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML, which browsers show without a script; wide tables scroll in a box,
    and no line ends inside of an interval."""
    content = FORMULA.sub(lambda match: mathml(match[3], block=match[2] == "["), content)
    # A bar in code is escaped in Markdown's tables, and GitHub takes the escape away.
    content = CELL.sub(lambda match: INTERVAL.sub(r"[\1,&nbsp;\2]", match[0].replace("\\|", "|")), content)
    return content.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def mathml(formula: str, block: bool) -> str:
    """A formula of LaTeX, which is HTML-escaped, as an element of MathML."""
    return str(convert(html.unescape(formula.strip()), display="block" if block else "inline"))


def on_files(files: Any, config: Any) -> Any:
    """Every notebook becomes a page of the same name."""
    from mkdocs.structure.files import File

    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=notebook_page(notebook.content_string, notebook.name)))
    return files


def notebook_page(text: str, name: str) -> str:
    """The cells of a notebook, with their stored outputs, as Markdown."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("text") or output.get("data", {}).get("text/plain", "")
            parts.append(f"```text\n{''.join(shown).rstrip()}\n```")
    return "\n\n".join([*parts, f"[This page as a notebook]({name}.ipynb)"]) + "\n"
