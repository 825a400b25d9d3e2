"""What Snowflake reads from outside: metadata files from S3, their whereabouts from AWS Glue."""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from topicberg_local.emulators import iam
from topicberg_local.emulators.snowflake.errors import catalog_failure

FAILURES = (BotoCoreError, ClientError)
"""Of requests to AWS and to the object store."""


class Sources:
    """Clients of the object store and of Glue. They are made on first use: importing boto3 is slow.

    The addresses come from the environment (``TOPICBERG_S3_ENDPOINT``, ``TOPICBERG_AWS_ENDPOINT``),
    the credentials too, as every AWS SDK reads them.
    """

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                import boto3

                # Boto's default session keeps the credentials of whoever used it first.
                make: Any = boto3.Session().client
                address = os.environ[f"TOPICBERG_{'S3' if service == 's3' else 'AWS'}_ENDPOINT"]
                config = Config(
                    connect_timeout=10, read_timeout=10, retries={"total_max_attempts": 2}
                )
                self._clients[service] = make(
                    service, region_name=region(), endpoint_url=address, config=config
                )
            return self._clients[service]

    def read(self, url: str) -> bytes:
        """An object; raises ProgrammingError: it is not there, or the store does not answer."""
        bucket, key = split_url(url)
        try:
            response = self._client("s3").get_object(Bucket=bucket, Key=key)
            return bytes(response["Body"].read())
        except FAILURES as error:
            raise catalog_failure(f"Failed to read '{url}': {error}") from None

    def metadata_location(self, namespace: str, table: str) -> str:
        """Where Glue has the table's metadata; raises ProgrammingError: no such Iceberg table."""
        try:
            response = self._client("glue").get_table(DatabaseName=namespace, Name=table)
        except FAILURES as error:
            raise catalog_failure(
                f"Failed to retrieve table '{namespace}.{table}' from the AWS Glue catalog: {error}"
            ) from None
        parameters = response["Table"].get("Parameters", {})
        location = parameters.get("metadata_location")
        if parameters.get("table_type", "").upper() != "ICEBERG" or not location:
            raise catalog_failure(
                f"Table '{namespace}.{table}' in the AWS Glue catalog is not an Iceberg table: "
                "it needs table_type=ICEBERG and a metadata_location"
            )
        return str(location)

    def check_namespace(self, namespace: str) -> str | None:
        """Why Glue cannot be asked for a database; None: it can, and has it."""
        try:
            if namespace:
                self._client("glue").get_database(Name=namespace)
            else:
                self._client("glue").get_databases(MaxResults=1)
        except FAILURES as error:
            return f"Failed to access the AWS Glue catalog: {error}"
        return None

    def namespaces(self) -> list[str]:
        """Return the names of Glue's databases; raises ProgrammingError: Glue does not answer."""
        return [database["Name"] for database in self._pages("get_databases", "DatabaseList")]

    def iceberg_tables(self, namespace: str) -> list[str]:
        """Return the Iceberg tables in one of Glue's databases; raises ProgrammingError."""
        return [
            table["Name"]
            for table in self._pages("get_tables", "TableList", DatabaseName=namespace)
            if table.get("Parameters", {}).get("table_type", "").upper() == "ICEBERG"
        ]

    def _pages(self, call: str, key: str, **arguments: str) -> list[Any]:
        try:
            pages = self._client("glue").get_paginator(call).paginate(**arguments)
            return [item for page in pages for item in page[key]]
        except FAILURES as error:
            raise catalog_failure(f"Failed to list the AWS Glue catalog: {error}") from None

    def vending_problem(self, url: str) -> str | None:
        """Why Glue would vend no credentials for a location; None: it would.

        Glue vends those of AWS Lake Formation, for locations that are registered there.
        https://docs.aws.amazon.com/lake-formation/latest/dg/register-data-lake.html
        """
        bucket, key = split_url(url)
        try:
            resources = self._client("lakeformation").list_resources()["ResourceInfoList"]
        except FAILURES as error:
            return f"AWS Lake Formation does not answer: {error}"
        bases = (
            resource["ResourceArn"].removeprefix("arn:aws:s3:::").rstrip("/")
            for resource in resources
        )
        if any(f"{bucket}/{key}".startswith(f"{base}/") for base in bases):
            return None
        return f"AWS Glue vends no credentials for '{url}': not registered with Lake Formation"

    def role_problem(
        self, arn: str, principal: str, external_id: str, *needs: tuple[str, str]
    ) -> str | None:
        """Why Snowflake could not do this with a role; None: it could, or there is no such role."""
        client, s3 = self._client("iam"), self._client("s3")
        return iam.problem(client, arn, principal, external_id, *needs, s3=s3, may_be_missing=True)

    def check(self, base_url: str) -> dict[str, str]:
        """Whether objects can be listed, read, written and deleted: ``PASSED``, or why not."""
        bucket, prefix = split_url(base_url)
        s3, written = self._client("s3"), f"{prefix}verify_{uuid.uuid4().hex}"
        results = {}
        untested = ["listResult", "readResult"]
        try:
            listing = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
            results[untested.pop(0)] = "PASSED"
            for listed in listing.get("Contents", []):
                s3.get_object(Bucket=bucket, Key=listed["Key"], Range="bytes=0-0")
            results[untested.pop(0)] = "PASSED"
        except FAILURES as error:
            results |= dict.fromkeys(untested, str(error))
        untested = ["writeResult", "deleteResult"]
        try:
            s3.put_object(Bucket=bucket, Key=written, Body=b"verify")
            results[untested.pop(0)] = "PASSED"
            s3.delete_object(Bucket=bucket, Key=written)
            results[untested.pop(0)] = "PASSED"
        except FAILURES as error:
            results |= dict.fromkeys(untested, str(error))
        return results


def split_url(url: str) -> tuple[str, str]:
    """``s3://bucket/path`` → bucket and path; also ``s3a://`` and ``s3gov://``."""
    parts = urlsplit(url, allow_fragments=False)
    return parts.netloc, parts.path.lstrip("/")


def lies_within(url: str, base: str) -> bool:
    """Whether an object is in a folder, whatever the scheme's spelling."""
    bucket, key = split_url(url)
    base_bucket, prefix = split_url(base)
    folder = prefix.rstrip("/") + "/" if prefix else ""
    return bucket == base_bucket and key.startswith(folder)


def region() -> str:
    return os.environ.get("AWS_REGION", "us-east-1")
