"""Our speed and memory beside others': one registry, one runner, one benchmark a file."""

from benchmarks import call, decode, generate, importing, keep, layer, memory, window
from benchmarks.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        call.CALL,
        importing.IMPORTING,
        decode.DECODE,
        memory.MEMORY,
        window.WINDOW,
        keep.KEEP,
        generate.GENERATE,
        layer.LAYER,
    )
}
"""Every benchmark by its name, the quick ones first."""
