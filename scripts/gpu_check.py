"""The command ``gpu-check`` from a checkout, or from what ``--pack`` took elsewhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    from xframe.cli import main
except ModuleNotFoundError as e:
    sys.exit(f"xframe: the Python module {e.name} is missing here: pip install -e '.[all]'")

if __name__ == "__main__":
    sys.exit(main(["gpu-check", *sys.argv[1:]]))
