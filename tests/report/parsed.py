"""A page as its elements, for the tests of pages."""

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Elements with their attributes and text; fails where one is not closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        element = (tag, dict(attrs), [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        for element in self._open:
            element[2].append(data)

    def all(self, tag, cls=None, **wanted):
        """(attributes, text) of the elements of a kind, of a class, with those attributes."""
        return [
            (attrs, "".join(text)) for name, attrs, text in self.elements
            if name == tag
            and (cls is None or cls in (attrs.get("class") or "").split())
            and all(attrs.get(k) == v for k, v in wanted.items())
        ]  # fmt: skip
