"""The command ``devices``."""

from __future__ import annotations

import json as jsonlib

from xframe.cli import console, options


def devices(json: options.Json = False) -> int:
    """What is here: CPU, GPUs, and which frameworks and backends import, with the pip line for what is missing."""
    from xframe import available, environment, registry, zoo

    device = environment.cpu_device()
    with console.quiet_pipe():
        if not json:
            print(f"cpu        {device.slug}: {device.name}, {device.cores} CPUs to use")
            for index, gpu in enumerate(environment.gpus() or ()):
                words = [gpu["name"], gpu["arch"], f"driver {gpu['driver']}", f"now {gpu['now']['power_w']} W"]
                print(f"cuda:{index:<5} {environment.gpu_device(index).slug}: {', '.join(w for w in words if w)}")
            print(f"models     {', '.join(zoo.names())}")
        for kind, table in (("framework", registry.FRAMEWORKS), ("backend", registry.BACKENDS)):
            for found in available.probe(table):
                if json:
                    facts = {"kind": kind, "name": found.name, "version": found.version, "reason": found.reason}
                    print(jsonlib.dumps(facts), flush=True)
                else:
                    print(f"{kind:<10} {found.name}: {found.version or 'missing: ' + found.reason}", flush=True)
    return 0
