"""What a table keeps of the reasons for which records were left out."""

import pytest

from topicberg.tableflow.rejected.rejections import without_values


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("field mails[jo@x.org] (int): value 7 is not an int", "field mails… (int)…"),
        ("field d (int): value 7.5 exceeds the scale", "field d (int): value … exceeds the scale"),
        ("field a[0].b (string): 3 bytes expected", "field a….b (string): … bytes expected"),
        ('the record has "Jo" at byte 7', "the record has … at byte …"),
        (
            "the value names schema 5, which is unknown",
            "the value names schema 5, which is unknown",
        ),
    ],
)
def test_reason_has_no_value_and_no_key_of_a_map(reason: str, kept: str) -> None:
    assert without_values(reason) == kept
