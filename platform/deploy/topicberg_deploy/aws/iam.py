"""Roles that Confluent and Snowflake assume, each with a managed policy, or several if its text is
longer than AWS allows.

A trust policy can only name principals that exist. Confluent's and Snowflake's come from their
responses, so each role is created after the object that names them. The object is given the role's
ARN, which is known before the role exists. IAM is only eventually consistent. Nothing sleeps for
it: what needs a role retries its vendor until it works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain, count
from typing import Any

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.aws.glue import pipelines
from topicberg_deploy.costs import QUOTAS
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, MissingError, Resource

Document = dict[str, Any]
GLUE_READS = [
    "glue:GetCatalog",
    "glue:GetDatabase",
    "glue:GetDatabases",
    "glue:GetTable",
    "glue:GetTables",
]
"""What a reader of tables may do."""
MAX_CHARACTERS = 6144
"""AWS takes no longer managed policy; spaces do not count."""
MAX_POLICIES = 10
"""AWS attaches no more to a role, unless its quota is raised."""
DATABASES = 8
"""In one statement, so that a long policy can be split between statements."""
MAX_VERSIONS = 5
"""AWS keeps so many versions of a managed policy and refuses one more."""


def allow(actions: Iterable[str], resource: str | list[str]) -> Document:
    return {"Effect": "Allow", "Action": [*actions], "Resource": resource}


def trusted_by(principal: str, external_id: str) -> Document:
    """A statement that lets a principal of another account in, if it knows the external id."""
    return {
        "Effect": "Allow",
        "Principal": {"AWS": principal},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"sts:ExternalId": external_id}},
    }


def document(*statements: Document) -> Document:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def tags(context: DeployContext) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in context.aws.tags.items()]


def tags_of(tag_set: list[dict[str, str]] | None, context: DeployContext) -> dict[str, str]:
    """Return those tags of a resource that topicberg sets; others are the operator's."""
    ours = context.aws.tags
    return {tag["Key"]: tag["Value"] for tag in tag_set or [] if tag["Key"] in ours}


def confluent_trust(context: DeployContext) -> Document:
    """Tagging the session is a second statement: the external id is not in that request."""
    facts = context.need("confluent/provider_integration").facts
    assuming = trusted_by(facts["principal"], facts["external_id"])
    tagging = {"Effect": "Allow", "Principal": assuming["Principal"], "Action": "sts:TagSession"}
    return document(assuming, tagging)


def snowflake_trust(context: DeployContext) -> Document:
    """The volumes have the external id that we give them; the integration has one of its own.
    Open Catalog's user is as its administrator found it.
    """
    statements: list[Document] = []
    keys = ["snowflake/volume", "snowflake/derived_volume", "snowflake/integration"]
    config = context.config
    if config.snowflake_linked_database and config.topics_in_glue:
        keys.append("snowflake/linked_integration")
    for facts in (context.need(key).facts for key in keys):
        statement = trusted_by(facts["principal"], facts["external_id"])
        if statement not in statements:
            statements.append(statement)
    if config.snowflake_catalog == "open_catalog":
        catalog = context.deploy.catalog
        if catalog.iam_user_arn and catalog.external_id:
            statements.append(trusted_by(catalog.iam_user_arn, catalog.external_id))
    return document(*statements)


def allow_glue(context: DeployContext, actions: Iterable[str], *databases: str) -> list[Document]:
    """Return statements about databases and all of their tables."""
    begin = f"arn:aws:glue:{context.config.aws_region}:{context.aws.account}"
    arns = [[f"{begin}:database/{name}", f"{begin}:table/{name}/*"] for name in databases]
    return [
        allow(actions, [f"{begin}:catalog", *chain.from_iterable(arns[start : start + DATABASES])])
        for start in range(0, len(arns), DATABASES)
    ]


