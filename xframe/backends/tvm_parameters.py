"""The parameters of compiled networks as files, each called after its content: equal ones of all plans are one file."""

import hashlib

import numpy as np

#: The folder that they are in.
FOLDER = "parameters"


def content(array: np.ndarray) -> memoryview:
    """What the file of a parameter holds: its values in float32, one after another."""
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1).data


def name(array: np.ndarray) -> str:
    """What the file of a parameter is called: SHA-256 of its content."""
    return hashlib.sha256(content(array)).hexdigest()
