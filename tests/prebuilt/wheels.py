"""Small packages, as wheels or installed."""

import zipfile


def files(name, tag, module, text="", requires=()):
    """(path, content) of a package with one module, built for ``tag``."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    needed = "".join(f"Requires-Dist: {r}\n" for r in requires)
    told = {
        f"{module}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
    }
    return {**told, f"{info}/RECORD": "".join(f"{path},,\n" for path in [*told, f"{info}/RECORD"])}


def install(folder, *package, **more):
    """Put one where Python finds it, once ``folder`` is on its path."""
    for path, text in files(*package, **more).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def wheel(folder, name, tag, *rest, **more):
    """The file that pip would download."""
    path = folder / f"{name.replace('-', '_')}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as data:
        for place, text in files(name, tag, *rest, **more).items():
            data.writestr(place, text)
    return path
