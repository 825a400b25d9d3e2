"""The services of the AWS emulator that are not moto's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from topicberg_local.emulators.aws import athena, emr_serverless

T = TypeVar("T")


class Regions(defaultdict[str, dict[str, T]], Generic[T]):
    """Account → region → a service there, like moto's ``BackendDict``."""

    def __init__(self, make: Callable[[str, str], T]) -> None:
        super().__init__(dict)
        self._make = make

    def of(self, account: str, region: str) -> T:
        service = self[account].get(region)
        if service is None:
            service = self[account][region] = self._make(account, region)
        return service

    def iter_backends(self) -> Iterator[tuple[str, str, T]]:
        for account, regions in self.items():
            for region, backend in regions.items():
                yield account, region, backend


EMR = Regions(emr_serverless.EmrServerless)
ATHENA = Regions(athena.Athena)
OWN = {emr_serverless.SERVICE: EMR, athena.SERVICE: ATHENA}
