"""Snowflake for the local stack: its wire protocol, and the objects that Iceberg tables need.

The real connectors talk to it. It answers by itself what is about the account: external volumes,
catalog integrations (``CATALOG_SOURCE = GLUE``), Iceberg tables of an external catalog, databases,
schemas, users with key pairs, roles, grants and warehouses. Queries, and DDL and DML on ordinary
tables, are fakesnow's and DuckDB's. Anything else is refused by name with error 000002; nothing is
accepted and then ignored.

Iceberg tables are resolved through Glue and read from the object store, as of their last refresh.

What is not as in Snowflake: privileges on ordinary tables are recorded and shown, but not enforced,
and SHOW and DESCRIBE show what a role may not see; a warehouse needs not run; ``OBJECT``, ``MAP``
and ``ARRAY`` come as JSON; results are sent whole; there are no stages, tasks, streams, functions
or time travel. Error numbers that no public source shows are at the end of :mod:`errors`.

| module | does |
|---|---|
| ``server``, ``logins``, ``session``, ``results`` | the protocol, logins, one session, rows |
| ``sql`` | reading statements |
| ``commands`` | which statement is answered by which function |
| ``volumes``, ``integrations``, ``tables``, ``table_views`` | Iceberg objects |
| ``databases``, ``linked`` | databases, schemas, those of a catalog; automated refresh |
| ``users``, ``roles``, ``tags``, ``login_policies`` | the rest of the account |
| ``privileges`` | which role may do what |
| ``iceberg``, ``sources`` | metadata files, S3 and Glue |
| ``account``, ``engine``, ``pass_through`` | state on disk, DuckDB, what may pass to it |
"""