def key_use(
    config: Settings, actions: Collection[str], services: Iterable[str] = ("s3", "glue")
) -> list[Document]:
    """Return what is needed of the keys of these services, by way of the service only."""
    region = config.aws_region
    keys = {
        "s3": config.kms.bucket_key_arn,
        "glue": config.kms.glue_key_arn,
        "secretsmanager": config.kms.secrets_key_arn,
    }
    # Glue's catalog also encrypts: https://docs.aws.amazon.com/glue/latest/dg/encrypt-glue-data-catalog.html
    of_glue = ["kms:Encrypt"] if "kms:GenerateDataKey" in actions else []
    return [
        allow([*actions, *(of_glue if service == "glue" else ())], key)
        | {"Condition": {"StringEquals": {"kms:ViaService": f"{service}.{region}.amazonaws.com"}}}
        for service in services
        if (key := keys[service])
    ]


READS_KEY, WRITES_KEY = ("kms:Decrypt",), ("kms:Decrypt", "kms:GenerateDataKey")


def tableflow_policy(context: DeployContext) -> Document:
    """What Tableflow does: write tables, and register them in the cluster's Glue database.

    Catalog, database and tables suffice for its sync: an account reports it that grants these alone
    (`gogetjax/tableflow-demo` on GitHub, ``terraform/aws/iam-writer.tf``).
    """
    bucket = f"arn:aws:s3:::{context.aws.bucket}"
    on_bucket = ["s3:GetBucketLocation", "s3:ListBucketMultipartUploads", "s3:ListBucket"]
    on_objects = [
        "s3:PutObject",
        "s3:PutObjectTagging",
        "s3:GetObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload",
        "s3:ListMultipartUploadParts",
    ]
    in_glue = [
        "glue:GetDatabase",
        "glue:GetDatabases",
        "glue:CreateDatabase",
        "glue:UpdateDatabase",
        "glue:DeleteDatabase",
        "glue:GetTable",
        "glue:GetTables",
        "glue:GetTableVersion",
        "glue:GetTableVersions",
        "glue:CreateTable",
        "glue:UpdateTable",
        "glue:DeleteTable",
    ]
    return document(
        allow(on_bucket, bucket),
        allow(on_objects, f"{bucket}/*"),
        *allow_glue(context, in_glue, context.namespace),
        *key_use(context.config, WRITES_KEY),
    )


def snowflake_policy(context: DeployContext) -> Document:
    """Only reading: the external volumes allow no writes. Derived tables are read as well; they are
    written by keys that Open Catalog gives out, if they are in a catalog of it.

    Credentials that Glue vends are those of Lake Formation.
    https://docs.snowflake.com/en/user-guide/tables-iceberg-configure-catalog-integration-rest-glue
    """
    buckets = [f"arn:aws:s3:::{name}" for name in (context.aws.bucket, context.aws.derived_bucket)]
    derived, config = map(context.names.namespace, pipelines(context.specs)), context.config
    vends = config.snowflake_linked_database and config.snowflake_vended_credentials
    lake = allow(["lakeformation:GetDataAccess"], "*")
    # Open Catalog gives out keys of this role to who writes tables of its internal catalog.
    writes = allow(["s3:PutObject", "s3:DeleteObject"], f"{buckets[1]}/*")
    in_open_catalog = config.has_topics_catalog and context.deploy.catalog.derived_name
    return document(
        *((lake,) if vends and config.topics_in_glue else ()),
        *((writes,) if in_open_catalog else ()),
        allow(["s3:GetBucketLocation", "s3:ListBucket"], buckets),
        allow(["s3:GetObject", "s3:GetObjectVersion"], [f"{bucket}/*" for bucket in buckets]),
        *allow_glue(context, GLUE_READS, context.namespace, *derived),
        *key_use(context.config, READS_KEY),
    )


def split(whole: Document) -> list[Document]:
    """Return documents that AWS takes, with the same statements together."""
    groups: list[list[Document]] = [[]]
    for statement in whole["Statement"]:
        if len(_text(document(*groups[-1], statement))) > MAX_CHARACTERS:
            groups.append([])
        groups[-1].append(statement)
    return [document(*statements) for statements in groups]


