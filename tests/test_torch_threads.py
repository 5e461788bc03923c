"""Setting torch's threads opens no nested parallel regions: counted by a library that is preloaded.

`torch.set_num_threads` alone makes MKL open one for every small product of fused attention.
"""

import os
import subprocess
import sys

import pytest

COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
static atomic_long count;
long regions(void) { return count; }
void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    void (*real)(void (*)(void *), void *, unsigned, unsigned) = dlsym(RTLD_NEXT, "GOMP_parallel");
    count++;
    real(body, data, threads, flags);
}
"""
ATTENTION = """
import ctypes, sys
import torch
from qkv.threads import set_torch_threads
{setting}
torch.manual_seed(0)
x = torch.randn(64, 4, 16, 32, requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
print(ctypes.CDLL(sys.argv[1]).regions())
"""


def regions(library, setting: str) -> int:
    """Count the parallel regions of one attention, forward and backward, on two threads."""
    done = subprocess.run(
        [sys.executable, "-c", ATTENTION.format(setting=setting), str(library)],
        env=os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.native
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD is Linux's")
def test_threads_that_are_set_open_as_many_parallel_regions_as_the_default(tmp_path):
    (tmp_path / "counter.c").write_text(COUNTER)
    library = tmp_path / "counter.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "counter.c", "-ldl"], check=True
    )
    default = regions(library, "")
    assert default > 0
    assert regions(library, "set_torch_threads(2)") == default
    assert regions(library, "set_torch_threads(1); set_torch_threads(2)") == default
