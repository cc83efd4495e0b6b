"""The few bricks of a check's page. Text enters it through :func:`esc` alone: names come from untrusted models."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from xframe.report.check_words import clean


def esc(text: object) -> str:
    """``text`` as it may stand in an element or a quoted attribute."""
    return html.escape(clean(text))


def tag(name: str, content: str, **attributes: str) -> str:
    """An element; ``content`` is HTML, the attributes are text. ``cls`` is class, an underscore a hyphen."""
    given = "".join(f' {"class" if k == "cls" else k.replace("_", "-")}="{esc(v)}"' for k, v in attributes.items())
    return f"<{name}{given}>{content}</{name}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of HTML cells that scrolls by itself; ``numbers``: the columns that are set to the right."""
    titles = tag("tr", "".join(tag("th", esc(h), scope="col") for h in head))
    body = "".join(
        tag("tr", "".join(tag("td", c, cls="n") if i in numbers else tag("td", c) for i, c in enumerate(row)))
        for row in rows
    )
    inner = tag("table", tag("thead", titles) + tag("tbody", body))
    return tag("div", inner, cls="scroll", tabindex="0", role="region", aria_label="table")


def items(texts: Iterable[str], cls: str = "") -> str:
    """A list of HTML items; nothing where there are none."""
    inner = "".join(tag("li", text) for text in texts)
    if not inner:
        return ""
    return tag("ul", inner, cls=cls) if cls else tag("ul", inner)
