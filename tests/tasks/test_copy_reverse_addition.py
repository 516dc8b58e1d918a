from manyheads.tasks import Addition, Copy, Reverse


def test_copy_reads_the_same_position() -> None:
    for example in Copy().split("test")[:50]:
        assert example.target == example.source
        assert example.alignment == tuple((i,) for i in range(len(example.source)))


def test_reverse_reads_the_mirrored_position() -> None:
    for example in Reverse().split("test")[:50]:
        assert example.target == example.source[::-1]
        read = "".join(example.source[i] for (i,) in example.alignment)
        assert read == example.target


def test_copy_draws_every_length_it_allows() -> None:
    lengths = {len(e.source) for e in Copy(min_length=2, max_length=5).split("train")[:200]}
    assert lengths == {2, 3, 4, 5}


def test_addition_adds() -> None:
    for example in Addition(max_digits=5).split("test")[:200]:
        a, b = example.source.split("+")
        assert int(a) + int(b) == int(example.target)
        assert str(int(a)) == a and str(int(b)) == b


def test_a_sum_reads_its_place_and_the_carry_from_below() -> None:
    # 58+167=225: hundreds read "1" and, for the carry, "5" and "6"; ones read "8" and "7".
    example = Addition().example(58, 167)
    assert example.target == "225"
    read = [[example.source[i] for i in positions] for positions in example.alignment]
    assert read == [["5", "1", "6"], ["5", "8", "6", "7"], ["8", "7"]]
    assert example.fields == ("10^2", "10^1", "10^0")


def test_a_new_leading_digit_reads_the_place_it_was_carried_from() -> None:
    example = Addition().example(7, 5)
    assert (example.target, example.alignment) == ("12", ((0, 2), (0, 2)))


def test_a_pair_is_held_out_in_either_order() -> None:
    assert Addition().example(3, 12).unit == Addition().example(12, 3).unit