def _text(document: Document) -> str:
    return json.dumps(document, separators=(",", ":"))


@dataclass(frozen=True)
class Policy(Resource):
    """A managed policy; what is too long for one is in others, whose names end in ``_2`` and so on.

    Its fields are their documents, by the number of the policy.
    """

    grants: Callable[[DeployContext], Document] = field(kw_only=True)

    kind = "IAM policy"
    quota = QUOTAS["IAM policies"]

    def _arn(self, context: DeployContext, number: int) -> str:
        account, path = context.aws.account, context.config.iam.path
        return f"arn:aws:iam::{account}:policy{path}{self._name(number)}"

    def _name(self, number: int) -> str:
        return self.name if number == 1 else f"{self.name}_{number}"

    def find(self, context: DeployContext) -> Live | None:
        iam, fields, arns, tagged = context.aws.client("iam"), {}, [], True
        for number in count(1):
            arn = self._arn(context, number)
            try:
                policy = iam.get_policy(PolicyArn=arn)["Policy"]
            except iam.exceptions.NoSuchEntityException:
                break
            version = iam.get_policy_version(PolicyArn=arn, VersionId=policy["DefaultVersionId"])
            fields[_field(number)] = _parsed(version["PolicyVersion"]["Document"])
            tagged = tagged and tags_of(policy.get("Tags"), context) == context.aws.tags
            arns.append(arn)
        if not arns:
            return None
        fields["tags"] = context.aws.tags if tagged else {}
        return Live(arns[0], fields, {"arns": arns})

    def _documents(self, context: DeployContext) -> list[Document]:
        """:raises TopicbergError: they are more than a role can have"""
        documents = split(self.grants(context))
        if len(documents) > MAX_POLICIES:
            raise TopicbergError(
                f"{self.title} would have to be split into {len(documents)}, of which AWS attaches "
                f"{MAX_POLICIES} to a role: it names the Glue databases of all "
                f"{len(pipelines(context.specs))} pipelines",
                hint="put the specs of more topics into one pipeline",
            )
        return documents

    def desired(self, context: DeployContext) -> Fields:
        documents = enumerate(self._documents(context), 1)
        fields = {_field(number): document for number, document in documents}
        return fields | {"tags": context.aws.tags}

    def waits(self, context: DeployContext) -> str:
        self._documents(context)  # a plan shows already that it cannot be created
        return ""

    def create(self, context: DeployContext) -> None:
        for number, document in enumerate(self._documents(context), 1):
            self._create(context, number, document)

    def _create(self, context: DeployContext, number: int, document: Document) -> None:
        context.aws.client("iam").create_policy(
            PolicyName=self._name(number),
            Path=context.config.iam.path,
            PolicyDocument=_text(document),
            Tags=tags(context),
        )

    def orphans(self, context: DeployContext, live: Live) -> list[str]:
        return list(live.facts["arns"][len(self._documents(context)) :])

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        iam, arns = context.aws.client("iam"), live.facts["arns"]
        for arn in arns if "tags" in changes else ():
            iam.tag_policy(PolicyArn=arn, Tags=tags(context))
        for arn in reversed(changes.get("unused", ([], []))[0]):
            _delete_policy(iam, arn)
        for number, policy_document in enumerate(self._documents(context), 1):
            if number > len(arns):
                self._create(context, number, policy_document)
            elif _field(number) in changes:
                arn = arns[number - 1]
                _drop_versions(iam, arn, keep=MAX_VERSIONS - 1)
                iam.create_policy_version(
                    PolicyArn=arn, PolicyDocument=_text(policy_document), SetAsDefault=True
                )

    def delete(self, context: DeployContext, live: Live) -> None:
        """The first one last: by it the others are found."""
        for arn in reversed(live.facts["arns"]):
            _delete_policy(context.aws.client("iam"), arn)


