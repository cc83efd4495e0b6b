import functools

import pytest


@pytest.fixture(scope="session")
def _torchlib():
    """PyTorch's exporter reads anew, for each model, all that it can translate, which takes longer than the rest of it:
    here once."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield
