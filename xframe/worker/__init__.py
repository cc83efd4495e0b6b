"""The process that holds one runner, and the host's handle on it.

Everything here but :mod:`~xframe.worker.host` runs on Python 3.6 upwards with numpy alone.
"""
