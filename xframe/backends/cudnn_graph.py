"""cuDNN's graph interface through its backend calls: descriptors whose attributes are set one by one, then made final.

Names and values are those of ``cudnn_graph.h``. A descriptor that was made final can't be changed any more, and only
then can it be read or be an attribute of another.
"""

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

from xframe.backends.cudnn_library import Libraries

#: ``cudnnBackendDescriptorType_t``, without CUDNN_BACKEND_ and _DESCRIPTOR.
DESCRIPTORS = {
    "CONVOLUTION": 1,
    "ENGINE": 2,
    "ENGINECFG": 3,
    "ENGINEHEUR": 4,
    "EXECUTION_PLAN": 5,
    "KNOB_CHOICE": 7,
    "KNOB_INFO": 8,
    "OPERATION_CONVOLUTION_FORWARD": 10,
    "OPERATIONGRAPH": 15,
    "VARIANT_PACK": 16,
    "TENSOR": 17,
}
#: ``cudnnBackendAttributeType_t``, without CUDNN_TYPE_, and what an element of that type is in memory.
TYPES: dict[str, tuple[int, Any]] = {
    "HANDLE": (0, ctypes.c_void_p),
    "DATA_TYPE": (1, ctypes.c_int),
    "INT64": (3, ctypes.c_int64),
    "FLOAT": (4, ctypes.c_float),
    "VOID_PTR": (6, ctypes.c_void_p),
    "CONVOLUTION_MODE": (7, ctypes.c_int),
    "HEUR_MODE": (8, ctypes.c_int),
    "KNOB_TYPE": (9, ctypes.c_int),
    "NUMERICAL_NOTE": (11, ctypes.c_int),
    "BACKEND_DESCRIPTOR": (15, ctypes.c_void_p),
    "BEHAVIOR_NOTE": (19, ctypes.c_int),
}
#: ``cudnnBackendAttributeName_t``, without CUDNN_ATTR_, and the type of its elements.
ATTRIBUTES = {
    "CONVOLUTION_COMP_TYPE": (100, "DATA_TYPE"),
    "CONVOLUTION_CONV_MODE": (101, "CONVOLUTION_MODE"),
    "CONVOLUTION_DILATIONS": (102, "INT64"),
    "CONVOLUTION_FILTER_STRIDES": (103, "INT64"),
    "CONVOLUTION_POST_PADDINGS": (104, "INT64"),
    "CONVOLUTION_PRE_PADDINGS": (105, "INT64"),
    "CONVOLUTION_SPATIAL_DIMS": (106, "INT64"),
    "ENGINEHEUR_MODE": (200, "HEUR_MODE"),
    "ENGINEHEUR_OPERATION_GRAPH": (201, "BACKEND_DESCRIPTOR"),
    "ENGINEHEUR_RESULTS": (202, "BACKEND_DESCRIPTOR"),
    "ENGINECFG_ENGINE": (300, "BACKEND_DESCRIPTOR"),
    "ENGINECFG_KNOB_CHOICES": (302, "BACKEND_DESCRIPTOR"),
    "EXECUTION_PLAN_HANDLE": (400, "HANDLE"),
    "EXECUTION_PLAN_ENGINE_CONFIG": (401, "BACKEND_DESCRIPTOR"),
    "EXECUTION_PLAN_WORKSPACE_SIZE": (402, "INT64"),
    "KNOB_CHOICE_KNOB_TYPE": (600, "KNOB_TYPE"),
    "KNOB_CHOICE_KNOB_VALUE": (601, "INT64"),
    "OPERATION_CONVOLUTION_FORWARD_ALPHA": (700, "FLOAT"),
    "OPERATION_CONVOLUTION_FORWARD_BETA": (701, "FLOAT"),
    "OPERATION_CONVOLUTION_FORWARD_CONV_DESC": (702, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_FORWARD_W": (703, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_FORWARD_X": (704, "BACKEND_DESCRIPTOR"),
    "OPERATION_CONVOLUTION_FORWARD_Y": (705, "BACKEND_DESCRIPTOR"),
    "OPERATIONGRAPH_HANDLE": (800, "HANDLE"),
    "OPERATIONGRAPH_OPS": (801, "BACKEND_DESCRIPTOR"),
    "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT": (802, "INT64"),
    "TENSOR_BYTE_ALIGNMENT": (900, "INT64"),
    "TENSOR_DATA_TYPE": (901, "DATA_TYPE"),
    "TENSOR_DIMENSIONS": (902, "INT64"),
    "TENSOR_STRIDES": (903, "INT64"),
    "TENSOR_UNIQUE_ID": (906, "INT64"),
    "VARIANT_PACK_UNIQUE_IDS": (1000, "INT64"),
    "VARIANT_PACK_DATA_POINTERS": (1001, "VOID_PTR"),
    "VARIANT_PACK_WORKSPACE": (1003, "VOID_PTR"),
    "KNOB_INFO_TYPE": (1200, "KNOB_TYPE"),
    "KNOB_INFO_MAXIMUM_VALUE": (1201, "INT64"),
    "KNOB_INFO_MINIMUM_VALUE": (1202, "INT64"),
    "KNOB_INFO_STRIDE": (1203, "INT64"),
    "ENGINE_OPERATION_GRAPH": (1300, "BACKEND_DESCRIPTOR"),
    "ENGINE_GLOBAL_INDEX": (1301, "INT64"),
    "ENGINE_KNOB_INFO": (1302, "BACKEND_DESCRIPTOR"),
    "ENGINE_NUMERICAL_NOTE": (1303, "NUMERICAL_NOTE"),
    "ENGINE_BEHAVIOR_NOTE": (1305, "BEHAVIOR_NOTE"),
}
#: ``cudnnBackendNumericalNote_t``, without CUDNN_NUMERICAL_NOTE_: what an engine declares of its arithmetic.
NOTES = {
    "TENSOR_CORE": 0,
    "DOWN_CONVERT_INPUTS": 1,
    "REDUCED_PRECISION_REDUCTION": 2,
    "FFT": 3,
    "NONDETERMINISTIC": 4,
    "WINOGRAD": 5,
    "WINOGRAD_TILE_4x4": 6,
    "WINOGRAD_TILE_6x6": 7,
    "WINOGRAD_TILE_13x13": 8,
    "STRICT_NAN_PROP": 9,
}
#: ``cudnnBackendHeurMode_t``, without CUDNN_HEUR_MODE_: what cuDNN asks for a list of engines, the best first.
HEURISTICS = {"A": 3, "B": 1, "FALLBACK": 2}
#: ``cudnnBackendBehaviorNote_t``: its kernels are compiled when the plan is made.
COMPILED_AT_RUN_TIME = 0
#: Elements that are asked for at most of a list whose length cuDNN knows: over twice as many as there are kinds of.
_MOST = 96

Address = ctypes.c_void_p


class Descriptor:
    """One descriptor; destroyed when ``until`` is closed. It is empty: see :func:`made`."""

    def __init__(self, api: Libraries, kind: str, until: contextlib.ExitStack):
        self._api = api
        self.address = Address()
        api.cudnnBackendCreateDescriptor(DESCRIPTORS[kind], ctypes.byref(self.address))
        until.callback(api.cudnnBackendDestroyDescriptor, self.address)

    def set(self, name: str, value: Any) -> None:
        """An attribute: a number, an address or a descriptor, or a sequence of such. Raises CallFailed."""
        number, kind = ATTRIBUTES[name]
        given = value if isinstance(value, Sequence) else (value,)
        plain = [v.address if isinstance(v, Descriptor) else v for v in given]
        elements = (TYPES[kind][1] * len(plain))(*plain)
        self._api.cudnnBackendSetAttribute(self.address, number, TYPES[kind][0], len(plain), elements)

    def numbers(self, name: str) -> list[int]:
        """What an attribute holds. Raises CallFailed."""
        number, kind = ATTRIBUTES[name]
        elements, count = (TYPES[kind][1] * _MOST)(), ctypes.c_int64()
        self._api.cudnnBackendGetAttribute(self.address, number, TYPES[kind][0], _MOST, ctypes.byref(count), elements)
        return list(elements[: min(count.value, _MOST)])

    def number(self, name: str) -> int:
        """The one number that an attribute holds. Raises CallFailed."""
        number, kind = ATTRIBUTES[name]
        element, count = TYPES[kind][1](), ctypes.c_int64()
        self._api.cudnnBackendGetAttribute(
            self.address, number, TYPES[kind][0], 1, ctypes.byref(count), ctypes.byref(element)
        )
        return int(element.value)

    def count(self, name: str) -> int:
        """How many descriptors an attribute holds. Raises CallFailed."""
        number, kind = ATTRIBUTES[name]
        count = ctypes.c_int64()
        self._api.cudnnBackendGetAttribute(self.address, number, TYPES[kind][0], 0, ctypes.byref(count), None)
        return count.value

    def parts(self, name: str, kind: str, until: contextlib.ExitStack, most: int = _MOST) -> list["Descriptor"]:
        """The descriptors that an attribute holds, ``most`` of them: cuDNN fills empty ones. Raises CallFailed."""
        number, _ = ATTRIBUTES[name]
        empty = [Descriptor(self._api, kind, until) for _ in range(most)]
        elements, count = (Address * most)(*(d.address for d in empty)), ctypes.c_int64()
        self._api.cudnnBackendGetAttribute(
            self.address, number, TYPES["BACKEND_DESCRIPTOR"][0], most, ctypes.byref(count), elements
        )
        return empty[: min(count.value, most)]


def made(api: Libraries, kind: str, until: contextlib.ExitStack, **attributes: Any) -> Descriptor:
    """A final descriptor with these attributes, by their names in :data:`ATTRIBUTES`. Raises CallFailed."""
    new = Descriptor(api, kind, until)
    for name, value in attributes.items():
        new.set(name, value)
    api.cudnnBackendFinalize(new.address)
    return new
