"""How sessions of ONNX Runtime are set up: devices, switches, and that they are had."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from xframe import artifact, nvidia, registry
from xframe.backends import ort_session
from xframe.backends.ort import OnnxRuntime
from xframe.errors import NotHonoured, Unavailable, Unsupported, UsageError, XframeError
from xframe.types import Plan

AUTO = Plan()
SWITCHES = {s.name: s.values for s in registry.BACKENDS["ort"].switches}
#: Switch of a CPU, a value that is not its default -> what the session then says of itself.
ON_A_CPU = {
    ("graph_optimization_level", "extended"): ("optimization_level", "ORT_ENABLE_EXTENDED"),
    ("cpu_mem_arena", "off"): ("cpu_mem_arena", False),
    ("mem_pattern", "off"): ("mem_pattern", False),
    ("spinning", "off"): ("spinning", "0"),
    ("execution_mode", "parallel"): ("execution_mode", "ORT_PARALLEL"),
    ("denormal_as_zero", "on"): ("denormal_as_zero", "1"),
    ("nchwc", "off"): ("nchwc", False),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A convolution of 16 channels, which a CPU computes in blocks of them, and ReLU."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype("float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["a"], "conv"), helper.make_node("Relu", ["a"], ["y"], "relu")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 9, 9))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 16, 7, 7))],
        [weight],
    )
    path = tmp_path_factory.mktemp("ort") / "m.onnx"
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return artifact.load(path)


def compiled(model, device="cpu", **options):
    return OnnxRuntime().compile(model, AUTO, device, 2, options)


def outputs(built):
    built.bind([np.random.default_rng(1).standard_normal((1, 16, 9, 9)).astype("float32")])
    built.step()
    built.sync()
    return built.fetch()[0]


def test_each_switch_is_of_one_device_or_of_both():
    devices = {s.name: s.devices for s in registry.BACKENDS["ort"].switches}
    assert {name for name, _ in ON_A_CPU} == {name for name in devices if "cpu" in devices[name]}
    assert set(ort_session.CUDA) == {name for name in devices if devices[name] == ("cuda",)}
    assert {name: tuple(values) for name, values in ort_session.CUDA.items()} == {
        name: values for name, values in SWITCHES.items() if name in ort_session.CUDA
    }


@pytest.mark.parametrize(("switch", "value"), ON_A_CPU)
def test_a_switch_changes_what_the_session_has_and_not_what_it_computes(model, switch, value):
    fact, wanted = ON_A_CPU[switch, value]
    usual, other = compiled(model), compiled(model, **{switch: value})
    assert other.environment[fact] == wanted != usual.environment[fact]
    same = set(usual.environment) - {fact, "inter_op_threads"}
    assert all(other.environment[f] == usual.environment[f] for f in same)
    np.testing.assert_allclose(outputs(other), outputs(usual), rtol=1e-4, atol=1e-4)
    usual.close()
    other.close()


@pytest.mark.parametrize("switch", [name for name, _ in ON_A_CPU])
def test_its_default_changes_nothing(model, switch):
    usual, same = compiled(model), compiled(model, **{switch: SWITCHES[switch][0]})
    assert same.environment == usual.environment
    usual.close()
    same.close()


def test_without_blocks_of_channels_nothing_is_reordered(model):
    """Read off a profile: the session can't be asked which optimisers it left out."""
    blocked, plain = compiled(model), compiled(model, nchwc="off")
    outputs(blocked)
    outputs(plain)
    (with_blocks,), (without,) = blocked.profile(1), plain.profile(1)
    assert "layout" in {k.kind for k in with_blocks.kernels}
    assert {k.kind for k in without.kernels} == {"conv"}
    assert [k.algorithm for k in with_blocks.kernels if k.site] == ["mlas:nchwc_direct"]


