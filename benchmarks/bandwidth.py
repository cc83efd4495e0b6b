"""The rate at which this machine reads memory (``xframe.calibration``): the limit of a fully connected layer.

    python benchmarks/bandwidth.py --threads 2,1

Bytes a second, of the fastest of some passes over a block several times the last-level cache.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import options, run
from xframe.calibration import read_bandwidth


def main() -> int:
    given = options(__doc__.splitlines()[0], rounds=1).parse_args()
    for threads in given.threads:
        rate = read_bandwidth(threads)
        print(
            json.dumps({"threads": threads, "bytes_per_s": rate}) if given.json else f"{threads}: {rate / 1e9:.1f} GB/s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
