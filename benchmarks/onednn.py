"""oneDNN's convolutions over channels-last images: PyTorch's, in that memory format."""

from typing import Any

import torch

from xframe.frameworks.pytorch import PyTorch


class ChannelsLast(PyTorch):
    """See :class:`xframe.protocols.Framework`."""

    def build(self, *args: Any) -> Any:
        """PyTorch's network, weights and inputs laid out anew."""
        network = super().build(*args)
        network._module = network._module.to(memory_format=torch.channels_last)
        bind = network.bind

        def bind_channels_last(feeds: list[Any]) -> None:
            bind(feeds)
            network._x = network._x.contiguous(memory_format=torch.channels_last)

        network.bind = bind_channels_last  # type: ignore[method-assign]
        return network