def test_nodes_side_by_side_need_two_threads(model):
    with pytest.raises(Unsupported, match="execution_mode=parallel was asked for with 1 thread"):
        OnnxRuntime().compile(model, AUTO, "cpu", 1, {"execution_mode": "parallel"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("enable_mem_pattern", False, "enable_mem_pattern=False"),
        ("intra_op_num_threads", 7, "intra_op_num_threads=7"),
        ("get_session_config_entry", lambda key: "7", "session.intra_op.allow_spinning=7"),
    ],
)
def test_other_settings_than_given_are_not_honoured(model, monkeypatch, name, value, words):
    """As where a build of it ignores one of them."""
    real = ort_session.ort.InferenceSession.get_session_options

    def other(self):
        class Options:
            def __getattr__(self, asked):
                return value if asked == name else getattr(taken, asked)

        taken = real(self)
        return Options()

    monkeypatch.setattr(ort_session.ort.InferenceSession, "get_session_options", other)
    with pytest.raises(NotHonoured, match=words):
        compiled(model)


def test_options_of_the_cuda_provider(monkeypatch):
    """What the provider is given; it is not there in most places where this runs."""
    given = {}

    def session(path, settings, providers, disabled_optimizers, enable_fallback):
        given.update(providers[0][1])
        return SimpleNamespace(
            get_providers=lambda: [providers[0][0]],
            get_session_options=lambda: settings,
            get_provider_options=lambda: {providers[0][0]: {**given, "use_tf32": "1"}},
        )

    monkeypatch.setattr(ort_session, "provider_of", lambda device: (ort_session.PROVIDERS["cuda"], 3))
    monkeypatch.setattr(ort_session.ort, "preload_dlls", lambda: None)
    monkeypatch.setattr(ort_session.ort, "InferenceSession", session)
    switches = {"cudnn_conv_algo_search": "heuristic", "prefer_nhwc": "on"}
    with pytest.raises(NotHonoured, match="use_tf32"):
        ort_session.Settings("m.onnx", 1, "cuda:3", switches=switches).open()
    assert given == {
        "device_id": "3",
        "cudnn_conv_algo_search": "HEURISTIC",
        "prefer_nhwc": "1",
        "use_tf32": "0",
        "cudnn_conv_use_max_workspace": "1",
        "enable_cuda_graph": "0",
    }


def test_limits_are_given_only_where_they_are_asked_for():
    given = ort_session.Settings("m.onnx", 1, "cuda:1", switches={"gpu_mem_limit": "4GiB", "fuse_conv_bias": "on"})
    options = given._provider_options(1)
    assert (options["gpu_mem_limit"], options["fuse_conv_bias"], options["device_id"]) == (str(4 << 30), "1", "1")
    assert not {"gpu_mem_limit", "fuse_conv_bias"} & set(ort_session.Settings("m", 1, "cuda")._provider_options(0))


def test_a_session_on_a_gpu_runs_no_node_on_the_cpu(monkeypatch):
    asked = []

    def session(path, settings, providers, disabled_optimizers, enable_fallback):
        asked.append(settings.get_session_config_entry("session.disable_cpu_ep_fallback"))
        raise RuntimeError(
            "[ONNXRuntimeError] : 1 : FAIL : This session contains graph nodes that are assigned to the default CPU EP,"
            " but fallback to CPU EP has been explicitly disabled by the user."
        )

    monkeypatch.setattr(ort_session, "provider_of", lambda device: (ort_session.PROVIDERS["cuda"], 0))
    monkeypatch.setattr(ort_session.ort, "preload_dlls", lambda: None)
    monkeypatch.setattr(ort_session.ort, "InferenceSession", session)
    monkeypatch.setattr(ort_session, "_missing", lambda: "")
    with pytest.raises(NotHonoured, match="cuda was asked for and ONNX Runtime would run nodes on the CPU"):
        ort_session.Settings("m.onnx", 1, "cuda").open()
    assert asked == ["1"]
    assert "session.disable_cpu_ep_fallback" not in ort_session.Settings("m.onnx", 1, "cpu")._entries()


