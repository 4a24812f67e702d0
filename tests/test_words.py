"""How figures are said."""

from __future__ import annotations

import pytest

from edgegs.words import duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.31, "0.3 s"),
        (9, "9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (89, "1 min 29 s"),
        (3000, "50 min"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (7199, "2 h 00 min"),
    ],
)
def test_durations_as_people_say_them(seconds, said):
    assert duration(seconds) == said
