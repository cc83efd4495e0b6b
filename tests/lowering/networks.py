"""Small ONNX networks and running them under a forced plan, for the tests of the lowerings."""

import os

import numpy as np
import onnx
from onnx import helper, numpy_helper

os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ.setdefault("TVM_NUM_THREADS", "2")

import tvm
from tvm import relax

from xframe import planning
from xframe.lowering import pipeline
from xframe.lowering.target import Cpu
from xframe.types import ConvSite, Plan

HOST = Cpu.host(2)


def network(nodes, inputs, outputs, constants, opset=17) -> onnx.ModelProto:
    """A checked model; inputs and outputs are name -> shape."""

    def infos(shapes):
        return [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()]

    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "net", infos(inputs), infos(outputs), tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def conv_node(site: ConvSite, x: str, weight: str, bias: str, y: str) -> onnx.NodeProto:
    return helper.make_node(
        "Conv", [x, weight, bias], [y], strides=site.stride, pads=site.pads, dilations=site.dilation,
        group=site.groups, kernel_shape=site.kernel,
    )  # fmt: skip


def conv_network(site: ConvSite, weight, bias, relu: bool) -> onnx.ModelProto:
    conv = conv_node(site, "x", "w", "b", "c" if relu else "y")
    nodes = [conv, helper.make_node("Relu", ["c"], ["y"])] if relu else [conv]
    shape = (site.batch, site.in_channels, *site.in_hw)
    return network(nodes, {"x": shape}, {"y": (site.batch, site.out_channels, *site.out_hw)}, {"w": weight, "b": bias})


def conv_data(site: ConvSite, seed: int):
    """(image, weight, bias), float32: N(0, 1), weights scaled to keep the variance."""
    g = np.random.default_rng(seed)
    x = g.standard_normal((site.batch, site.in_channels, *site.in_hw), dtype=np.float32)
    w = g.standard_normal((site.out_channels, site.in_channels // site.groups, *site.kernel), dtype=np.float32)
    return x, w / np.float32(np.sqrt(site.reduction)), g.standard_normal(site.out_channels, dtype=np.float32)


def run(built: pipeline.Built, feeds, machine: relax.VirtualMachine | None = None) -> list[np.ndarray]:
    """Its outputs. ``machine``: of its executable, where there is one: making one takes long for a large network."""
    machine = machine or relax.VirtualMachine(built.executable, tvm.cpu())
    out = machine["main"](*(tvm.runtime.tensor(np.array(x, order="C")) for x in [*feeds, *built.parameters]))
    return [out.numpy()] if isinstance(out, tvm.runtime.Tensor) else [y.numpy() for y in out]


def quick(mod: tvm.IRModule):
    """An executable of ``mod`` in half the time or less, for tests of the numbers that it gives.

    LLVM does not optimise it, and its kernels do not check the shapes that they are called with. Code as users run it
    is in the tests of targets and of the error budget for all lowerings, of two shipped networks, and of residuals.
    """
    target = tvm.target.Target({**HOST.tvm.export(), "opt-level": 0})
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        return tvm.compile(mod, target=target)


def build(model: onnx.ModelProto, plan: Plan) -> pipeline.Built:
    """``pipeline.build`` under a forced plan by :func:`quick`."""
    mod, parameters, sites = pipeline.forced(model, plan, HOST)
    return pipeline.Built(quick(mod), parameters, sites, [])


def usual(model: onnx.ModelProto, plan: Plan) -> pipeline.Built:
    return pipeline.build(model, plan, HOST)


def everywhere(lowering: str, *sites: ConvSite) -> Plan:
    budget = planning.budget(lowering)
    return Plan(lowering, tuple((s, lowering) for s in sites), error_budget=budget)
