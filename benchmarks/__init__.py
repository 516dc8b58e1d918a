"""Our speed and memory beside others': one registry, one runner, one benchmark a file."""

from benchmarks import call, cliffs, decode, importing, layer, memory, window
from benchmarks.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        call.CALL,
        importing.IMPORTING,
        decode.DECODE,
        memory.MEMORY,
        window.WINDOW,
        cliffs.CLIFF,
        layer.LAYER,
    )
}
"""Every benchmark by its name, the quick ones first."""
