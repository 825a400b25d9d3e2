"""Logins that vendors do not return: another one is found and sent while the earlier one works."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr
from record_pages import InMemory

from topicberg.catalogs.snowflake.names import SnowflakeNames
from topicberg.clients.answers import VendorAnswer
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy import record
from topicberg_deploy.context import DeployContext
from topicberg_deploy.preflight import check_catalog
from topicberg_deploy.record import ClientLogin, CreationRecord
from topicberg_deploy.resource import compare
from topicberg_deploy.settings import DeploySettings
from topicberg_deploy.snowflake import integrations
from topicberg_deploy.snowflake.integrations import RestIntegration

KEY = "snowflake/rest_integration"
URI = "https://org-open.snowflakecomputing.com/polaris/api/catalog"
LOGIN = {
    "uri": URI,
    "name": "lake",
    "client_id": "client",
    "client_secret": SecretStr("hush"),
    "scope": "PRINCIPAL_ROLE:ALL",
}


class Context:
    """The part of a deploy context that these resources use."""

    def __init__(self, **given: Any) -> None:
        self.config = Settings(deployment="cloud", prefix="demo", snowflake_catalog="open_catalog")
        keys = {"confluent_api_key": "k", "confluent_api_secret": SecretStr("s")}
        self.deploy = DeploySettings.model_validate({**keys, "catalog": {**LOGIN, **given}})
        self.pages = InMemory()
        self.record = CreationRecord(self.pages)
        self.seen = self.config.model_copy(update={"cluster_id": "lkc-1"})
        self.snowflake = SimpleNamespace(identifier="ORG-MY_ACCOUNT")

    @property
    def catalog_client(self) -> ClientLogin:
        return DeployContext.catalog_client.fget(self)  # type: ignore[attr-defined]

    def set(self, **given: Any) -> None:
        catalog = self.deploy.catalog.model_copy(update=given)
        self.deploy = self.deploy.model_copy(update={"catalog": catalog})


def opened(**given: Any) -> tuple[Context, DeployContext]:
    context = Context(**given)
    return context, cast("DeployContext", context)


def test_login_is_known_by_its_fingerprint() -> None:
    fake, _ = opened()
    login = ClientLogin("client", SecretStr("hush"))
    assert fake.record.login_state(KEY, login) == record.UNKNOWN
    fake.record.put_login(KEY, login)
    assert fake.record.login_state(KEY, login) == record.CURRENT
    for client, secret in (("client", "another"), ("client", "hush "), ("b", "hush")):
        changed = ClientLogin(client, SecretStr(secret))
        assert fake.record.login_state(KEY, changed) == record.EARLIER
    without = ClientLogin("client", SecretStr(""))  # as in a plan by CI
    assert fake.record.login_state(KEY, without) == record.CURRENT
    with pytest.raises(TopicbergError, match="secret of client client is missing"):
        without.fields()
    again = CreationRecord(fake.pages)  # as another process reads it
    assert again.login_state(KEY, login) == record.CURRENT
    assert again.keys() == set()  # nothing was created
    assert "hush" not in str(fake.pages.pages)
    again.put(KEY, "id")
    again.drop(KEY)
    assert fake.pages.pages == {}


def test_rest_integration_gets_another_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, context = opened()
    statements: list[str] = []
    described = {
        "CATALOG_SOURCE": "POLARIS",
        "CATALOG_NAMESPACE": "lkc-1",
        "ENABLED": "true",
        "REFRESH_INTERVAL_SECONDS": "300",
        "REST_CONFIG": f"{{CATALOG_URI={URI}, CATALOG_NAME=lake, CATALOG_API_TYPE=PUBLIC}}",
        "REST_AUTHENTICATION": "{OAUTH_CLIENT_ID=client, "
        "OAUTH_ALLOWED_SCOPES=[PRINCIPAL_ROLE:ALL]}",
    }
    answer = VendorAnswer(described, "Snowflake")
    monkeypatch.setattr(RestIntegration, "described", lambda *_: answer)
    monkeypatch.setattr(integrations, "run", lambda _, sql, __: statements.append(sql))
    integration = RestIntegration(KEY, SnowflakeNames.of(context.config).rest_integration)
    integration.create(context)
    live = integration.find(context)
    assert compare(live.fields, integration.desired(context)) == {}
    fake.set(client_secret=SecretStr("new"))
    live = integration.find(context)
    assert live is not None
    changes = compare(live.fields, integration.desired(context))
    assert changes == {"login": (record.EARLIER, record.CURRENT)}
    assert not set(changes) & integration.replaced_for
    integration.update(context, live, changes)
    assert len(statements) == 2
    assert statements[1].startswith("ALTER CATALOG INTEGRATION")
    assert "OAUTH_CLIENT_SECRET = 'new'" in statements[1]
    live = integration.find(context)
    assert compare(live.fields, integration.desired(context)) == {}


@pytest.mark.parametrize(
    ("catalog", "uri", "is_refused"),
    [
        ("open_catalog", URI, False),
        ("open_catalog", URI.replace("org-open", "ORG-My-Account"), True),
        ("open_catalog", URI.replace("org-open", "org-my-account.privatelink"), True),
        ("iceberg_rest", URI.replace("org-open", "org-my-account"), True),
        ("iceberg_rest", "https://tableflow.us-east-1.aws.confluent.cloud/iceberg", False),
        ("glue", URI.replace("org-open", "org-my-account"), False),
    ],
)
def test_horizon_is_refused_as_a_catalog_of_tableflow(
    catalog: str, uri: str, is_refused: bool
) -> None:
    fake, context = opened(uri=uri)
    fake.config = Settings.model_validate({"deployment": "cloud", "snowflake_catalog": catalog})
    if not is_refused:
        check_catalog(context)
        return
    with pytest.raises(TopicbergError, match="Snowflake Horizon") as caught:
        check_catalog(context)
    assert "docs/cloud-tables.md" in str(caught.value.hint)
