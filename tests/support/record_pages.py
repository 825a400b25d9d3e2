"""The record of what `deploy create` created, kept in a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field

from topicberg_deploy.record import Pages


@dataclass
class InMemory(Pages):
    """The pages of a record in a dictionary."""

    pages: dict[int, str] = field(default_factory=dict)

    def read(self) -> dict[int, str]:
        return dict(self.pages)

    def write(self, number: int, text: str) -> None:
        self.pages[number] = text

    def delete(self, number: int) -> None:
        del self.pages[number]
