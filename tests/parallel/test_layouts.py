"""Collectives read from compiled programs; with JAX where it is installed, in a process of its own."""

import importlib.util
import subprocess
import sys

import pytest

from ed_lib.parallel import layouts
from ed_lib.parallel.layouts import Collective

needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="needs jax")


class Compiled:
    """What jax gives, cut to its text."""

    def __init__(self, text):
        self.text = text

    def as_text(self):
        return self.text


def test_collectives_are_read_with_the_bytes_of_all_their_parts():
    text = """
  %dot = f64[8,4]{1,0} dot(%a, %b), metadata={op_name="all-reduce(x)"}
  %all-reduce.5 = (f64[256,784]{1,0}, f32[16]{0}, f64[]) all-reduce(%dot.3, %f, %g), replica_groups={}
  ROOT %ag = bf16[64,2]{1,0} all-gather(%p), channel_id=2
  %rs = f32[4]{0} reduce-scatter(%q), dimensions={0}
  %aa = (f32[2,3]{1,0}, f32[2,3]{1,0}) all-to-all(%s, %t), replica_groups=[1,8]<=[8]
  %cp = s32[7]{0} collective-permute(%r), source_target_pairs={{0,1}}
"""
    found = layouts.collectives(Compiled(text), 8)
    sizes = 256 * 784 * 8 + 16 * 4 + 8, 64 * 2 * 2, 8 * 4 * 4, 2 * 6 * 4, 7 * 4
    names = "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"
    assert found == [Collective(name, size, 8) for name, size in zip(names, sizes, strict=True)]
    assert [one.sent for one in found[1:]] == [7 / 8 * 256, 7 / 8 * 128, 7 / 8 * 48, 28]


@pytest.mark.parametrize(
    "groups", ["{{0,4},{1,5}}", "[4,2]<=[8]", "[4,2]<=[2,4]T(1,0)", "mesh['a'=4,'b'=2] {'b'}"]
)
def test_along_one_axis_of_a_mesh_a_collective_is_among_its_ranks(groups):
    text = f"%rs = f32[4]{{0}} reduce-scatter(%q), channel_id=1, replica_groups={groups}, dimensions={{0}}"
    assert layouts.collectives(Compiled(text), 8) == [Collective("reduce_scatter", 2 * 16, 2)]


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_without_jax_the_error_says_what_to_install():
    code = "import sys; sys.modules['jax'] = None\nfrom ed_lib.parallel import layouts\n"
    done = python(code + "layouts.simulate_devices(8)")
    assert "ImportError: jax is missing; install it with: pip install jax" in done.stderr


@needs_jax
def test_with_one_device_the_error_says_how_many_there_are():
    done = python("import jax; jax.devices()\nimport ed_lib.parallel.layouts as l; l.simulate_devices(8)")
    assert "RuntimeError: jax has 1 devices; wanted 8" in done.stderr


@pytest.mark.oracle
@needs_jax
def test_a_sum_over_64_devices_is_one_all_reduce():
    code = """
from ed_lib.parallel import layouts
jax = layouts.simulate_devices(64)
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((64,), ("d",))
whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
total = jax.jit(lambda x: x.sum(axis=0), in_shardings=cut, out_shardings=whole)
print(layouts.collectives(total.lower(np.zeros((128, 5))).compile(), 64))
"""
    assert python(code).stdout.strip() == str([Collective("all_reduce", 40, 64)])
