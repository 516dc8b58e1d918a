"""The numbers of a config, and what is refused of them."""

from collections.abc import Mapping
from typing import Any

from manyheads.errors import OptionError
from manyheads.positions import DynamicNTKScaling, LinearScaling, Llama3Scaling, Scaling, YaRN


def need(numbers: Mapping[str, Any], name: str) -> Any:
    """A number without which there is no model."""
    if numbers.get(name) is None:
        raise OptionError(
            f"a config must have {name}; got one without. Is config.json whole, and of a language "
            f"model?"
        )
    return numbers[name]


def refuse_others(numbers: Mapping[str, Any], **usual: Any) -> None:
    """Refuse a config that is unusual where a `Decoder` is not: better no model than a wrong one.

    Args:
        numbers: The config.
        usual: The values that are understood, which are also those where nothing is said.
    """
    for name, value in usual.items():
        if numbers.get(name, value) != value:
            raise OptionError(
                f"{name} must be {value!r}; got {name}={numbers[name]!r}. A Decoder has no other "
                f"here."
            )


def rotary_of(numbers: Mapping[str, Any]) -> tuple[float, Scaling | None]:
    """Base and scaling of the rotary positions, as old and new configs write them."""
    given = dict(numbers.get("rope_parameters") or numbers.get("rope_scaling") or {})
    base = float(given.get("rope_theta") or numbers.get("rope_theta") or 10000.0)
    refuse_others({**numbers, **given}, partial_rotary_factor=1.0)
    kind = given.get("rope_type") or given.get("type") or "default"
    longest = int(numbers.get("max_position_embeddings") or 2048)
    original = int(given.get("original_max_position_embeddings") or longest)
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, LinearScaling(float(need(given, "factor")))
    if kind == "dynamic":
        return base, DynamicNTKScaling(float(need(given, "factor")), original_length=longest)
    if kind == "llama3":
        turns = (float(need(given, "low_freq_factor")), float(need(given, "high_freq_factor")))
        return base, Llama3Scaling(float(need(given, "factor")), original, *turns)
    if kind == "yarn":
        refuse_others(given, attention_factor=None, mscale=None, mscale_all_dim=None)
        return base, YaRN(
            float(need(given, "factor")),
            original,
            fast=float(given.get("beta_fast") or 32.0),
            slow=float(given.get("beta_slow") or 1.0),
            ramp="rounded" if given.get("truncate", True) else "unrounded",
        )
    raise OptionError(
        f"rope_type must be default, linear, dynamic, llama3 or yarn; got rope_type={kind!r}. "
        f"Build a Decoder with a scaling of your own."
    )
