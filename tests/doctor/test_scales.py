"""The scale of scores is told with the formula that gives it, or as one that no formula gives."""

import pytest
from tests.museum.exhibit import HEADS, WIDTH, stream
from tests.museum.masks import style
from tests.museum.styles import Einsum, Fused, Matmul
from torch import Tensor

from manyheads.doctor import Facts, examine

HEAD_DIM = WIDTH // HEADS


def scaled(factor: float, base: type = Matmul):
    class Scaled:
        def scale(self, q: Tensor) -> float:
            return factor

    return style(base, Scaled)()


@pytest.mark.parametrize("base", [Matmul, Einsum, Fused])
@pytest.mark.parametrize(
    ("factor", "code", "said"),
    [
        (1.0, "scale_missing", "1 multiplies the scores of heads of 6; "),
        (WIDTH**-0.5, "scale_d_model", "0.204 = 1 / sqrt(d_model) multiplies the scores"),
        (1 / WIDTH, "scale_d_model", "0.0417 = 1 / d_model multiplies the scores"),
        (1 / HEAD_DIM, "scale_twice", "0.167 = 1 / head_dim multiplies the scores"),
        ((WIDTH * HEAD_DIM) ** -0.5, "scale_twice", "= 1 / sqrt(head_dim * d_model) multiplies"),
        (HEAD_DIM**-1.5, "scale_twice", "0.068 = head_dim ** -1.5 multiplies the scores"),
        (HEAD_DIM**0.5, "scale_inverse", "2.45 = sqrt(head_dim) multiplies the scores"),
        (WIDTH**0.5, "scale_inverse", "4.9 = sqrt(d_model) multiplies the scores"),
    ],
)
def test_a_wrong_scale_is_named_by_its_formula(
    base: type, factor: float, code: str, said: str
) -> None:
    (found,) = examine(scaled(factor, base), stream()).findings
    assert found.code == code
    assert said in found.evidence
    assert found.evidence.endswith("a healthy model shows 0.408 = 1 / sqrt(head_dim)")


def test_a_scale_that_no_mistake_explains_is_told_and_not_judged() -> None:
    report = examine(scaled(0.3), stream())
    assert report.healthy
    verdict = report.verdict("scale_missing")
    assert verdict.says == "cannot tell"
    assert "multiplied by 0.3, which is neither 0.408, 1 / sqrt(head_dim), nor" in verdict.reason
    assert "the closest is 0.204, 1 / sqrt(d_model)): declare Facts(scale=...)" in verdict.reason


def test_a_declared_scale_is_the_right_one() -> None:
    assert examine(scaled(1.0), stream(), facts=Facts(scale=1.0)).healthy
    (found,) = examine(scaled(1.0), stream(), facts=Facts(scale=0.5)).findings
    assert found.code == "scale_missing"
    assert found.evidence.endswith("a healthy model shows 0.5, as declared")
