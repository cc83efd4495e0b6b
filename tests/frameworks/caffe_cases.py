"""Networks in Caffe's text format, each around one type of layer, with shapes that differ from run to run of a seed."""

import numpy as np

#: Layer types that are exported, for the test that none is without a case.
TYPES = (
    "AbsVal", "BNLL", "BatchNorm", "Bias", "Concat", "Convolution", "Crop", "Deconvolution", "Dropout", "ELU",
    "Eltwise", "Exp", "Flatten", "InnerProduct", "LRN", "Log", "PReLU", "Pooling", "Power", "ReLU", "Reshape", "Scale",
    "Sigmoid", "Slice", "Softmax", "Split", "TanH",
)  # fmt: skip


def dims(shape):
    return " ".join(f"dim: {n}" for n in shape)


def source(shape, name="data"):
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims(shape)} }} }} }}'


def layer(name, kind, bottoms, tops=None, more=""):
    """One layer; its bottoms and tops are names with spaces between, by default one top of its own name."""
    ends = [f'bottom: "{b}"' for b in bottoms.split()] + [f'top: "{t}"' for t in (tops or name).split()]
    return f'layer {{ name: "{name}" type: "{kind}" {" ".join(ends)} {more} }}'


def constant(name, value, shape):
    filler = f'data_filler {{ type: "constant" value: {value} }} shape {{ {dims(shape)} }}'
    return layer(name, "DummyData", "", None, f"dummy_data_param {{ {filler} }}")


def single(kind, more="", shape=(2, 6, 9, 7), name="x"):
    return "\n".join([source(shape), layer(name, kind, "data", None, more)])


def _convolution(seed, kind="Convolution"):
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 2, 3]))
    kernel, stride, dilation = rng.integers(1, 4, 2), rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    pad = [int(rng.integers(0, k)) for k in kernel]
    bias = "true" if seed % 2 else "false"
    more = (
        f"convolution_param {{ num_output: {groups * int(rng.integers(1, 4))} group: {groups} bias_term: {bias}"
        f" kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} stride_w: {stride[1]}"
        f" pad_h: {pad[0]} pad_w: {pad[1]} dilation: {dilation[0]} dilation: {dilation[1]} }}"
    )
    return single(kind, more, (2, 6, int(rng.integers(7, 14)), int(rng.integers(7, 14))))


def _pooling(seed, pool):
    """Kernel, stride and size such that windows stick out of the image in most of the seeds."""
    rng = np.random.default_rng(seed)
    kernel, stride = rng.integers(2, 5, 2), rng.integers(1, 4, 2)
    stride = np.minimum(stride, kernel)  # else windows may lie outside of the image
    pad = [int(rng.integers(0, k)) if seed % 3 else 0 for k in kernel]
    more = (
        f"pooling_param {{ pool: {pool} kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]}"
        f" stride_w: {stride[1]} pad_h: {pad[0]} pad_w: {pad[1]} }}"
    )
    return single("Pooling", more, (2, 3, int(rng.integers(5, 15)), int(rng.integers(5, 15))))


def _with(second, *layers, shape=(2, 6, 9, 7)):
    """Two inputs, ``data`` and ``other`` of the second shape."""
    return "\n".join([source(shape), source(second, "other"), *layers])


def _net(*layers, shape=(2, 6, 9, 7)):
    return "\n".join([source(shape), *layers])


_CONV = "convolution_param { num_output: 4 kernel_size: 3 }"
_MINUS = "power_param { scale: -1 }"
_AT_MOST_ONE = (
    layer("r", "ReLU", "data"),
    layer("m", "Power", "r", None, _MINUS),
    constant("one", -1, (2, 6, 9, 7)),
    layer("x", "Eltwise", "one m", None, "eltwise_param { operation: MAX }"),
    layer("y", "Power", "x", "x", _MINUS),
)
_ONES = "convolution_param { num_output: 6 kernel_size: 1 }"

