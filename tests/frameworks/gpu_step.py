"""A small network on a GPU: the HLO that XLA makes of it there, and what a step leaves in a trace, made by hand."""

from xspaces import COPY, SET, record

from xframe.types import ModelSpec, layer

NET = ModelSpec(
    "net",
    (3, 8, 8),
    (
        layer("conv", "conv", out=4, kernel=3, pads=1),
        layer("relu", "relu"),
        layer("wide", "conv", out=4, kernel=3, pads=1),
        layer("pool", "maxpool", kernel=2, stride=2),
        layer("flat", "flatten"),
        layer("fc", "fc", out=5),
        layer("soft", "softmax"),
    ),
)
LAYERS = {x.name: x.name for x in NET.layers}

HLO = """\
HloModule jit_run, is_scheduled=true, entry_computation_layout={(f32[3,3,3,4]{3,2,1,0})->f32[1,5]{1,0}}

%wrapped_transpose_computation (param_0: f32[3,3,3,4]) -> f32[4,3,3,3] {
  %param_0 = f32[3,3,3,4]{3,2,1,0} parameter(0)
  ROOT %transpose.9.1 = f32[4,3,3,3]{3,2,1,0} transpose(%param_0), dimensions={3,2,0,1}
}

%fused_add (param_0.1: f32[1,4,8,8], param_1.1: f32[4]) -> f32[1,4,8,8] {
  %param_0.1 = f32[1,4,8,8]{3,2,1,0} parameter(0)
  %param_1.1 = f32[4]{0} parameter(1)
  %broadcast.3 = f32[1,4,8,8]{3,2,1,0} broadcast(%param_1.1), dimensions={1}, metadata={op_name="jit(run)/wide/add"}
  ROOT %add.3 = f32[1,4,8,8]{3,2,1,0} add(%param_0.1, %broadcast.3), metadata={op_name="jit(run)/wide/add"}
}

%larger (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %m = f32[] maximum(%a, %b), metadata={op_name="jit(run)/pool/reduce_window_max"}
}

%wrapped_reduce-window_computation (param_0.2: f32[1,4,8,8], param_1.2: f32[]) -> f32[1,4,4,4] {
  %param_0.2 = f32[1,4,8,8]{3,2,1,0} parameter(0)
  %param_1.2 = f32[] parameter(1)
  ROOT %rw.1 = f32[1,4,4,4]{3,2,1,0} reduce-window(%param_0.2, %param_1.2), window={size=1x1x2x2 stride=1x1x2x2}, \
to_apply=%larger, metadata={op_name="jit(run)/pool/reduce_window_max"}
}

%gemm_fusion_dot.1_computation (param_0.3: f32[1,64], param_1.3: f32[64,5]) -> f32[1,5] {
  %param_0.3 = f32[1,64]{1,0} parameter(0)
  %param_1.3 = f32[64,5]{1,0} parameter(1)
  ROOT %dot.1 = f32[1,5]{1,0} dot(%param_0.3, %param_1.3), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(run)/fc/dot_general"}
}

%fused_softmax (param_0.4: f32[1,5]) -> f32[1,5] {
  %param_0.4 = f32[1,5]{1,0} parameter(0)
  ROOT %exp.1 = f32[1,5]{1,0} exponential(%param_0.4), metadata={op_name="jit(run)/soft/exp"}
}

%command_buffer (p: f32[1,5]) -> f32[1,5] {
  %p = f32[1,5]{1,0} parameter(0)
  ROOT %input_exponential_fusion.2 = f32[1,5]{1,0} fusion(%p), kind=kInput, calls=%fused_softmax
}

ENTRY %main.20 (k: f32[3,3,3,4], x: f32[1,3,8,8]) -> f32[1,5] {
  %k = f32[3,3,3,4]{3,2,1,0} parameter(0), metadata={op_name="values[\\'conv.weight\\']"}
  %x = f32[1,3,8,8]{3,2,1,0} parameter(1), metadata={op_name="x"}
  %bias = f32[4]{0} parameter(2)
  %w = f32[64,5]{1,0} parameter(3)
  %low = f32[] constant(-inf)
  %copy-start.1 = (f32[4]{0}, f32[4]{0:S(5)}, u32[]) copy-start(%bias)
  %copy-done.1 = f32[4]{0} copy-done(%copy-start.1)
  %wrapped_transpose = f32[4,3,3,3]{3,2,1,0} fusion(%k), kind=kInput, calls=%wrapped_transpose_computation
  %cudnn-conv-bias-activation.4 = (f32[1,4,8,8]{3,2,1,0}, u8[0]{0}) custom-call(%x, %wrapped_transpose, %bias), \
window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01, custom_call_target="__cudnn$convBiasActivationForward", \
operand_layout_constraints={f32[1,3,8,8]{3,2,1,0}, f32[4,3,3,3]{3,2,1,0}, f32[4]{0}}, \
metadata={op_name="jit(run)/conv/conv_general_dilated" source_line=9}, backend_config={"operation_queue_id":"0",\
"cudnn_conv_backend_config":{"activation_mode":"kRelu","conv_result_scale":1,"algorithm":{"algo_id":"28",\
"math_type":"DEFAULT_MATH","tuning_knobs":{"2":"3"},"is_cudnn_frontend":true,"workspace_size":"0"}}}
  %get-tuple-element.1 = f32[1,4,8,8]{3,2,1,0} get-tuple-element(%cudnn-conv-bias-activation.4), index=0
  %cudnn-conv.7 = (f32[1,4,8,8]{3,2,1,0}, u8[4096]{0}) custom-call(%get-tuple-element.1, %k), window={size=3x3 \
pad=1_1x1_1}, dim_labels=bf01_oi01->bf01, custom_call_target="__cudnn$convForward"
  %get-tuple-element.2 = f32[1,4,8,8]{3,2,1,0} get-tuple-element(%cudnn-conv.7), index=0
  %loop_add_fusion = f32[1,4,8,8]{3,2,1,0} fusion(%get-tuple-element.2, %bias), kind=kLoop, calls=%fused_add
  %wrapped_reduce-window = f32[1,4,4,4]{3,2,1,0} fusion(%loop_add_fusion, %low), kind=kLoop, \
calls=%wrapped_reduce-window_computation
  %bitcast.5 = f32[1,64]{1,0} bitcast(%wrapped_reduce-window)
  %gemm_fusion_dot.1 = f32[1,5]{1,0} fusion(%bitcast.5, %w), kind=kCustom, calls=%gemm_fusion_dot.1_computation, \
backend_config={"fusion_backend_config":{"kind":"__triton_gemm","triton_gemm_config":{"block_m":"16"}}}
  %cublas-lt-matmul.2 = (f32[1,5]{1,0}, s8[4194304]{0}) custom-call(%bitcast.5, %w), \
custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(run)/fc/dot_general"}
  %async-start = ((f32[1,5]{1,0}), f32[1,5]{1,0}, u32[]) async-start(%gemm_fusion_dot.1), calls=%command_buffer
  ROOT %call = f32[1,5]{1,0} call(%gemm_fusion_dot.1), to_apply=%command_buffer
}
"""

