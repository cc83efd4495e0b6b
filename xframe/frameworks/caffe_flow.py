"""Which layer reads what which other one wrote, in a network of Caffe's."""

from collections import Counter
from typing import Any, Dict, List, NamedTuple, Tuple

from xframe.errors import ModelError

Value = Tuple[str, int]  # a blob, and how often it was written before

#: Layers that only training and tests have a use for. What a loss or an accuracy reads is an output all the same.
DROPPED = (
    "Accuracy",
    "ContrastiveLoss",
    "EuclideanLoss",
    "HDF5Output",
    "HingeLoss",
    "InfogainLoss",
    "MultinomialLogisticLoss",
    "SigmoidCrossEntropyLoss",
    "SoftmaxWithLoss",
)
#: Takes blobs so that they are no outputs.
_SILENCE = "Silence"


class Step(NamedTuple):
    """A layer, with the values that it reads and writes."""

    layer: Any
    bottoms: List[Value]
    tops: List[Value]


class Flow:
    """The layers that inference needs, in order. ``reads``: how many bottoms a value is at.

    Raises
    ------
    ModelError
        A layer reads what none before it wrote, or two write one blob; what Caffe itself refuses to load.
    """

    def __init__(self, net: Any) -> None:
        self.steps: List[Step] = []
        self.reads: Counter = Counter()
        self._written: Dict[str, Value] = {}
        self._quiet: set = set()
        writers: Dict[Value, Any] = {}
        for layer in net.layer:
            bottoms = [self._read(layer, blob) for blob in layer.bottom if layer.type not in DROPPED]
            if layer.type == _SILENCE:
                self._quiet.update(bottoms)
            if layer.type in DROPPED or layer.type == _SILENCE:
                continue
            self.reads.update(bottoms)
            tops = []
            for blob in layer.top:
                before = self._written.get(blob)
                if before is not None and before not in bottoms:
                    raise ModelError("two layers write the blob %s: %s and %s" % (blob, writers[before], layer.name))
                value = (blob, 0 if before is None else before[1] + 1)
                writers[value] = layer.name
                self._written[blob] = value
                tops.append(value)
            self.steps.append(Step(layer, bottoms, tops))
        for step in self.steps:
            for value in step.bottoms:
                if self.reads[value] > 1 and any(top[0] == value[0] for top in step.tops):
                    raise ModelError(
                        "layer %s writes the blob %s in place, which other layers read too; Caffe does not load this"
                        % (step.layer.name, value[0])
                    )

    def _read(self, layer: Any, blob: str) -> Value:
        if blob not in self._written:
            raise ModelError("layer %s reads the blob %s, which no layer before it writes" % (layer.name, blob))
        return self._written[blob]

    def last(self, blob: str) -> Value:
        """The value that a blob has in the end."""
        return self._written[blob]

    def final(self, value: Value) -> bool:
        """Whether a blob keeps this value to the end."""
        return self._written[value[0]] == value

    def outputs(self) -> List[Tuple[Value, str]]:
        """The values that nobody reads and that are no inputs, with the names of their blobs."""
        tops = [top for step in self.steps if step.layer.type not in ("Input", "DummyData") for top in step.tops]
        return [(v, v[0]) for v in tops if self.final(v) and not self.reads[v] and v not in self._quiet]
