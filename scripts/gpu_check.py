"""The command ``gpu-check`` from a checkout, or from what ``--pack`` took elsewhere."""

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))  # of what it starts

try:
    from xframe.cli import main
except ModuleNotFoundError as e:
    sys.exit(f"xframe: the Python module {e.name} is missing here: pip install -e '.[all]'")

if __name__ == "__main__":
    sys.exit(main(["gpu-check", *sys.argv[1:]]))
