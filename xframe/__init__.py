"""xframe: is it the framework, or the convolution kernels it picks?"""

__version__ = "0.1.0"