CASES = {
    **{f"convolution {seed}": _convolution(seed) for seed in range(6)},
    "convolution square": single("Convolution", "convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 }"),
    "convolution pairs": single(
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 3 kernel_size: 1 pad: 1 pad: 0 stride: 1 stride: 2 }",
    ),
    "convolution of two": _with((2, 6, 9, 7), layer("c", "Convolution", "data other", "c1 c2", _CONV)),
    **{f"deconvolution {seed}": _convolution(seed, "Deconvolution") for seed in range(10, 14)},
    **{f"pooling max {seed}": _pooling(seed, "MAX") for seed in range(9)},
    **{f"pooling average {seed}": _pooling(seed, "AVE") for seed in range(20, 32)},
    "pooling down": single(
        "Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR }", (2, 3, 8, 10)
    ),
    "pooling max down": single(
        "Pooling", "pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR }", (1, 3, 8, 10)
    ),
    "pooling a window larger than the image": single(
        "Pooling", "pooling_param { kernel_size: 4 stride: 3 }", (1, 3, 3, 3)
    ),
    "pooling a stride above the window": single("Pooling", "pooling_param { kernel_size: 1 stride: 2 }", (1, 3, 7, 9)),
    "pooling global average": single("Pooling", "pooling_param { pool: AVE global_pooling: true }"),
    "pooling global max": single("Pooling", "pooling_param { pool: MAX global_pooling: true }"),
    "lrn across": single("LRN", "lrn_param { local_size: 5 alpha: 0.9 beta: 0.75 k: 2 }"),
    "lrn across few": single("LRN", "lrn_param { local_size: 7 alpha: 3 beta: 0.5 }", (1, 3, 4, 5)),
    "lrn within": single("LRN", "lrn_param { local_size: 3 alpha: 2 beta: 0.75 norm_region: WITHIN_CHANNEL }"),
    "inner product": single("InnerProduct", "inner_product_param { num_output: 5 }"),
    "inner product transposed": single("InnerProduct", "inner_product_param { num_output: 5 transpose: true }"),
    "inner product of rows": single("InnerProduct", "inner_product_param { num_output: 5 axis: -1 bias_term: false }"),
    "inner product of images": single("InnerProduct", "inner_product_param { num_output: 5 axis: 2 }"),
    "inner product of vectors": single("InnerProduct", "inner_product_param { num_output: 5 }", (3, 8)),
    "relu": single("ReLU"),
    "relu leaky": single("ReLU", "relu_param { negative_slope: 0.1 }"),
    "prelu": single("PReLU"),
    "prelu of vectors": single("PReLU", shape=(3, 8)),
    "prelu shared": single("PReLU", "prelu_param { channel_shared: true }"),
    "elu": single("ELU", "elu_param { alpha: 0.7 }"),
    "sigmoid": single("Sigmoid"),
    "tanh": single("TanH"),
    "absolute value": single("AbsVal"),
    "bnll": single("BNLL"),
    "exp": single("Exp"),
    "exp of a base": single("Exp", "exp_param { base: 2 scale: 0.5 shift: 1.5 }"),
    "log": _net(layer("a", "AbsVal", "data"), layer("x", "Log", "a", None, "log_param { base: 10 scale: 2 shift: 1 }")),
    "power": _net(
        layer("a", "AbsVal", "data"),
        layer("x", "Power", "a", None, "power_param { power: 1.5 scale: 0.5 shift: 0.25 }"),
    ),
    "power of one": single("Power", "power_param { scale: -2 shift: 3 }"),
    "at most one": _net(*_AT_MOST_ONE, layer("z", "TanH", "x")),
    "at most one, and what others read": _net(*_AT_MOST_ONE, layer("z", "TanH", "m")),
    "sum with constants": _net(
        constant("three", 3, (2, 6, 9, 7)),
        layer("x", "Eltwise", "three data three", None, "eltwise_param { coeff: 2 coeff: -1 coeff: 1 }"),
        layer("y", "Eltwise", "three data", None, "eltwise_param { operation: PROD }"),
    ),
    "dropout": _net(layer("d", "Dropout", "data"), layer("r", "ReLU", "d")),
    "concat": _with((2, 3, 9, 7), layer("x", "Concat", "data other data")),
    "concat of rows": _with((2, 6, 2, 7), layer("x", "Concat", "data other", None, "concat_param { axis: -2 }")),
    "concat of batches": _with(
        (3, 6, 9, 7), layer("x", "Concat", "data other", None, "concat_param { concat_dim: 0 }")
    ),
    "concat with constants": _net(
        constant("z", 2, (2, 6, 1, 7)),
        layer("x", "Concat", "z data z", None, "concat_param { axis: 2 }"),
        layer("y", "Concat", "z z data x", None, "concat_param { axis: 2 }"),
    ),
    "slice": single("Slice", "slice_param { axis: 2 slice_point: 2 slice_point: 3 } top: 'y' top: 'z'"),
    "slice alike": single("Slice", "slice_param { slice_dim: 1 } top: 'y' top: 'z'"),
    "split": _net(layer("s", "Split", "data", "a b"), layer("x", "ReLU", "a"), layer("y", "Eltwise", "b x")),
    "eltwise sum": _with((2, 6, 9, 7), layer("x", "Eltwise", "data other")),
    "eltwise weighted": _with(
        (2, 6, 9, 7), layer("x", "Eltwise", "data other data", None, "eltwise_param { coeff: 2 coeff: -1 coeff: 0.5 }")
    ),
    "eltwise product": _with(
        (2, 6, 9, 7), layer("x", "Eltwise", "data other", None, "eltwise_param { operation: PROD }")
    ),
    "eltwise max": _with(
        (2, 6, 9, 7),
        layer("a", "TanH", "data"),
        layer("x", "Eltwise", "data other a", None, "eltwise_param { operation: MAX }"),
    ),
    "batch norm": single("BatchNorm", "batch_norm_param { eps: 0.01 }"),
    "batch norm and scale": _net(
        layer("b", "BatchNorm", "data"),
        layer("s", "Scale", "b", "b", "scale_param { bias_term: true }"),
        layer("r", "ReLU", "b", "b"),
    ),
    "batch norm and two scales": _net(
        layer("b", "BatchNorm", "data"),
        layer("s", "Scale", "b"),
        layer("t", "Scale", "s", None, "scale_param { bias_term: true }"),
    ),
    "batch norm that others read": _net(
        layer("b", "BatchNorm", "data"),
        layer("s", "Scale", "b", None, "scale_param { bias_term: true }"),
        layer("r", "ReLU", "b"),
    ),
    "batch norm that others read through a dropout": _net(
        layer("b", "BatchNorm", "data"), layer("d", "Dropout", "b"), layer("s", "Scale", "d"), layer("r", "ReLU", "b")
    ),
    "scale": single("Scale", "scale_param { bias_term: true }"),
    "scale of an image": single("Scale", "scale_param { axis: 2 num_axes: 2 bias_term: true }"),
    "scale of all": single("Scale", "scale_param { axis: 1 num_axes: -1 }"),
    "scale by one": single("Scale", "scale_param { num_axes: 0 bias_term: true }"),
    "scale by a bottom": _with(
        (2, 6), layer("x", "Scale", "data other", None, "scale_param { axis: 0 bias_term: true }")
    ),
    "scale by an image": _with((9, 7), layer("x", "Scale", "data other", None, "scale_param { axis: -2 }")),
    "bias": single("Bias"),
    "bias by a bottom": _with((6, 9), layer("x", "Bias", "data other", None, "bias_param { axis: 1 }")),
    "softmax": single("Softmax"),
    "softmax of rows": single("Softmax", "softmax_param { axis: -1 }"),
    "flatten": single("Flatten"),
    "flatten images": single("Flatten", "flatten_param { axis: 2 }"),
    "flatten channels": single("Flatten", "flatten_param { axis: 0 end_axis: 1 }"),
    "reshape": single("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 21 } }"),
    "reshape a part": single("Reshape", "reshape_param { shape { dim: 3 dim: 2 } axis: 1 num_axes: 1 }"),
    "reshape with an axis more": single("Reshape", "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }"),
    "crop": _with((2, 6, 5, 4), layer("x", "Crop", "data other", None, "crop_param { offset: 2 offset: 3 }")),
    "crop channels": _with((2, 3, 4, 4), layer("x", "Crop", "data other", None, "crop_param { axis: 1 offset: 1 }")),
    "two outputs, and values in one place": _net(
        layer("c", "Convolution", "data", "x", _ONES),
        layer("b", "BatchNorm", "x", "x"),
        layer("s", "Scale", "x", "x"),
        layer("r", "ReLU", "x", "x"),
        layer("d", "Dropout", "x", "x"),
        layer("p", "Pooling", "x", None, "pooling_param { kernel_size: 2 }"),
        layer("q", "TanH", "x"),
    ),
    "an output that is silenced": _net(
        layer("s", "Slice", "data", "a b"), layer("x", "ReLU", "a"), 'layer { name: "no" type: "Silence" bottom: "b" }'
    ),
    "of other names": _net(layer("x/y", "Convolution", "data", "x.weight", _ONES), layer("x", "PReLU", "x.weight")),
    "shared weights": _net(
        layer("c", "Convolution", "data", None, 'param { name: "w" } param { name: "b" } ' + _ONES),
        layer("d", "Convolution", "c", None, 'param { name: "w" } param { name: "b" } ' + _ONES),
    ),
    "inputs outside of layers": 'input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8\n'
    + layer("x", "TanH", "data"),
    "input shapes outside of layers": (
        'input: "data" input_shape { dim: 2 dim: 3 } input: "other" input_shape { dim: 2 dim: 3 }\n'
        + layer("x", "Eltwise", "data other")
    ),
    "layers of 2014": """
        name: "old" input: "data" input_dim: 2 input_dim: 3 input_dim: 11 input_dim: 12
        layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 2 weight_decay: 1
                 convolution_param { num_output: 6 kernel_size: 3 group: 3 } }
        layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
        layers { name: "norm" type: LRN bottom: "conv" top: "norm" lrn_param { local_size: 3 alpha: 0.5 } }
        layers { name: "pool" type: POOLING bottom: "norm" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
        layers { name: "fc" type: INNER_PRODUCT bottom: "pool" top: "fc" inner_product_param { num_output: 5 } }
        layers { name: "drop" type: DROPOUT bottom: "fc" top: "fc" }
        layers { name: "prob" type: SOFTMAX bottom: "fc" top: "prob" }
    """,
    "of two phases": _net(
        layer("c", "Convolution", "data", None, _CONV),
        layer("t", "TanH", "c", "x", "include { phase: TRAIN }"),
        layer("r", "ReLU", "c", "x", "include { phase: TEST }"),
        layer("u", "Sigmoid", "x", "x", "exclude { phase: TEST }"),
        layer("v", "Sigmoid", "x", "x", 'include { stage: "deploy" }'),
    ),
}

#: What is refused, or is no network at all: text, and words of the one error.
REFUSED = {
    "Python": (
        layer("p", "Python", "data", None, 'python_param { module: "os" layer: "x" }'),
        "p: the type Python is code of its author's, which is never run",
    ),
    "MVN": (layer("m", "MVN", "data"), "m: the type MVN can't be exported; these can: AbsVal"),
    "stochastic pooling": (
        layer("p", "Pooling", "data", None, "pooling_param { pool: STOCHASTIC kernel_size: 2 }"),
        "stochastic pooling",
    ),
    "a window outside": (
        layer("p", "Pooling", "data", None, "pooling_param { kernel_size: 1 stride: 3 }"),
        "lies outside of the image",
    ),
    "places of the largest": (
        layer("p", "Pooling", "data", "p q", "pooling_param { kernel_size: 2 }"),
        "its second top",
    ),
    "statistics of a batch": (
        layer("b", "BatchNorm", "data", None, "batch_norm_param { use_global_stats: false }"),
        "statistics of each batch",
    ),
    "no such blob": (layer("r", "ReLU", "nowhere"), "r reads the blob nowhere, which no layer before it writes"),
    "two writers": (
        layer("r", "ReLU", "data", "x") + layer("s", "ReLU", "data", "x"),
        "two layers write the blob x: r and s",
    ),
    "in place of what others read": (
        layer("a", "ReLU", "data") + layer("b", "TanH", "a") + layer("c", "ReLU", "a", "a"),
        "c writes the blob a in place",
    ),
    "over a bottom": (
        layer("p", "Pooling", "data", "data", "pooling_param { kernel_size: 2 }"),
        "p .Pooling. writes over its bottom data",
    ),
    "axis": (layer("s", "Softmax", "data", None, "softmax_param { axis: 4 }"), "no axis 4"),
    "coefficients": (
        layer("e", "Eltwise", "data data", None, "eltwise_param { coeff: 1 }"),
        "1 coefficients for 2 bottoms",
    ),
    "reshape": (layer("r", "Reshape", "data", None, "reshape_param { shape { dim: 5 } }"), "can't become"),
    "window": (
        layer("c", "Convolution", "data", None, "convolution_param { num_output: 2 kernel_size: 20 }"),
        "does not fit",
    ),
    "groups": (
        layer("c", "Convolution", "data", None, "convolution_param { num_output: 4 kernel_size: 1 group: 4 }"),
        "4 groups",
    ),
    "training data": ('layer { name: "d" type: "Data" top: "d" }', "d: the type Data reads data for training"),
    "constants": (constant("c", 1, (1, 2)) + layer("r", "ReLU", "c"), "r .ReLU. reads a constant; only Concat"),
    "constants alone": (constant("c", 1, (1, 2)) + layer("e", "Eltwise", "c c"), "all its bottoms are constants"),
    "random numbers": (
        constant("c", 1, (1, 2)).replace('"constant"', '"gaussian"') + layer("e", "Eltwise", "c c"),
        "c .DummyData.: only constants",
    ),
    "nothing": ("", "no layer that computes"),
    "an unknown field": ('layer { name: "r" type: "ROI" roi_pooling_param { } }', "no network in Caffe's text format"),
    "no text": ("\x00\x01", "no network in Caffe's text format"),
    "of 2013": ('layers { layer { name: "c" type: "conv" } bottom: "data" top: "c" }', "two forms"),
}
