"""The few bricks of every page. Text enters it through :func:`esc` alone: names come from untrusted models."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path


def clean(text: object) -> str:
    """``text`` on one line, without control characters: names come from models, and models are untrusted."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def esc(text: object) -> str:
    """``text`` as it may stand in an element or a quoted attribute."""
    return html.escape(clean(text))


def tag(name: str, content: str, **attributes: str) -> str:
    """An element; ``content`` is HTML, the attributes are text. ``cls`` is class, an underscore a hyphen."""
    given = "".join(f' {"class" if k == "cls" else k.replace("_", "-")}="{esc(v)}"' for k, v in attributes.items())
    return f"<{name}{given}>{content}</{name}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), label: str = "table") -> str:
    """A table of HTML cells that scrolls by itself; ``numbers``: the columns that are set to the right.

    ``label``: what it is of, for who can't see it.
    """
    titles = tag("tr", "".join(tag("th", esc(h), scope="col") for h in head))
    body = "".join(
        tag("tr", "".join(tag("td", c, cls="n") if i in numbers else tag("td", c) for i, c in enumerate(row)))
        for row in rows
    )
    inner = tag("table", tag("thead", titles) + tag("tbody", body))
    return tag("div", inner, cls="scroll", tabindex="0", role="region", aria_label=label)


def items(texts: Iterable[str], cls: str = "") -> str:
    """A list of HTML items; nothing where there are none."""
    inner = "".join(tag("li", text) for text in texts)
    if not inner:
        return ""
    return tag("ul", inner, cls=cls) if cls else tag("ul", inner)


def style(*names: str) -> str:
    """The style sheets of those names beside this file, as one text."""
    return "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)


def document(title: str, css: str, body: str, policy: str) -> str:
    """A whole page. ``policy``: what the browser may run and load even if a name got through unescaped."""
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{esc(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{esc(title)}</title><style>{css}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
