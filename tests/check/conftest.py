"""What the cases share."""

import pytest


@pytest.fixture
def checked(tmp_path):
    from small_models import Checker

    return Checker(tmp_path)