def test_a_provider_that_does_not_load_is_no_node_without_a_kernel(model, monkeypatch):
    """ONNX Runtime goes on without it, and says of all nodes that they are the CPU's."""
    with contextlib.suppress(Unavailable):
        nvidia.devices()
        pytest.skip("there is a driver, and its libraries may be here")
    monkeypatch.setattr(nvidia, "devices", lambda: 1)
    with pytest.raises(Unavailable, match=r"CUDA provider does not load: lib\w+\.so.*: pip install"):
        compiled(model, "cuda")


def test_what_fails_while_the_provider_is_made_is_told(model, monkeypatch):
    """Not what a second try, on the CPU, would say: it was refused that."""
    made = ort_session.ort.capi.onnxruntime_inference_collection.C.InferenceSession

    def session(*given):
        real = made(*given)

        def initialize(providers, options, disabled):
            if ort_session.PROVIDERS["cuda"] in providers:
                raise RuntimeError("CUDA failure 2: out of memory")
            return real.initialize_session(providers, options, disabled)

        return SimpleNamespace(initialize_session=initialize)

    monkeypatch.setattr(nvidia, "devices", lambda: 1)
    monkeypatch.setattr(ort_session.ort.capi.onnxruntime_inference_collection.C, "InferenceSession", session)
    with pytest.raises(XframeError, match=r"can't load .*CUDA failure 2: out of memory"):
        compiled(model, "cuda")


@pytest.mark.parametrize(("device", "placed"), [("cuda", 1), ("cpu", 3)])
def test_inputs_stay_where_a_captured_graph_reads_them(model, monkeypatch, device, placed):
    """On a CPU a value is the array's own memory, and is bound anew."""
    values, bound = [], []

    class Value:
        def __init__(self, array):
            self.seen = [array.copy()]
            values.append(self)

        def update_inplace(self, array):
            self.seen.append(array.copy())

    binding = SimpleNamespace(
        bind_ortvalue_input=lambda name, value: bound.append((name, value)), synchronize_inputs=lambda: None
    )
    session = SimpleNamespace(io_binding=lambda: binding, get_outputs=lambda: [])
    monkeypatch.setattr(
        ort_session.ort, "OrtValue", SimpleNamespace(ortvalue_from_numpy=lambda array, *device: Value(array))
    )
    made = ort_session.Bound(session, device, 0)
    for number in range(3):
        made.bind(model, [np.full((1, 16, 9, 9), number, np.float32)])
    assert len(values) == len(bound) == placed
    assert [a[0, 0, 0, 0] for v in values for a in v.seen] == [0, 1, 2]


def test_cuda_without_it_is_unavailable(model, monkeypatch):
    monkeypatch.setattr(ort_session.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(Unavailable, match="built without CUDA"):
        compiled(model, "cuda")
    monkeypatch.setattr(
        ort_session.ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )

    def no_library(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvidia.ctypes, "CDLL", no_library)
    with pytest.raises(Unavailable, match="needs an NVIDIA driver"):
        compiled(model, "cuda:0")
    monkeypatch.setattr(nvidia, "devices", lambda: 1)
    with pytest.raises(Unavailable, match=r"cuda:1 was asked for, this process sees 1 GPU\(s\)"):
        compiled(model, "cuda:1")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        compiled(model, "tpu")


def test_a_session_that_fell_back_to_the_cpu_is_not_honoured(model, monkeypatch):
    real = ort_session.ort.InferenceSession
    monkeypatch.setattr(ort_session, "provider_of", lambda device: (ort_session.PROVIDERS["cuda"], 0))
    monkeypatch.setattr(ort_session.ort, "preload_dlls", lambda: None)
    monkeypatch.setattr(
        ort_session.ort,
        "InferenceSession",
        lambda path, settings, **_: real(path, providers=["CPUExecutionProvider"]),
    )
    with pytest.raises(NotHonoured, match="fell back to CPUExecutionProvider"):
        compiled(model, "cuda")