def _field(number: int) -> str:
    return "document" if number == 1 else f"policy_document{number}"


def _delete_policy(iam: Any, arn: str) -> None:
    for role in list(every(iam, "list_entities_for_policy", "PolicyRoles", PolicyArn=arn)):
        iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=arn)
    _drop_versions(iam, arn, keep=1)
    iam.delete_policy(PolicyArn=arn)


def _drop_versions(iam: Any, arn: str, *, keep: int) -> None:
    """The oldest ones; the default one stays."""
    found = every(iam, "list_policy_versions", "Versions", PolicyArn=arn)
    versions = sorted(found, key=lambda version: version["CreateDate"], reverse=True)
    rest = [version["VersionId"] for version in versions if not version["IsDefaultVersion"]]
    for version in rest[keep - 1 :]:
        iam.delete_policy_version(PolicyArn=arn, VersionId=version)


def _parsed(document: Any) -> Any:
    return json.loads(document) if isinstance(document, str) else document


@dataclass(frozen=True)
class Role(Resource):
    """
    :param trust: who may take it
    :param policy: key of its policy
    :param given: ARN of a role that another administrator manages. It is there once it lets in
        whoever needs it; it is never created, changed or deleted.
    """

    trust: Callable[[DeployContext], Document] = field(kw_only=True)
    policy: str = ""
    given: str | None = None

    kind = "IAM role"
    quota = QUOTAS["IAM roles"]
    replaced_for = frozenset({"path"})

    def find(self, context: DeployContext) -> Live | None:
        live = self._live(context)
        if live is None or self.given is None:
            return live
        return None if self._lacking(context, live) else Live(live.id)

    def is_ours(self, context: DeployContext) -> bool:
        return self.given is None

    def waits(self, context: DeployContext) -> str:
        if self.given is None:
            return ""
        live = self._live(context)
        try:
            lacking = self._lacking(context, live)
        except MissingError as error:
            return f"IAM role {self.given}: whom it must trust is known once {error.key} exists"
        problem = "does not exist: create it with the trust"
        if live is not None and live.id == self.given:
            problem = "lacks statements of its trust: add"
        return (
            f"IAM role {self.given} {problem} {json.dumps(document(*lacking))}" if lacking else ""
        )

    def _lacking(self, context: DeployContext, live: Live | None) -> list[Document]:
        """Return the statements of the trust that a given role does not have."""
        is_given = live is not None and live.id == self.given
        actual = listed(live.fields["trust"]["Statement"]) if live and is_given else []
        return [
            wanted
            for wanted in self.trust(context)["Statement"]
            if not any(covers(statement, wanted) for statement in actual)
        ]

    def _live(self, context: DeployContext) -> Live | None:
        iam = context.aws.client("iam")
        try:
            role = iam.get_role(RoleName=self.name)["Role"]
        except iam.exceptions.NoSuchEntityException:
            return None
        fields = {
            "trust": _parsed(role["AssumeRolePolicyDocument"]),
            "policies": sorted(_attached(iam, self.name)),
            "inline_policies": _inline(iam, self.name),
            "tags": tags_of(role.get("Tags"), context),
            "path": role["Path"],
            "boundary": role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn"),
        }
        return Live(role["Arn"], fields)

    def desired(self, context: DeployContext) -> Fields:
        if self.given is not None:
            return {}
        boundary = context.config.iam.permissions_boundary_arn
        return {
            "trust": self.trust(context),
            "policies": self._policies(context),
            "inline_policies": [],
            "tags": context.aws.tags,
            "path": context.config.iam.path,
            # Only an administrator takes one away, so none is not compared.
            **({"boundary": boundary} if boundary else {}),
        }

    def create(self, context: DeployContext) -> None:
        iam, boundary = context.aws.client("iam"), context.config.iam.permissions_boundary_arn
        iam.create_role(
            RoleName=self.name,
            Path=context.config.iam.path,
            AssumeRolePolicyDocument=json.dumps(self.trust(context)),
            Tags=tags(context),
            **({"PermissionsBoundary": boundary} if boundary else {}),
        )
        for arn in self._policies(context):
            iam.attach_role_policy(RoleName=self.name, PolicyArn=arn)

    def _policies(self, context: DeployContext) -> list[str]:
        return sorted(context.need(self.policy).facts["arns"])

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        iam = context.aws.client("iam")
        if "boundary" in changes:  # before what is allowed only to a role that has it
            boundary = changes["boundary"][1]
            iam.put_role_permissions_boundary(RoleName=self.name, PermissionsBoundary=boundary)
        if "trust" in changes:
            trust = json.dumps(changes["trust"][1])
            iam.update_assume_role_policy(RoleName=self.name, PolicyDocument=trust)
        has, wanted = changes.get("policies", ([], []))
        for arn in wanted:
            iam.attach_role_policy(RoleName=self.name, PolicyArn=arn)
        for arn in set(has) - set(wanted):
            iam.detach_role_policy(RoleName=self.name, PolicyArn=arn)
        if "tags" in changes:
            iam.tag_role(RoleName=self.name, Tags=tags(context))
        for name in changes.get("inline_policies", ([], []))[0]:
            iam.delete_role_policy(RoleName=self.name, PolicyName=name)

    def delete(self, context: DeployContext, live: Live) -> None:
        iam = context.aws.client("iam")
        for arn in _attached(iam, self.name):
            iam.detach_role_policy(RoleName=self.name, PolicyArn=arn)
        for name in _inline(iam, self.name):
            iam.delete_role_policy(RoleName=self.name, PolicyName=name)
        iam.delete_role(RoleName=self.name)


