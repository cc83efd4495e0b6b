"""Isolated environments: frameworks of the past, each in a virtual environment of its own with the Python of its time.

>>> built = environments.find("caffe")  # Unavailable where it is not built
>>> Worker(threads=2, python=built.python, variables=built.variables)
"""

from xframe.environments.places import Built, find

__all__ = ["Built", "find"]
