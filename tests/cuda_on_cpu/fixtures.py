"""Import it where it is used: ``from tests.cuda_on_cpu.fixtures import cuda_on_cpu``."""

import pytest

from tests.cuda_on_cpu import shim
from xframe.errors import Unavailable


@pytest.fixture(scope="session")
def cuda_on_cpu():
    """The :class:`~tests.cuda_on_cpu.shim.Shim` of this process; where there can be none, the test is skipped."""
    try:
        return shim.default()
    except Unavailable as e:
        pytest.skip(str(e))