_WINOGRAD = "void cudnn::winograd_nonfused::winogradForward{}4x4<float, float>(float const*, float*)"
SCUDNN, SGEMM = "ampere_scudnn_128x64_relu_interior_nn_v1", "ampere_sgemm_128x64_nn"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(cudnn::ops::nchw2nhwc_params_t<float>)"


def _thunk(name, start, end, op, details=None, **more):
    """Of a kernel that XLA launched: its annotations are those of the thunk and, around it, of the module."""
    stats = {"hlo_op": op, "hlo_module": "jit_run", "program_id": 4, "tf_op": "XlaModule:", **more}
    return record(name, start, end, details, **stats) if details else record(name, start, end, **stats)


#: What ran of the module. The last two are of a CUDA graph: all that is told of one is the graph's own thunk.
XLA = {
    "Stream #13(Compute,Memset)": [
        _thunk("wrapped_transpose", 104, 106, "wrapped_transpose"),
        _thunk(TO_NHWC, 106, 107, "cudnn-conv-bias-activation.4"),
        _thunk(SCUDNN, 107, 115, "cudnn-conv-bias-activation.4"),
        _thunk("Memset", 115, 116, "cudnn-conv.7", SET),
        _thunk(_WINOGRAD.format("Data"), 116, 118, "cudnn-conv.7"),
        _thunk(SGEMM, 118, 124, "cudnn-conv.7"),
        _thunk(_WINOGRAD.format("Output"), 124, 126, "cudnn-conv.7"),
        _thunk("loop_add_fusion", 126, 128, "loop_add_fusion", unique_hlo_op_id=31),
        _thunk("wrapped_reduce_window", 128, 130, "wrapped_reduce-window"),
        _thunk("gemm_fusion_dot_1", 131, 141, "gemm_fusion_dot.1"),
        _thunk("input_exponential_fusion_2", 145, 147, "command_buffer", cuda_graph_id=3, cuda_graph_node_id=8),
        record("loop_multiply_fusion", 147, 148, cuda_graph_id=3, cuda_graph_node_id=9),
    ],
    "Stream #15(MemcpyH2D)": [_thunk("MemcpyH2D", 103, 110, "copy-start.1", COPY)],
}
#: As of ``xspaces.told``.
OF_XLA = [
    ("MemcpyH2D", "copy", "", ""),
    ("wrapped_transpose", "layout", "conv", ""),
    ("void cudnn::ops::nchwToNhwcKernel", "layout", "conv", ""),
    (SCUDNN, "conv", "conv", SCUDNN),
    ("Memset", "copy", "wide", ""),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4", "conv", "wide", _WINOGRAD.format("Data").split("<")[0]),
    (SGEMM, "conv", "wide", SGEMM),
    (
        "void cudnn::winograd_nonfused::winogradForwardOutput4x4",
        "conv",
        "wide",
        _WINOGRAD.format("Output").split("<")[0],
    ),
    ("loop_add_fusion", "elementwise", "wide", ""),
    ("wrapped_reduce_window", "pool", "pool", ""),
    ("gemm_fusion_dot_1", "fc", "fc", ""),
    ("input_exponential_fusion_2", "softmax", "soft", ""),
    ("loop_multiply_fusion", "", "", ""),
]


