"""Measuring on other machines, over TVM's RPC tracker."""
