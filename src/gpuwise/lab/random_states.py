"""Random numbers of a kernel: ``numba.cuda.random``'s xoroshiro128+ as device functions in the kernel's own form.

A state is two words of 64 bits (D. Blackman, S. Vigna, xoroshiro128+ of 2016: rotations by 55 and 36, a shift by 14).
"""

from __future__ import annotations

import ast
from functools import cache

import numpy as np
from numpy.typing import NDArray

SOURCE = """
def xoroshiro128p_next(states, index):
    s0, s1 = states[index, 0], states[index, 1]
    total = s0 + s1
    s1 = s1 ^ s0
    states[index, 0] = ((s0 << 55) | (s0 >> 9)) ^ s1 ^ (s1 << 14)
    states[index, 1] = (s1 << 36) | (s1 >> 28)
    return total

def xoroshiro128p_uniform_float64(states, index):
    return float64(xoroshiro128p_next(states, index) >> 11) * 1.1102230246251565e-16

def xoroshiro128p_uniform_float32(states, index):
    return float32(xoroshiro128p_uniform_float64(states, index))

def xoroshiro128p_normal_float64(states, index):
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-2.0 * math.log(u1)) * math.cos(6.283185307179586 * u2)

def xoroshiro128p_normal_float32(states, index):
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(float32(-2.0) * math.log(u1)) * math.cos(float32(6.2831853) * u2)
"""


@cache
def random_functions() -> dict[str, ast.FunctionDef]:
    """The functions by their names."""
    return {n.name: n for n in ast.parse(SOURCE).body if isinstance(n, ast.FunctionDef)}


def random_states(n: int) -> NDArray[np.uint64]:
    """[n, 2]: states of ``n`` threads, the same every time: splitmix64 of 1, 2, 3 ..."""
    z = np.arange(1, 2 * n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return (z ^ (z >> np.uint64(31))).reshape(n, 2)