def _node(name, start, end, node, details=None):
    return record(name, start, end, details, tf_op=node) if details else record(name, start, end, tf_op=node)


#: What ran of TensorFlow's graph, and the nodes that launched it.
_FIRST, _SECOND = "relu/Relu:_FusedConv2D", "wide/BiasAdd:_FusedConv2D"
GRAPH = {
    "Stream #21(Compute)": [
        _node(
            "void tensorflow::functor::ShuffleInTensor3Simple<float, 2, 1, 0>",
            104,
            106,
            "conv/Conv2D-0-Trans:Transpose",
        ),
        _node(TO_NHWC, 106, 107, _FIRST),
        _node(SCUDNN, 107, 115, _FIRST),
        _node(_WINOGRAD.format("Data"), 116, 118, _SECOND),
        _node(SGEMM, 118, 124, _SECOND),
        _node("void cudnn::pooling_fw_4d_kernel<float, float>", 128, 130, "pool/MaxPool2d:MaxPool"),
        _node(SGEMM, 131, 141, "fc/MatMul:MatMul"),
        _node("void tensorflow::BiasNHWCKernel<float>", 141, 142, "fc/BiasAdd:BiasAdd"),
        _node("void tensorflow::SoftmaxEltwise<float>", 145, 147, "soft/Softmax:Softmax"),
        record("void made_up<float>", 147, 148),
    ],
    "Stream #22(MemcpyH2D)": [_node("MemcpyH2D", 103, 105, "fc/Reshape/shape:_Arg", COPY)],
}
OF_GRAPH = [
    ("MemcpyH2D", "copy", "fc", ""),
    ("void tensorflow::functor::ShuffleInTensor3Simple", "layout", "conv", ""),
    ("void cudnn::ops::nchwToNhwcKernel", "layout", "conv", ""),
    (SCUDNN, "conv", "conv", SCUDNN),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4", "conv", "wide", _WINOGRAD.format("Data").split("<")[0]),
    (SGEMM, "conv", "wide", SGEMM),
    ("void cudnn::pooling_fw_4d_kernel", "pool", "pool", ""),
    (SGEMM, "fc", "fc", ""),
    ("void tensorflow::BiasNHWCKernel", "elementwise", "fc", ""),
    ("void tensorflow::SoftmaxEltwise", "softmax", "soft", ""),
    ("void made_up", "", "", ""),
]