def caller(context: DeployContext) -> str:
    """Return the user or role that deploys; a session is one of its role."""
    arn = str(context.aws.client("sts").get_caller_identity()["Arn"])
    if ":assumed-role/" not in arn:
        return arn
    role = context.aws.client("iam").get_role(RoleName=arn.split("/")[1])["Role"]
    return str(role["Arn"])


def listed(value: Any) -> list[Any]:
    """Return the items of an IAM element, which may be one value instead of a list."""
    return value if isinstance(value, list) else [value]


def covers(actual: Document, wanted: Document) -> bool:
    """Return whether a statement about a role or a repository allows what another one does.

    Of its conditions only the external id is compared: others restrict who calls from where.
    """
    given = wanted.get("Condition", {}).get("StringEquals", {}).get("sts:ExternalId", "")
    allowed = [
        value
        for operator, keys in actual.get("Condition", {}).items()
        for key, values in keys.items()
        if operator in ("StringEquals", "StringLike") and key.lower() == "sts:externalid"
        for value in listed(values)
    ]
    actions = [action.lower() for action in listed(actual.get("Action", []))]
    return (
        actual.get("Effect") == "Allow"
        and all(
            any(fnmatchcase(needed.lower(), action) for action in actions)
            for needed in listed(wanted["Action"])
        )
        and all(_names(actual, principal) for principal in _principals(wanted))
        and (not allowed or any(fnmatchcase(given, value) for value in allowed))
    )


def _names(statement: Document, principal: str) -> bool:
    """Return whether a statement is about a principal, also by its account."""
    account = principal.split(":")[4] if principal.startswith("arn:") else principal
    names = {principal, account, f"arn:aws:iam::{account}:root", "*"}
    return not names.isdisjoint(_principals(statement))


def _principals(statement: Document) -> set[str]:
    named = statement.get("Principal", {})
    if isinstance(named, str):
        return {named}
    return {value for values in named.values() for value in listed(values)}


def _attached(iam: Any, role: str) -> list[str]:
    policies = every(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=role)
    return [policy["PolicyArn"] for policy in policies]


def _inline(iam: Any, role: str) -> list[str]:
    return list(every(iam, "list_role_policies", "PolicyNames", RoleName=role))
