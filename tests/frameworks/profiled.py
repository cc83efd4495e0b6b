"""What holds of the profile of any framework."""

from float64 import close
from test_frameworks import case

from xframe import zoo
from xframe.types import HOST, KINDS


def built(framework, spec, options=None, batch=2):
    """The network with some switches turned, after a step that gave the right values."""
    weights, x, want = case(spec, batch)
    network = framework.build(spec, weights, "cpu", batch, 2, options or {})
    network.bind([x])
    network.step()
    network.sync()
    close(network.fetch()[0], want)
    return network


def check(profile, spec, batch=2):
    """It names kinds and layers of the spec, and has every convolution and product."""
    assert profile.wall > 0
    assert profile.cost > 0
    assert {k.kind for k in profile.kernels} <= set(KINDS)
    assert {s.kind for s in profile.host} <= set(HOST)
    assert {k.layer for k in profile.kernels} <= {x.name for x in spec.layers} | {""}
    assert all(0 <= k.start <= k.end for k in profile.kernels)
    found, sites = [k for k in profile.kernels if k.kind == "conv"], zoo.sites(spec, batch)
    assert {k.layer for k in found} == set(sites)
    assert all(k.site == sites[k.layer] for k in found)
    assert {k.layer for k in profile.kernels if k.kind == "fc"} == {x.name for x in spec.layers if x.op == "fc"}
