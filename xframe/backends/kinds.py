"""What a kernel computes, told from the names that backends give: one of ``xframe.types.KINDS``, or empty."""

import re

_OPERATORS = {
    "conv": "Conv FusedConv NhwcFusedConv ConvTranspose Convolution GroupConvolution Deconvolution",
    "fc": "Gemm FusedGemm MatMul FusedMatMul FullyConnected",
    "pool": "MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool NhwcMaxPool AvgPool AdaptiveAvgPool ReduceMean"
    " ReduceSum ReduceMax ReduceMin AdaptivePooling Pooling Reduce",
    "norm": "LRN BatchNormalization InstanceNormalization LayerNormalization GroupNorm SimplifiedLayerNormalization"
    " SkipLayerNormalization NormalizeL2 MVN BatchNormInference",
    "activation": "Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu Clip Sigmoid HardSigmoid HardSwish Tanh Gelu"
    " FastGelu BiasGelu QuickGelu Erf Softplus Softsign Mish Swish HSwish HSigmoid SoftPlus Clamp",
    "elementwise": "Add Sub Mul Div Pow Sum Max Min Mean Sqrt Exp Log Neg Abs Reciprocal Where Not And Or Equal Less"
    " Greater Floor Ceil Round Sign Subtract Multiply Divide Power Maximum"
    " Minimum Eltwise Subgraph Select Resize Upsample Interpolate",
    "softmax": "Softmax LogSoftmax SoftMax",
    "layout": "ReorderInput ReorderOutput Reorder Transpose Reshape Flatten Squeeze Unsqueeze Pad DepthToSpace"
    " SpaceToDepth NhwcToNchw ShuffleChannels",
    "copy": "Concat Concatenation Concatenate Identity Dropout Cast Convert Slice StridedSlice Split VariadicSplit"
    " Gather Expand Broadcast Tile Constant ConstantOfShape Shape MemcpyToHost MemcpyFromHost Memcpy Input Output"
    " Parameter Result",
}
_BY_OPERATOR = {name: kind for kind, names in _OPERATORS.items() for name in names.split()}

#: Kind -> how a word of a kernel's name begins. The first kind that is found decides: a kernel with a convolution in it
#: is a convolution, whatever was fused into it.
_WORDS = (
    ("conv", r"conv\d"),
    ("fc", r"matmul|dense|fc\d*$|gemm"),
    ("pool", r"pool|mean|(max|min|sum)\d*$"),
    ("softmax", r"softmax"),
    ("norm", r"lrn|batch|norm"),
    ("elementwise", r"add|sub|mul|div|pow|maxi|mini|r?sqrt|square|(exp|log)\d*$|neg|abs|where|take"),
    ("activation", r"relu|leaky|prelu|sigmoid|tanh|gelu|clip|erf|silu"),
    ("copy", r"concat|strided|split|copy|cast|broadcast|full|tile"),
    ("layout", r"transpose|permute|reshape|pad|layout|squeeze|expand|flatten"),
)


def of_operator(operator: str) -> str:
    """Of an ONNX operator, one that ONNX Runtime adds, or one of OpenVINO's nodes."""
    return _BY_OPERATOR.get(operator, "")


def of_name(name: str) -> str:
    """Of a kernel that TVM names after the operators in it (``fused_conv2d1_add_relu``)."""
    words = name.removeprefix("fused_").split("_")
    return next((kind for kind, begin in _WORDS if any(re.match(begin, word) for word in words)), "")
