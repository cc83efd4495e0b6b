"""A lowering whose register tiles are traps; and small tasks, for the tests of measuring."""

import os
import time
from dataclasses import replace

os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np

from xframe import registry
from xframe.lowering import ir
from xframe.lowering.direct import Direct
from xframe.lowering.ir import T
from xframe.lowering.stage import Epilogue, Tile
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task
from xframe.lowering.variants import choose
from xframe.tuning import build
from xframe.tuning.points import Point
from xframe.types import ConvSite

HOST = Cpu.host(2)
SITE = ConvSite(2, 16, (9, 11), 24, (3, 3), pads=(1, 1, 1, 1))

#: Rows of the register tiles that are traps.
WRONG, NOT_FINITE, SILENT, CRASHES, HANGS, UNSCHEDULABLE, STOPS_COMPILER, HOLDS_COMPILER = range(101, 109)


def task(lowering="direct", site=SITE, residual=False, relu=None, layout="NHWC", cpu=HOST):
    made = registry.load(registry.LOWERINGS, lowering)
    return Task(lowering, choose(made, site, cpu, 1e-2), residual, relu, layout, cpu.threads)


def by_hand(of: Task, cpu=HOST) -> Point:
    tile = build.tiles(of, cpu)[0]
    return Point((tile.rows, tile.vectors))


def trap(rows: int) -> Point:
    return Point((rows, 1))


class Planted(Direct):
    """``direct`` by hand; each other register tile does harm in a way of its own."""

    name = "planted"

    def define(self, variant, weight, epilogue, layout, cpu):
        rows = variant.tile.rows if variant.tile else 0
        if rows == WRONG:
            epilogue = Epilogue(epilogue.bias + np.float32(0.01), epilogue.relu, epilogue.residual)
        if rows == NOT_FINITE:
            epilogue = Epilogue(epilogue.bias * np.float32(np.inf), epilogue.relu, epilogue.residual)
        plain = super().define(replace(variant, tile=None), weight, epilogue, layout, cpu)
        *before, product = plain
        traps = [Tile(r, 1, cpu.lanes) for r in range(WRONG, HOLDS_COMPILER + 1)]
        product = replace(product, tiles=(product.tiles[0], *traps))
        calls = {SILENT: lambda: 0, CRASHES: lambda: extern("abort"), HANGS: lambda: extern("pause")}
        if rows in calls:
            shapes = [p.shape for p in product.func.params]
            args = {f"a{i}": tuple(map(int, s)) for i, s in enumerate(shapes)}
            func = ir.kernel(args, lambda *_: T.evaluate(calls[rows]()))
            product = replace(product, func=func, schedule=lambda sch, knobs: None)
        schedules = {
            UNSCHEDULABLE: lambda sch, knobs: sch.get_sblock("no such block"),
            STOPS_COMPILER: lambda sch, knobs: os.abort(),
            HOLDS_COMPILER: lambda sch, knobs: time.sleep(600),
        }
        return [*before, replace(product, schedule=schedules.get(rows, product.schedule))]


def extern(name):
    return T.call_extern("int32", name)
