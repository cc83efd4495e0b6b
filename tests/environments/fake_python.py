"""A Python of the past as far as building an environment asks: venv, pip and a probe, as ``settings.json`` says.

It is copied beside its settings and started by links to the copy, as the interpreter of a virtual environment is.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time

HERE = pathlib.Path(os.path.realpath(__file__)).parent
SETTINGS = json.loads((HERE / "settings.json").read_text())


def note(text):
    with open(HERE / "calls", "a") as f:
        f.write(text + "\n")


def hang(what):
    """Say that this is where it hangs, until told to go on; a test that was killed leaves it for a minute at most."""
    if SETTINGS.get("hang") == what:
        (HERE / "hanging").write_text(str(os.getpid()))
        deadline = time.monotonic() + 60
        while not (HERE / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def pip(arguments):
    if arguments[0] == "install":
        note("install " + " ".join(sorted(pathlib.Path(a).name for a in arguments[1:] if not a.startswith("--"))))
        hang("install")
        return
    text = pathlib.Path(arguments[arguments.index("--requirement") + 1]).read_text()
    name = text.split("==")[0]
    note("download " + name)
    if SETTINGS.get("offline"):
        sys.exit("WARNING: connection broken by 'NewConnectionError(...)'\nERROR: No matching distribution")
    file = next((HERE / "index").glob(name + "-*"))
    target = pathlib.Path(arguments[arguments.index("--dest") + 1]) / file.name
    if SETTINGS.get("hang") == name:
        target.write_bytes(file.read_bytes()[:3])
        hang(name)
    digests = re.findall("sha256:([0-9a-f]+)", text)
    if "--require-hashes" in arguments and hashlib.sha256(file.read_bytes()).hexdigest() not in digests:
        sys.exit("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES")
    shutil.copy(file, target)


def probe():
    note("probe")
    hang("probe")
    if SETTINGS.get("probe") == "killed":
        os.kill(os.getpid(), signal.SIGSEGV)
    if SETTINGS.get("probe") == "silent":
        return
    if SETTINGS.get("probe") == "fails":
        sys.exit("Traceback (most recent call last):\nImportError: libold.so: cannot open shared object file")
    astray = [name for name in ("PYTHONPATH", "PIP_TARGET") if name in os.environ]
    print(json.dumps({"version": "1.0", "told": os.environ.get("FAKE_TOLD"), "astray": astray}))


def main(arguments):
    if arguments[0] == "-c":
        if SETTINGS.get("broken"):
            sys.exit("pyenv: python: command not found")
        print(json.dumps([SETTINGS["version"], sys.argv[0], SETTINGS.get("lack", ""), SETTINGS.get("wide", True)]))
    elif arguments[:2] == ["-m", "venv"]:
        note("venv")
        folder = pathlib.Path(arguments[2]) / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(os.path.realpath(__file__))
        hang("venv")
    elif arguments[:2] == ["-m", "pip"]:
        pip([a for a in arguments[2:] if a not in ("--disable-pip-version-check", "--no-input")])
    else:
        probe()


main(sys.argv[1:])
