"""Which of the implementations of an operator counts."""

from tasks.measuring.lut.choice import TimedImplementation, position_of_chosen


def test_the_fastest_implementation_counts_if_its_gain_is_above_the_noise() -> None:
    own = TimedImplementation("", 1.0, 0.02, 8)
    assert (
        position_of_chosen(
            [own, TimedImplementation("sgemm", 0.5, 0.02, 8), TimedImplementation("direct", 0.7, 0.02, 8)]
        )
        == 1
    )
    assert position_of_chosen([own, TimedImplementation("sgemm", 0.99, 0.0, 8)]) == 0  # below the least gain
    assert position_of_chosen([own, TimedImplementation("sgemm", 0.95, 0.5, 4)]) == 0  # within its noise
    assert position_of_chosen([own, TimedImplementation("sgemm", 0.95, 0.0, 1)]) == 0  # one sample tells no noise
    assert position_of_chosen([own, TimedImplementation("sgemm", None, 0.0, 0)]) == 0
    assert position_of_chosen([TimedImplementation("", None, 0.0, 0), TimedImplementation("sgemm", 3.0, 0.0, 1)]) == 1
    assert (
        position_of_chosen([TimedImplementation("sgemm", 3.0, 0.0, 1), TimedImplementation("direct", 2.0, 0.0, 1)]) == 1
    )
    assert position_of_chosen([TimedImplementation("", None, 0.0, 0)]) == 0
