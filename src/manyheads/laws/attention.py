"""The laws of attention: what `check_attention` holds anyone's attention function to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.functional import attention
from manyheads.laws.law import TOLERANCE, LawBroken, Suite, hold, require, require_close
from manyheads.masks import Causal, Padding

Function = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Convention:
    """What an attention function takes and means, where that is a matter of taste.

    Args:
        layout: Whether its tensors are (batch, heads, length, head_dim) or (batch, length, heads,
            head_dim).
        mask: What it takes as a mask, (batch, 1, q_len, kv_len): bool with True = "may see",
            bool with True = "hidden", or numbers to be "added", 0 and -inf.
        grouped: Whether fewer heads of keys serve neighbouring query heads, serve them in turn
            ("strided"), or cannot be fewer ("no").
        scale: What it multiplies scores with; None means ``head_dim ** -0.5``.
        empty: What a query that sees nobody gets: "zero", or the "mean" of all values.
        hidden: What keys and values may hold that every query is kept from: "anything", NaN and inf
            too, or numbers ("finite").
        dtype: In which it is tried.
    """

    layout: Literal["heads first", "length first"] = "heads first"
    mask: Literal["may see", "hidden", "added"] = "may see"
    grouped: Literal["neighbours", "strided", "no"] = "neighbours"
    scale: float | None = None
    empty: Literal["zero", "mean"] = "zero"
    hidden: Literal["anything", "finite"] = "anything"
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("layout", self.layout, ("heads first", "length first")),
            ("mask", self.mask, ("may see", "hidden", "added")),
            ("grouped", self.grouped, ("neighbours", "strided", "no")),
            ("empty", self.empty, ("zero", "mean")),
            ("hidden", self.hidden, ("anything", "finite")),
            ("dtype", self.dtype, tuple(TOLERANCE)),
        ):
            if value not in allowed:
                raise OptionError(
                    f"{name} must be one of {', '.join(map(str, allowed))}; got {name}={value!r}. "
                    f"Declare what the function does."
                )


@dataclass(frozen=True)
class Stranger:
    """An attention function, called and answered in our own convention."""

    function: Function
    convention: Convention
    seed: int
    device: str = "cpu"

    def __str__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"function={name}, seed={self.seed}, {self.convention}"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """Call it with (batch, heads, length, head_dim) and a mask in which True means may see."""
        flip = self.convention.layout == "length first"
        q, k, v = (x.transpose(1, 2) if flip else x for x in (q, k, v))
        output = self.function(q, k, v, None if seen is None else self._mask(seen.to(q.device), q))
        return output.transpose(1, 2) if flip else output

    def _mask(self, seen: Tensor, q: Tensor) -> Tensor:
        if self.convention.mask == "added":
            return torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, -torch.inf)
        return ~seen if self.convention.mask == "hidden" else seen

    def draw(
        self, q_len: int, kv_len: int, *, batch: int = 2, num_heads: int = 4, num_kv_heads: int = 4
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Random q, k, v of head_dim 8, seeded."""
        draw = torch.Generator().manual_seed(self.seed)
        shapes = ((batch, num_heads, q_len, 8), *((batch, num_kv_heads, kv_len, 8),) * 2)
        q, k, v = (torch.randn(*s, generator=draw, dtype=torch.float64) for s in shapes)
        device, dtype = self.device, self.convention.dtype
        return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype)

    def same(
        self, name: str, found: Tensor, right: Tensor, case: object, *, size: float = 0.0
    ) -> None:
        """Break the law unless two results agree as well as the dtype can tell."""
        tolerance = TOLERANCE[self.convention.dtype]
        require_close(name, found, right, f"{case}, {self}", tolerance=tolerance, size=size)

    def agree(self, case: str, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> None:
        """Hold one call, and its gradients, to the reference."""
        found = _answers(self, q, k, v, seen)
        q, k, v = q.double(), k.double(), v.double()
        right = _answers(self._reference, q, k, v, seen)
        sizes = (float(v.abs().max()), 0.0, 0.0, 0.0)
        names = ("output", "gradient of q", "gradient of k", "gradient of v")
        for name, left, one, size in zip(names, found, right, sizes, strict=True):
            self.same(name, left, one, case, size=size)

    def _reference(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        if self.convention.grouped == "strided":
            times = q.shape[1] // k.shape[1]
            k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        scale, seen = self.convention.scale, None if seen is None else seen.to(q.device)
        return attention(q, k, v, seen, scale=scale, backend="reference")


def is_attention(stranger: Stranger) -> None:
    """Without a mask, outputs and gradients are those of softmax(scale * q.k) v, at any lengths."""
    for q_len, kv_len in ((1, 1), (1, 7), (7, 1), (7, 7), (5, 9), (9, 5), (33, 65)):
        stranger.agree(f"q_len={q_len}, kv_len={kv_len}", *stranger.draw(q_len, kv_len), None)


def mask_means_what_was_declared(stranger: Stranger) -> None:
    """A random mask without empty rows hides what it says, in outputs and gradients."""
    for q_len, kv_len in ((7, 7), (5, 9), (9, 5)):
        q, k, v = stranger.draw(q_len, kv_len)
        draw = torch.Generator().manual_seed(stranger.seed)
        seen = torch.rand(2, 1, q_len, kv_len, generator=draw) > 0.5
        seen[..., 0] = True
        stranger.agree(f"a random mask, q_len={q_len}, kv_len={kv_len}", q, k, v, seen)


def later_keys_do_not_matter(stranger: Stranger) -> None:
    """Under a causal mask, the queries being the last of the keys, no later key reaches a query."""
    for q_len, kv_len in ((7, 7), (1, 7), (3, 9)):
        q, k, v = stranger.draw(q_len, kv_len)
        seen = Causal().dense(q_len, kv_len, batch=2)
        case = f"a causal mask, q_len={q_len}, kv_len={kv_len}"
        stranger.agree(case, q, k, v, seen)
        before = stranger(q, k, v, seen)
        k[:, :, -1], v[:, :, -1] = 50.0, -50.0
        after = stranger(q, k, v, seen)
        stranger.same("all rows but the last", after[:, :, :-1], before[:, :, :-1], case)


def empty_rows_are_what_was_declared(stranger: Stranger) -> None:
    """A query that sees nobody gets what was declared; every gradient stays finite."""
    q, k, v = stranger.draw(5, 7)
    seen = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    seen[0, 0, 2], seen[1] = False, False
    case = "a row and a whole sample that see nobody"
    if stranger.convention.empty == "zero":
        stranger.agree(case, q, k, v, seen)
        return
    output, *gradients = _answers(stranger, q, k, v, seen)
    means = _spread(v, q.shape[1]).mean(dim=2)
    stranger.same("the empty sample", output[1], means[1, :, None].expand(-1, 5, -1), case)
    for name, gradient in zip("qkv", gradients, strict=True):
        require(bool(gradient.isfinite().all()), stranger, f"gradient of {name} is not finite")


def hidden_keys_may_hold_anything(stranger: Stranger) -> None:
    """What keys and values hold that every query is kept from reaches no output or gradient."""
    q, k, v = stranger.draw(5, 7)
    seen = Padding(lengths=torch.tensor([4, 6])).dense(5, 7, batch=2)
    right = _answers(stranger, q, k, v, seen)
    voids = (50.0,) if stranger.convention.hidden == "finite" else (torch.nan, torch.inf)
    for void in voids:
        gone = ~seen[:, :, 0, :, None].to(k.device)
        found = _answers(stranger, q, k.masked_fill(gone, void), v.masked_fill(gone, void), seen)
        for name, left, one in zip(("output", "dq", "dk", "dv"), found, right, strict=True):
            stranger.same(name, left, one, f"{void} in hidden keys and values")


def batch_neighbours_do_not_matter(stranger: Stranger) -> None:
    """A sequence alone gives what it gives in a batch."""
    q, k, v = stranger.draw(7, 7)
    seen = Causal().dense(7, batch=2) & Padding(lengths=torch.tensor([3, 7])).dense(7, batch=2)
    together = stranger(q, k, v, seen)
    for b in (0, 1):
        alone = stranger(q[b : b + 1], k[b : b + 1], v[b : b + 1], seen[b : b + 1])
        stranger.same(f"sequence {b} alone", alone, together[b : b + 1], "a padded causal batch")


def order_of_keys_does_not_matter(stranger: Stranger) -> None:
    """Keys, values and mask columns in another order give the same output."""
    q, k, v = stranger.draw(5, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(stranger.seed))
    seen = Causal().dense(5, 9, batch=2)
    found = stranger(q, k[:, :, order], v[:, :, order], seen[..., order])
    stranger.same("the output", found, stranger(q, k, v, seen), "keys in another order")


def heads_group_as_declared(stranger: Stranger) -> None:
    """Where keys have fewer heads, each serves the query heads that were declared."""
    if stranger.convention.grouped == "no":
        return
    for num_heads, num_kv_heads in ((4, 2), (6, 3), (4, 1)):
        q, k, v = stranger.draw(5, 7, num_heads=num_heads, num_kv_heads=num_kv_heads)
        stranger.agree(f"num_heads={num_heads}, num_kv_heads={num_kv_heads}", q, k, v, None)


def large_scores_stay_finite(stranger: Stranger) -> None:
    """Scores in the thousands give finite numbers, not NaN."""
    q, k, v = stranger.draw(5, 7)
    output = stranger(100 * q, 30 * k, v, None)
    require(bool(output.isfinite().all()), stranger, "scores in the thousands give NaN or inf")


def output_has_the_dtype_of_q(stranger: Stranger) -> None:
    """The output has q's dtype and v's width."""
    q, k, v = stranger.draw(5, 7)
    output = stranger(q, k, v, torch.ones(2, 1, 5, 7, dtype=torch.bool))
    require(output.dtype == q.dtype, stranger, f"output is {output.dtype}, q is {q.dtype}")
    require(output.shape == q.shape, stranger, f"output has shape {tuple(output.shape)}")


def arguments_are_left_alone(stranger: Stranger) -> None:
    """A call writes to none of its arguments, and a second one gives the same."""
    q, k, v = stranger.draw(5, 7)
    seen = Causal().dense(5, 7, batch=2).clone()
    before = [x.clone() for x in (q, k, v, seen)]
    first = stranger(q, k, v, seen)
    for name, old, new in zip(("q", "k", "v", "mask"), before, (q, k, v, seen), strict=True):
        require(torch.equal(old, new), stranger, f"{name} was written to")
    stranger.same("the second answer", stranger(q, k, v, seen), first, "the same call twice")


LAWS: Suite = (
    is_attention,
    mask_means_what_was_declared,
    later_keys_do_not_matter,
    empty_rows_are_what_was_declared,
    hidden_keys_may_hold_anything,
    batch_neighbours_do_not_matter,
    order_of_keys_does_not_matter,
    heads_group_as_declared,
    large_scores_stay_finite,
    output_has_the_dtype_of_q,
    arguments_are_left_alone,
)


def check_attention(
    function: Function,
    convention: Convention | None = None,
    *,
    device: str = "cpu",
    seed: int = 0,
    thorough: bool = False,
) -> None:
    """Hold anyone's attention function to the contract.

    Args:
        function: Called with (q, k, v, mask); returns the output. The mask may be None.
        convention: What it takes and means; None means our own convention.
        device: Where it is tried.
        seed: Seeds the numbers that are drawn.
        thorough: Try ten seeds.

    Raises:
        LawBroken: If the function breaks a law; the message names the law and the case.

    Example:
        >>> import torch.nn.functional as F
        >>> from manyheads.laws import Convention, LawBroken, check_attention
        >>> def fused(q, k, v, mask):
        ...     return F.scaled_dot_product_attention(q, k, v, mask)
        >>> try:
        ...     check_attention(fused, Convention(grouped="no"))
        ... except LawBroken as broken:
        ...     print(broken.law.split(":")[0])
        hidden_keys_may_hold_anything
    """
    convention = Convention() if convention is None else convention
    for chosen in range(seed, seed + (10 if thorough else 1)):
        hold(LAWS, Stranger(function, convention, chosen, device))


def _answers(
    function: Function, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None
) -> tuple[Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    output = function(leaves[0], leaves[1], leaves[2], seen)
    if not output.requires_grad:
        raise LawBroken("inputs that require grad", "the output has no gradient")
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(output.shape, generator=draw, dtype=torch.float64).to(output)
    return output, *torch.autograd.grad((output,), leaves, (weight,))


def _spread(v: Tensor, num_heads: int) -> Tensor:
    return v.repeat_interleave(num_heads // v.shape[1], dim=1)
