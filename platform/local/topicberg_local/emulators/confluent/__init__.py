"""Confluent Cloud for the local stack: its control plane, Kafka REST, and keys for the registry.

All under one address, with one organization: environments, Kafka clusters, Schema Registry,
service accounts, API keys, role bindings, provider integrations, connectors, Tableflow topics and
catalog integrations; topics, their configuration and access lists; subjects. Requests are checked
as strictly as the vendor's OpenAPI documents say: unknown and read-only fields, parameters that
would be ignored, wrong values, and a key of the wrong kind are refused, in the four shapes in which
the vendor's APIs answer errors. What is not there is refused with 501, never answered with success.

Behind it is the real local stack: a topic is one of the broker, a Datagen connector runs the local
generator, a subject is the registry's, Tableflow is the local engine, and an AWS Glue integration
registers the tables in Glue, once the role of the provider integration can be taken on.

What is not as in Confluent Cloud:

* things take seconds, not minutes (``delays``);
* all clusters share one broker. The first one has the id of the settings, and it alone has
  connectors and Tableflow;
* Kafka has no TLS. Clients with an API key connect to a gateway, and may do what the access lists
  and role bindings of the key's owner allow: the broker refuses the rest;
* over HTTP, role bindings are demanded for changes over Kafka REST and for Tableflow only;
* there are no networks, encryption keys, Flink, ksqlDB, or catalogs other than Glue.

Tests ask for faults and shorter delays at ``/emulator/v1/faults`` and ``/emulator/v1/delays``, with
the stack's admin token (``topicberg env``).

| module | does |
|---|---|
| ``server``, ``operation``, ``errors`` | requests, answers, pages, errors; faults |
| ``account`` | the objects, on disk |
| ``keys``, ``roles`` | who may: keys, service accounts and role bindings, and their APIs |
| ``environments``, ``clusters``, ``integrations`` | one API each; registries are ``environments`` |
| ``kafka_rest``, ``broker`` | Kafka REST over the broker: topics and access lists |
| ``kafka_gateway`` | Kafka's own protocol, for clients with an API key, and what they may do |
| ``subjects`` | the registry |
| ``connectors``, ``generators`` | connectors, and the generators they run |
| ``connector_checks`` | what is wrong with one, and what it may not do |
| ``tableflow``, ``catalogs`` | Tableflow |
| ``materialization`` | what became of its tables: storage, Glue |
"""
