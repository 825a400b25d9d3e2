"""The cloud platform, created and maintained by one command: ``topicberg deploy``.

There is no state file. Every resource is found by its name, so a run that was killed is
repeated, what was created manually or by Terraform is adopted, and drift is detected.

| module | does |
|---|---|
| ``settings``, ``context``, ``…_account`` | what is requested, and the clients |
| ``resource``, ``engine``, ``polling`` | what a resource is; plan, create and delete; waiting |
| ``platform`` | the resource graph |
| ``confluent``, ``aws``, ``snowflake`` | the resources, a module a group of APIs |
| ``rotate`` | the rotation of keys |
| ``lock``, ``record`` | one deploy at a time; what was created |
"""
