"""The nodes of an ONNX file, so that what a backend ran can be told by their names."""

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from xframe.artifact import title
from xframe.errors import ModelError

#: Field numbers of ``ModelProto`` and ``GraphProto``.
_GRAPH, _NODE = 7, 1
_BYTES = {1: 8, 5: 4}  # protobuf's wire types of a fixed size


class Nodes:
    """The nodes of a graph by name and by output. One without a name is called after its first output."""

    def __init__(self, nodes: Iterable[onnx.NodeProto]) -> None:
        self._nodes = {title(node): node for node in nodes}
        self._makers = {output: name for name, node in self._nodes.items() for output in node.output}

    @staticmethod
    def read(path: str) -> "Nodes":
        """Those of a file, of which only they are read: its weights may be gigabytes. Raises ModelError."""
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                found = [
                    onnx.NodeProto.FromString(data[start:end])
                    for graph in _fields(data, 0, len(data), _GRAPH)
                    for start, end in _fields(data, *graph, _NODE)
                ]
            except (DecodeError, ValueError, IndexError) as e:
                raise ModelError(f"{path}: its nodes can't be read ({e})") from e
        return Nodes(found)

    def named(self, name: str) -> str:
        """The node that is called ``name``, or has an output of that name; empty if there is none."""
        return name if name in self._nodes else self._makers.get(name, "")

    def operator(self, name: str) -> str:
        """The operator of node ``name``; empty if there is none."""
        return self._nodes[name].op_type if name in self._nodes else ""

    def before(self, name: str, operator: str) -> list[str]:
        """The nodes of one operator that feed node ``name``, or are it, with none of that operator in between; the
        nearest first."""
        found, seen, waiting = [], {name}, [name]
        for here in waiting:
            node = self._nodes[here]
            if node.op_type == operator:
                found.append(here)
                continue
            makers = [self._makers[i] for i in node.input if i in self._makers]
            waiting += [m for m in dict.fromkeys(makers) if m not in seen]
            seen.update(makers)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)


def _fields(data: mmap.mmap, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each message in field ``wanted`` of the protobuf message ``data[start:end]``."""
    while start < end:
        key, start = _varint(data, start)
        field, wire = key >> 3, key & 7
        if wire == 0:
            _, start = _varint(data, start)
        elif wire == 2:
            size, start = _varint(data, start)
            if field == wanted:
                yield start, start + size
            start += size
        elif wire in _BYTES:
            start += _BYTES[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {start}")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The number that begins at byte ``at``, and the byte after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
