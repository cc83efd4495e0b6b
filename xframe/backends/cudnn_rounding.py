"""How cuDNN's convolutions round, for the error bound: by the algorithm, or by what an engine declares of itself."""

from collections.abc import Collection
from dataclasses import replace

from xframe.types import ConvSite, Rounding

#: Numerical notes of engines that may round the operands of products, to no less than TF32.
OPERANDS = ("TENSOR_CORE",)
#: Taps of the kernel -> outputs of the largest tile that cuDNN's Winograd is taken to have in one dimension.
#: ``winogradForwardData4x4`` and ``winogradForwardData9x9_5x5`` are names of its kernels.
_LARGEST = {3: 4, 5: 9}
#: Note on a tile -> its side. cuDNN does not say whether of its inputs or its outputs: 13 is 9 outputs by 5 taps, as in
#: the name of the kernel, and the lesser ones are taken to be outputs, which rounds more.
_INPUTS, _OUTPUTS = {"WINOGRAD_TILE_13x13": 13}, {"WINOGRAD_TILE_4x4": 4, "WINOGRAD_TILE_6x6": 6}
#: (outputs, taps) -> growth of the rounding in one dimension, as ``xframe.lowering.winograd`` has it, with the points
#: 0, 1, -1, 2, -2, 1/2, -1/2, 4, -4, 1/4, -1/4, 3/2: cuDNN does not tell its own.
_GROWTH = {(4, 3): 5.7, (6, 3): 6.8, (11, 3): 267.0, (4, 5): 5.5, (6, 5): 84.0, (9, 5): 208.0}
#: Side of a tile of FFT_TILING.
_FFT_TILE = 32
#: Unit roundoff of TF32, and of float16: significands of 11 bits.
_NARROW = 2.0**-11


def of_algorithm(algorithm: str, site: ConvSite, narrow: bool = False) -> Rounding:
    """Of the legacy interface. ``narrow``: operands of products may be rounded to TF32."""
    side = max(site.kernel)
    if algorithm.startswith("winograd") and side in _LARGEST:
        return _narrowed(_winograd(site, _LARGEST[side]), narrow)
    if algorithm.startswith("fft"):
        return _narrowed(_fft(site, tiled=algorithm == "fft_tiling"), narrow)
    return _narrowed(Rounding(site.reduction), narrow)


def of_notes(notes: Collection[str], site: ConvSite) -> Rounding:
    """Of an engine with these numerical notes: the most that they allow."""
    narrow = bool(set(OPERANDS) & set(notes))
    side = max(site.kernel)
    if any(note.startswith("WINOGRAD") for note in notes):
        outputs = [n for note, n in _OUTPUTS.items() if note in notes]
        outputs += [n - side + 1 for note, n in _INPUTS.items() if note in notes]
        return _narrowed(_winograd(site, max(outputs, default=_LARGEST[5] if side > 3 else 6)), narrow)
    if "FFT" in notes:
        return _narrowed(_fft(site, tiled=False), narrow)
    return _narrowed(Rounding(site.reduction), narrow)


def _winograd(site: ConvSite, outputs: int) -> Rounding:
    """Sums over channels, and over the few terms of the transforms."""
    channels, side = site.in_channels // site.groups, max(site.kernel)
    growth = _GROWTH.get((outputs, 3 if side <= 3 else 5), max(_GROWTH.values()))
    return Rounding(channels + 4 * (outputs + side - 1), growth**2, (outputs - 1, outputs - 1))


def _fft(site: ConvSite, tiled: bool) -> Rounding:
    """Sums over channels; a tile is the whole image with its kernel, or less."""
    whole = tuple(n + k for n, k in zip(site.in_hw, site.kernel, strict=True))
    h, w = (min(n, _FFT_TILE) for n in whole) if tiled else whole
    return Rounding(site.in_channels // site.groups + 2 * (h + w), 1.0, (h - 1, w - 1))


def _narrowed(rounding: Rounding, narrow: bool) -> Rounding:
    """Transforms enlarge the error of operands that were rounded after them, too."""
    return replace(rounding, operands=_NARROW * rounding.growth) if narrow else rounding
