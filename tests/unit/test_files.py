"""Files in folders that others change."""

from __future__ import annotations

import shutil
from pathlib import Path

from topicberg.files import files_below


def test_folder_that_is_deleted_meanwhile_hides_no_other_file(tmp_path: Path) -> None:
    for folder in ("", "a", "b/c", "d"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "file").touch()
    read = files_below(tmp_path)
    names = [next(read).relative_to(tmp_path).as_posix()]
    for folder in ("a", "b"):
        shutil.rmtree(tmp_path / folder)
    names += [path.relative_to(tmp_path).as_posix() for path in read]
    assert sorted(names) == ["d/file", "file"]
    assert [*files_below(tmp_path / "none")] == []
