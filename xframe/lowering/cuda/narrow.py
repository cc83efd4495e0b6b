"""The types of few bits that tensor cores multiply."""

from dataclasses import dataclass

from tvm import tirx

#: Rows and columns of a fragment.
FRAGMENT = 16


@dataclass(frozen=True)
class Narrow:
    """A type of operands. ``stored``: in shared memory; ``depth``: steps of the reduction in one instruction;
    ``first``: the first architecture that multiplies them; ``unit`` and ``floor``: largest error of rounding to it,
    relative and absolute."""

    name: str
    words: str
    stored: str
    depth: int
    first: int
    unit: float
    floor: float

    def __call__(self, value):
        """A float32 ``value`` rounded to nearest."""
        if self.stored == "float16":
            return value.astype("float16")
        bits = tirx.reinterpret("uint32", value)
        size, sign = bits & 0x7FFFFFFF, bits >> 31 << 31
        nearest = tirx.min(size + 0x1000, tirx.const(0x7FFFFFFF, "uint32")) & 0x7FFFE000  # a NaN stays one
        return tirx.reinterpret("float32", sign | nearest)

    @property
    def bytes(self) -> int:
        return int(self.stored.removeprefix("float")) // 8

    def refuses(self, arch: str) -> str | None:
        """Why the architecture ``arch`` (``sm_75``; empty: not known) can't multiply them."""
        if arch and int(arch.removeprefix("sm_")) < self.first:
            return f"tensor cores multiply {self.words} from sm_{self.first} on, and this is {arch}"
        return None


#: As tensor cores have them. TF32 is float32 with a significand of 11 bits; float16 has the same, and few exponents.
TF32 = Narrow("tf32", "TF32", "float32", 8, 80, 2.0**-11, 0.0)
FLOAT16 = Narrow("fp16", "float16", "float16", 16, 75, 2.0**-11, 2.0**-25)
#: TIR has no TF32. Its fragments are declared with this type, and ``compiler`` writes the true one where the shape of a
#: fragment is that of TF32's.
STAND_IN = "float16"
#: Where sums are put down: shared memory apart, as TVM would give them the place of operands of another type.
SUMS = "shared.dyn"
