"""What an operator of Theano computes, by its class and by the layer that it is from."""

#: Class of an operator -> what it computes; the others compute what their layer does, where that tells.
_KIND = {
    "CorrMM": "conv", "Gemm": "fc", "Dot22": "fc", "Dot22Scalar": "fc", "Dot": "fc", "Gemv": "fc", "CGemv": "fc",
    "Pool": "pool", "Softmax": "softmax", "SoftmaxWithBias": "softmax", "Join": "copy", "IncSubtensor": "copy",
    "Alloc": "copy", "AllocEmpty": "copy", "Subtensor": "copy", "DimShuffle": "layout", "Reshape": "layout",
}  # fmt: skip
_LAYER_KIND = {
    "batchnorm": "norm", "lrn": "norm", "relu": "activation", "relu6": "activation", "maxpool": "pool",
    "avgpool": "pool", "softmax": "softmax", "concat": "copy", "flatten": "layout", "dropout": "copy",
}  # fmt: skip
#: Those that compute each element by itself, or some of their operand's, in a layer that does not tell. What is in no
#: table is of no kind.
_ELEMENTWISE = ("Elemwise", "Sum", "CAReduce", "CAReduceDtype")


def kind_of(name: str, op: str) -> str:
    """What an operator of the class ``name`` computes in a layer of ``op``; empty where nobody knows."""
    return _KIND.get(name) or _LAYER_KIND.get(op) or ("elementwise" if name in _ELEMENTWISE else "")
