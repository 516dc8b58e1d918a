"""A map of who reads whom, as evidence of a finding."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A row reads, a column is read; what should not be is marked.

    Args:
        title: What is shown.
        rows: What a row is, such as "query".
        columns: What a column is.
        cells: By row, from 0 to 1.
        marks: (row, column) of each cell that a healthy model would not show.
        scale: What 0 and 1 mean.
    """

    title: str
    rows: str
    columns: str
    cells: tuple[tuple[float, ...], ...]
    marks: tuple[tuple[int, int], ...] = ()
    scale: str = "weight, from 0 to 1"
