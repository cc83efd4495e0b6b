"""What becomes of the errors of TensorFlow's first step."""

import pytest

from xframe.errors import Unsupported


def raising(error):
    """A network on a GPU whose first step raises it."""
    module = pytest.importorskip("xframe.frameworks.tensorflow", exc_type=ImportError)

    def step():
        raise getattr(module.tf.errors, error)(None, None, "Conv2D: why\nmore")

    network = object.__new__(module._Network)
    network._shape, network._nchw, network._device = (1, 3, 8, 8), False, "/GPU:0"
    network.environment, network.bind, network.step = {"layout": "NHWC"}, lambda feeds: None, step
    return network


@pytest.mark.parametrize("error", ["InvalidArgumentError", "NotFoundError", "UnimplementedError"])
def test_an_operator_without_a_kernel_is_unsupported(error):
    with pytest.raises(Unsupported, match=r"no kernels for it here \(Conv2D: why\); use --device cpu"):
        raising(error)._try()


@pytest.mark.parametrize("error", ["ResourceExhaustedError", "InternalError", "AbortedError"])
def test_what_fails_otherwise_in_the_first_step_is_no_refusal(error):
    """Memory may be full, a library broken: another machine can have what this one lacked."""
    with pytest.raises(Exception, match="why") as found:
        raising(error)._try()
    assert type(found.value).__name__ == error
