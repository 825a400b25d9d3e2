"""What a login costs that Python computes, as that of MSK IAM.

    python tests/benchmarks/logins.py [--records 2000000] [--rounds 3]

needs a running stack with nothing else to do, and starts a second Kafka with an OAuth server. The
engine ingests a topic of small Avro records there without a login, and with tokens that a function
requests, in turns. Printed is the best round of each, and its share of the one without a login.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from rich.console import Console
from rich.table import Table

from topicberg.endpoints import load_endpoints
from topicberg.logins.kafka import KafkaLogin
from topicberg.settings import settings

sys.path.append(str(Path(__file__).parents[1] / "support"))

from contenders import OURS, Lab, engine, verify
from real_servers import kafka_broker, oauth_server
from workloads import WORKLOADS, fill_topic


@dataclass(frozen=True)
class Token:
    """Equal for equal logins, as that of MSK IAM: clients are kept by their configuration."""

    uri: str

    def __call__(self, _: str) -> tuple[str, float]:
        client = {"grant_type": "client_credentials", "client_id": "a", "client_secret": "b"}
        answer = requests.post(self.uri, client, timeout=10).json()
        return answer["access_token"], time.time() + answer["expires_in"]


class ByPython(KafkaLogin):
    """A login by OIDC whose tokens are requested here, not by librdkafka."""

    def librdkafka(self) -> dict[str, Any]:
        known = super().librdkafka().items()
        found = {name: value for name, value in known if "oauthbearer" not in name}
        return {**found, "oauth_cb": Token(str(self.oauth.token_uri))}


def main(records: int, rounds: int) -> None:
    config, own = settings(), load_endpoints()
    with (
        tempfile.TemporaryDirectory() as folder,
        oauth_server(Path(folder) / "oauth") as oauth,
        kafka_broker(Path(folder) / "kafka", oauth) as broker,
    ):
        login = ByPython(
            auth="oidc",
            security_protocol="SASL_PLAINTEXT",
            oauth={"client_id": "a", "client_secret": "b", "token_uri": oauth.token_uri},
        )
        with_login = {"kafka_bootstrap": broker.oidc, "kafka_login": login}
        both = {
            "none": own.model_copy(update={"kafka_own": None, "kafka_bootstrap": broker.plaintext}),
            "by Python": own.model_copy(update={"kafka_own": None, **with_login}),
        }
        topic = fill_topic(both["none"], WORKLOADS[0], records)
        labs = {name: Lab(endpoints, config) for name, endpoints in both.items()}
        best = dict.fromkeys(both, float("inf"))
        for number in range(rounds + 1):
            for name, lab in labs.items():
                start = time.perf_counter()
                table = engine(lab, topic)
                if number:  # the first round starts processes
                    best[name] = min(best[name], time.perf_counter() - start)
                verify(lab, topic, table, OURS)
                lab.catalog.purge_table(table)
    shown = Table("login", "records/s", "share")
    for name, seconds in best.items():
        shown.add_row(name, f"{records / seconds:,.0f}", f"{best['none'] / seconds:.2f}")
    Console().print(shown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    main(given.records, given.rounds)
