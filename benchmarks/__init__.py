"""Our speed and memory beside others': one registry, one runner, one benchmark a file."""

from benchmarks import (
    approximations,
    call,
    cliffs,
    decode,
    generate,
    importing,
    keep,
    layer,
    memory,
    monitor,
    neighbours,
    packed,
    pages,
    patterns,
    perplexity,
    statistics,
    watching,
    window,
)
from benchmarks.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        call.CALL,
        importing.IMPORTING,
        decode.DECODE,
        memory.MEMORY,
        packed.PACKED,
        window.WINDOW,
        keep.KEEP,
        perplexity.PERPLEXITY,
        generate.GENERATE,
        neighbours.NEIGHBOURS,
        patterns.PATTERNS,
        approximations.APPROXIMATIONS,
        cliffs.CLIFF,
        layer.LAYER,
        statistics.STATISTICS,
        watching.WATCHING,
        pages.PAGES,
        monitor.MONITOR,
    )
}
"""Every benchmark by its name, the quick ones first."""
