import pytest

from manyheads.errors import OptionError
from manyheads.training import Recipe


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, r"steps must be at least 1; got steps=0\. Pass Recipe\(steps=\.\.\.\)"),
        ({"batch_size": -2}, r"batch_size must be at least 1; got batch_size=-2\."),
        ({"accumulate": 0}, r"accumulate must be at least 1; got accumulate=0\."),
        ({"check_every": 0}, r"check_every must be at least 1; got check_every=0\."),
        ({"learning_rate": 0.0}, r"learning_rate must be above 0; got learning_rate=0\.0\."),
        ({"weight_decay": -0.1}, r"weight_decay must be 0 or more; got weight_decay=-0\.1\."),
        ({"clip": 0.0}, r"clip must be above 0, or None; got clip=0\.0\."),
        ({"stop_at": 0.0}, r"stop_at must be above 0; above 1 never stops early; got stop_at=0"),
        ({"warmup": 9, "steps": 8}, r"warmup must end within steps=8; got warmup=9\."),
        ({"seed": -1}, r"seed must be 0 or more; got seed=-1\."),
        ({"precision": "bf16"}, r"precision must be one of 32-true, .*; got precision=bf16\."),
    ],
)
def test_a_wrong_number_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Recipe(**options)  # type: ignore[arg-type]


def test_recipes_compare_by_value() -> None:
    assert Recipe(steps=200) == Recipe(steps=200) != Recipe()
